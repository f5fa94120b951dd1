from __future__ import annotations

import json

import pytest
import yaml

from pycrictl._proto import cri_pb2
from pycrictl.show.inspect_views import runtime_extras
from pycrictl.show.jsontext import document_json
from pycrictl.show.list_views import rfc3339
from pycrictl.show.protodata import (
    MAX_NESTING,
    info_value,
    message_document,
    status_document,
)
from pycrictl.show.yamltext import document_yaml
from tests.captures import capture
from tests.captures.fixtures import utc
from tests.captures.scene import fake_container_status, fake_status, real_images

__all__ = ["utc"]


def test_messages_and_lists_are_the_data_of_their_json() -> None:
    images = real_images()
    expected = yaml.safe_load(capture("images-yaml").output)
    assert message_document(cri_pb2.ListImagesResponse(images=images)) == expected


def test_a_container_status_is_crictls() -> None:
    response = fake_container_status()
    status = response.status
    moments = (status.created_at, status.started_at, status.finished_at)
    times = dict(zip(("createdAt", "startedAt", "finishedAt"), map(rfc3339, moments), strict=True))
    document = status_document(status, response.info, unset_as_null=True, times=times)
    del document["status"]["mounts"][0]["mountOptions"]  # a field that is newer than the recording
    output = capture("f-inspect-yaml").output
    # crictl passes numbers through floats; here they stay exact.
    exact = output.replace("rate: 9007199254740992", "rate: 9007199254740993")
    assert exact != output
    assert document_yaml(document) + "\n" == exact


def test_the_runtime_status_is_crictls() -> None:
    response = fake_status()
    document = status_document(response.status, extras=runtime_extras(response))
    assert document_json(document) + "\n" == capture("f-info-quiet").output
    status = cri_pb2.StatusResponse(status=response.status)
    assert set(status_document(status.status, extras=runtime_extras(status))) == {"status"}


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
