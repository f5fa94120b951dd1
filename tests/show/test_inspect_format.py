from __future__ import annotations

import json
from io import StringIO

import pytest
import yaml

from pycrictl._proto import cri_pb2
from pycrictl.errors import UsageError
from pycrictl.show.inspect_format import DOCUMENT_FORMATS, InspectFormat


def written(output: str, answers: list[int], template: str = "") -> str:
    out = StringIO()
    chosen = InspectFormat(output, template=template)
    chosen.write(answers, lambda number: {"n": number}, lambda number: [("N", str(number))], out)
    return out.getvalue()


def test_one_is_an_object_and_several_are_a_list() -> None:
    assert json.loads(written("json", [1])) == {"n": 1}
    assert json.loads(written("", [1, 2])) == [{"n": 1}, {"n": 2}]
    assert yaml.safe_load(written("yaml", [1, 2])) == [{"n": 1}, {"n": 2}]
    assert written("table", [1, 2]) == "N: 1\nN: 2\n"
    assert written("go-template", [1], "{{.n}}") == "1\n"
    assert written("go-template", [1, 2], "{{range .}}<{{.n}}>{{end}}") == "<1><2>\n"


def test_a_template_counts_with_its_format_only() -> None:
    assert json.loads(written("json", [1], "{{")) == {"n": 1}
    with pytest.raises(UsageError):
        written("go-template", [1], "{{")


def test_messages() -> None:
    version = cri_pb2.VersionResponse(version="1", runtime_name="x")
    for output, text in (
        ("json", '{\n  "version": "1",\n  "runtimeName": "x",\n'),
        ("yaml", 'runtimeApiVersion: ""\nruntimeName: x\n'),
    ):
        out = StringIO()
        InspectFormat(output).write_message(version, out)
        assert out.getvalue().startswith(text)
    out = StringIO()
    InspectFormat("go-template", template="{{.runtimeName}}").write_message(version, out)
    assert out.getvalue() == "x\n"


def test_formats_that_a_command_has_not() -> None:
    with pytest.raises(UsageError, match='unknown output format "xml"'):
        InspectFormat("xml")
    with pytest.raises(UsageError) as raised:
        InspectFormat("table", formats=DOCUMENT_FORMATS)
    assert raised.value.hint == "formats are json, yaml, go-template, jsonpath=…"
