from __future__ import annotations

import json
from io import StringIO

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import UsageError
from pycrictl.show.formats import ListFormat, Views
from pycrictl.show.render import Table

PODS = [
    cri_pb2.PodSandbox(id="b2", metadata=cri_pb2.PodSandboxMetadata(name="web-10")),
    cri_pb2.PodSandbox(id="a1", metadata=cri_pb2.PodSandboxMetadata(name="web-9")),
]

VIEWS = Views(
    table=lambda pods, kind: Table(
        ("ID", "MORE") if kind else ("ID",),
        [(pod.id, "m") if kind else (pod.id,) for pod in pods],
        min_width=6,
    ),
    block=lambda pod: [("ID", pod.id)],
)


def listed(output: str, **options: object) -> str:
    out = StringIO()
    ListFormat(output, name="items", **options).write(PODS, VIEWS, out)  # type: ignore[arg-type]  # mixed types
    return out.getvalue()


def test_tables() -> None:
    assert listed("table") == "ID\nb2\na1\n"
    assert listed("table", header=False) == "b2\na1\n"
    assert listed("wide") == "ID    MORE\nb2    m\na1    m\n"
    assert listed("custom-columns=N:.metadata.name") == "N\nweb-10\nweb-9\n"
    assert listed("custom-columns=N:.metadata.name", header=False) == "web-10\nweb-9\n"


def test_what_goes_before_what() -> None:
    assert listed("table", quiet=True, verbose=True) == "b2\na1\n"
    assert listed("table", verbose=True) == "ID: b2\n\nID: a1\n\n"
    assert listed("wide", quiet=True) == "b2\na1\n"
    document = json.loads(listed("json", quiet=True, verbose=True))
    assert [pod["id"] for pod in document["items"]] == ["b2", "a1"]
    assert listed("yaml", quiet=True).startswith("items:\n- ")
    assert listed("jsonpath={.items[*].id}", quiet=True) == "b2 a1\n"


@pytest.mark.parametrize(
    "output",
    ["", "xml", "JSON", "json=x", "table=x", "jsonpath", "custom-columns", "wide=", "a\x1b[2Jb"],
)
def test_unknown_formats(output: str) -> None:
    with pytest.raises(UsageError, match="unknown output format") as raised:
        ListFormat(output, name="items")
    assert raised.value.message.isprintable()
    assert raised.value.hint
