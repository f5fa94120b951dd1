from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pycrictl.show.gotemplate import GoTemplate, TemplateError

DATA: dict[str, Any] = {
    "state": "RUNNING",
    "labels": {"b": "2", "a": "1", "a-b": "3"},
    "items": [{"name": "x"}, {"name": "y"}],
    "numbers": [1, 2, 3],
    "empty": {"list": [], "map": {}, "text": "", "zero": 0, "null": None, "no": False},
    "big": 2**63 - 1,
    "half": 1.5,
    "million": 1_000_000.0,
    "yes": True,
    "html": "<a & 'b'>",
}


RECORDED = json.loads((Path(__file__).parent / "data/go-templates.json").read_text("utf-8"))
"""Data, and what crictl 1.36.0 made of it by templates; null for those that failed."""


def rendered(text: str, data: Any = DATA) -> str:
    return GoTemplate(text).render(data)


@pytest.mark.parametrize(("template", "text"), RECORDED["templates"])
def test_templates_make_what_they_make_in_crictl(template: str, text: str | None) -> None:
    if text is None:
        with pytest.raises(TemplateError):
            rendered(template, RECORDED["data"])
    else:
        assert rendered(template, RECORDED["data"]) == text


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("plain } text }} {", "plain } text }} {"),
        ('{{index .labels "a-b"}}', "3"),
        ('{{"a\rb\0c"}}', "a\rb\0c"),
        ("{{.empty}}", "map[list:[] map:map[] no:false null:<nil> text: zero:0]"),
        ("{{.big}} {{.half}} {{.million}} {{.yes}}", "9223372036854775807 1.5 1000000 true"),
        *((f"{{{{if .empty.{name}}}}}a{{{{else}}}}b{{{{end}}}}", "b") for name in DATA["empty"]),
        ("{{if not .empty.no}}a{{end}}{{and 1 0 .nokey}}{{or 0 2 .nokey}}", "a02"),
        ("{{eq .state `a` `RUNNING`}}{{eq 1 1.0}}{{eq nil .empty.null}}", "truetruetrue"),
        ("{{eq .labels nil}}{{eq nil .numbers}}{{eq .empty.list nil}}", "falsefalsefalse"),
        # in {{else}} each variable holds the value of the range, as in kubectl
        ("{{range $e := .empty.list}}x{{else}}[{{$e}}]{{end}}", "[[]]"),
        ("{{range $i, $e := .empty.map}}x{{else}}{{$i}} {{$e}}{{end}}", "map[] map[]"),
        ("{{$e := 1}}{{range $e = .empty.list}}{{else}}{{$e}}{{end}}{{$e}}", "[][]"),
        # numbers of the data are text, but can also be compared with numbers
        ("{{eq .big 9223372036854775807}}{{lt .half 2}}{{eq .half `1.5`}}", "truetruetrue"),
        ("{{printf `%d %.2f %s` .big .half .half}}", "9223372036854775807 1.50 1.5"),
        ("{{slice `naïve` 0 3}}", "na\ufffd"),
        ("{{printf `%q` `\u202e`}}", '"\\u202e"'),
    ],
)
def test_what_templates_make(template: str, text: str) -> None:
    assert rendered(template) == text


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{", "unclosed action"),
        ('{{"a}}', "unclosed string"),
        ('{{"\\u12"}}', "is not valid"),
        ("{{.a-b}}", 'unexpected "-"'),
        ("{{.state\x1b}}", 'unexpected "\\x1b"'),
        ("{{}}", "missing value in the action"),
        ("{{if .yes}}", "{{if}} without {{end}}"),
        ("{{end}}", "unexpected {{end}}"),
        ("{{if 1}}{{else}}{{else}}{{end}}", "a second {{else}}"),
        ("{{range .a}}{{else range .b}}{{end}}", 'unexpected "range" in {{else}}'),
        ("{{define `a`}}{{end}}", 'there is no function "define"'),
        ("{{range $x := .a}}{{end}}{{$x}}", "undefined variable $x"),
        ("{{$a, $b := .a}}", "too many variables"),
        ("{{(.a}}", "unclosed parenthesis"),
        ("{{.a | 1}}", "only a function can follow |"),
        ("{{" + "(" * 500 + "1" + ")" * 500 + "}}", "nested too deeply"),
        ("{{if 0}}" + "{{else if 0}}" * 500 + "{{end}}", "nested too deeply"),
        # while it is executed
        ("{{.state.x}}", ':1: a string has no field "x"'),
        ("\n{{.empty.null.x}}", ':2: null has no field "x"'),
        ("{{(index .items 0).nokey}}", 'there is no key "nokey"'),
        ("{{1 2}}", "only functions take arguments"),
        ("{{range .state}}{{end}}", "a string cannot be iterated over"),
        ("{{len}}", "len takes 1 arguments, not 0"),
        ("{{index .items 2}}", "index 2 is out of range"),
        ("{{index .labels 1}}", "a number is not a key of a map"),
        ("{{eq 1 `a`}}", "a number and a string cannot be compared"),
        ("{{slice .numbers 2 1}}", "slice: index 2 is greater than the next"),
        ("{{range 1000001}}{{end}}", "a number cannot be iterated over"),
        ("{{range 1}}{{else}}{{break}}{{end}}", "{{break}} outside {{range}}"),
        *(
            (f"{{{{printf `{form}` 1}}}}", "is not supported")
            for form in ("%9999d", "%[2]s", "%*d", "%#v", "%.9999d")
        ),
    ],
)
def test_what_is_refused(template: str, message: str) -> None:
    with pytest.raises(TemplateError, match=re.escape(message)) as caught:
        rendered(template)
    assert caught.value.message.startswith("template: :")
    assert caught.value.exit_code == 1


def test_keys_with_dashes_get_a_hint() -> None:
    with pytest.raises(TemplateError) as caught:
        rendered("{{.labels.a-b}}")
    assert caught.value.hint is not None
    assert "index" in caught.value.hint
