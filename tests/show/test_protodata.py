from __future__ import annotations

import json

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.show.datatext import document_json
from pycrictl.show.protodata import MAX_NESTING, info_value, status_document


def test_unset_submessages_are_null_if_wanted() -> None:
    status = cri_pb2.ContainerStatus(id="a")
    document = status_document(status, unset_as_null=True)["status"]
    unset = {"metadata", "image", "resources", "user"}
    assert {key for key, value in document.items() if value is None} == unset
    assert not unset & set(status_document(status)["status"])


def test_info_never_hides_the_status() -> None:
    document = status_document(cri_pb2.Image(id="a"), {"status": "x", "pid": "1"})
    assert document["status"]["id"] == "a"
    assert document["pid"] == "1"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"go1.22"', "go1.22"),
        ('text "inner" end', 'text "inner" end'),
        ('["x","y"]', '["x","y"]'),
        ("12", "12"),
        ("", ""),
        ('{"a": 9223372036854775807, "b": 1.5}', {"a": 2**63 - 1, "b": 1.5}),
        ('{"a"', '{"a"'),
        ('{"a": NaN}', '{"a": NaN}'),
        ('{"a": 1e999}', '{"a": 1e999}'),
        ('{"a": "\\ud800", "\\udfff": 1}', {"a": "\ufffd", "\ufffd": 1}),
    ],
)
def test_info_values(text: str, value: object) -> None:
    assert info_value(text) == value


def test_info_that_no_program_should_send_stays_text() -> None:
    deep = '{"a":' * (MAX_NESTING + 1) + "1" + "}" * (MAX_NESTING + 1)
    assert info_value(deep) == deep
    assert isinstance(info_value(deep[5:-1]), dict)
    bottomless = '{"a":' * 200_000
    assert info_value(bottomless) == bottomless
    digits = "9" * 100_000
    assert info_value(f'{{"a":{digits}}}') == f'{{"a":{digits}}}'
    exact = info_value(f'{{"a":{digits[:4000]}}}')
    assert json.loads(document_json(exact)) == {"a": int(digits[:4000])}
