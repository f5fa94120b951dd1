from __future__ import annotations

import re
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


def rendered(text: str, data: Any = DATA) -> str:
    return GoTemplate(text).render(data)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("", ""),
        ("plain } text }} {", "plain } text }} {"),
        ("{{.state}} {{ .labels.a }}", "RUNNING 1"),
        ("{{$.state}}{{with .labels}}{{$.state}}{{.a}}{{end}}", "RUNNINGRUNNING1"),
        ('{{index .labels "a-b"}}', "3"),
        ('{{index .labels "none"}}', "<no value>"),
        ("{{(index .items 1).name}}", "y"),
        (
            "{{.labels}} {{.numbers}} {{.items}}",
            "map[a:1 a-b:3 b:2] [1 2 3] [map[name:x] map[name:y]]",
        ),
        ("{{.empty}}", "map[list:[] map:map[] no:false null:<nil> text: zero:0]"),
        ("{{.big}} {{.half}} {{.million}} {{.yes}}", "9223372036854775807 1.5 1000000 true"),
        ("{{.empty.null}}|{{.empty.text}}", "<no value>|"),
        # white space
        ("a  {{- .state -}}  b", "aRUNNINGb"),
        ("{{-3}}", "-3"),
        ("{{\n.state\n}}", "RUNNING"),
        # decisions
        ("{{if .empty.no}}a{{else if .empty.no}}b{{else if .empty.no}}c{{else}}d{{end}}e", "de"),
        *((f"{{{{if .empty.{name}}}}}a{{{{else}}}}b{{{{end}}}}", "b") for name in DATA["empty"]),
        ("{{with .labels.a}}{{.}}{{end}}{{with .empty.list}}{{else}}none{{end}}", "1none"),
        ("{{with .empty.no}}{{else with .labels}}{{.b}}{{end}}", "2"),
        ("{{if not .empty.no}}a{{end}}{{and 1 0 .nokey}}{{or 0 2 .nokey}}", "a02"),
        ("{{and 1 2}}{{or 0 ``}}|{{1 | and 2}}{{0 | or 0}}", "2|10"),
        ("{{eq .state `a` `RUNNING`}}{{eq 1 1.0}}{{eq nil .empty.null}}", "truetruetrue"),
        ("{{eq .labels nil}}{{eq nil .numbers}}{{eq .empty.list nil}}", "falsefalsefalse"),
        ("{{lt 1 2}}{{le 2 2}}{{gt `b` `a`}}{{ge 1 2}}", "truetruetruefalse"),
        # loops
        ("{{range $i, $e := .items}}{{if $i}} {{end}}{{$i}}{{$e.name}}{{end}}", "0x 1y"),
        ("{{range $k, $v := .labels}}{{$k}}={{$v}};{{end}}", "a=1;a-b=3;b=2;"),
        # in {{else}} each variable holds the value of the range, as in kubectl
        ("{{range $e := .empty.list}}x{{else}}[{{$e}}]{{end}}", "[[]]"),
        ("{{range $i, $e := .empty.map}}x{{else}}{{$i}} {{$e}}{{end}}", "map[] map[]"),
        ("{{$e := 1}}{{range $e = .empty.list}}{{else}}{{$e}}{{end}}{{$e}}", "[][]"),
        # variables
        ("{{$last := 0}}{{range .numbers}}{{$last = .}}{{end}}{{$last}}", "3"),
        ("{{$x := 1}}{{if .yes}}{{$x := 2}}{{$x}}{{end}}{{$x}}", "21"),
        ("{{with $x := .labels}}{{$x.a}}{{.b}}{{end}}", "12"),
        # pipelines and functions
        ("{{.state | lower | title}}", "Running"),
        ('{{"abc dEF it\'s a-b" | title}}', "Abc DEF It's A-B"),
        ('{{upper "straße"}} {{lower "ÄB"}}', "STRASSE äb"),
        ("{{json .labels}}", '{"a":"1","a-b":"3","b":"2"}\n'),
        ("{{json .html}}", "\"\\u003ca \\u0026 'b'\\u003e\"\n"),
        ("{{len .state}}{{len .labels}}{{len .numbers}}{{len `é`}}", "7332"),
        ("{{print 1 2 `a` 3}}{{print nil}}", "1 2a3<nil>"),
        ("{{printf `%s is %d of %v%%` .state 1 .numbers}}", "RUNNING is 1 of [1 2 3]%"),
        ("{{printf `%5d|%-5d|` 42 42}}", "   42|42   |"),
        ('{{printf `%q %v %v %T` `b"` true nil 1}}', '"b\\"" true <nil> int'),
        ('{{.state | printf "%3d|%-9s|" 7}}', "  7|RUNNING  |"),
        # constants
        ('{{"a\\t\\"\\x41\\u00e9\\U0001f600\\101\\\\"}}', 'a\t"Aé\U0001f600A\\'),
        ("{{`a\\t`}}{{true}}", "a\\ttrue"),
        ("{{0x1F}} {{1_000}} {{-1.5e3}} {{017}} {{.5}}", "31 1000 -1500 15 0.5"),
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
        ("{{if 1}}{{else x}}{{end}}", 'unexpected "x" in {{else}}'),
        ("{{range .a}}{{else range .b}}{{end}}", 'unexpected "range" in {{else}}'),
        ("{{define `a`}}{{end}}", "{{define}} is not supported"),
        ("{{nosuch .a}}", 'there is no function "nosuch"'),
        ("{{range $x := .a}}{{end}}{{$x}}", "undefined variable $x"),
        ("{{$a, $b := .a}}", "too many variables"),
        ("{{(.a}}", "unclosed parenthesis"),
        ("{{.a |}}", "missing value in the action"),
        ("{{.a | 1}}", "only a function can follow |"),
        ("{{`a`.b}}", "only functions take arguments"),
        ("{{" + "(" * 500 + "1" + ")" * 500 + "}}", "nested too deeply"),
        ("{{if 1}}" * 500 + "{{end}}" * 500, "nested too deeply"),
        ("{{if 0}}" + "{{else if 0}}" * 500 + "{{end}}", "nested too deeply"),
        # while it is executed
        ("{{.state.x}}", ':1: a string has no field "x"'),
        ("\n{{.empty.null.x}}", ':2: null has no field "x"'),
        ("{{(index .items 0).nokey}}", 'there is no key "nokey"'),
        ("{{$a = 2}}", "undefined variable $a"),
        ("{{1 2}}", "only functions take arguments"),
        ("{{range .state}}{{end}}", "a string cannot be iterated over"),
        ("{{len}}", "len takes 1 arguments, not 0"),
        ("{{len 3}}", ":1: len: a number has no length"),
        ("{{index .items 2}}", "index 2 is out of range"),
        ("{{index .items `a`}}", "a string is not an index"),
        ("{{index .labels 1}}", "a number is not a key of a map"),
        ("{{eq 1 `a`}}", "a number cannot be compared with a string"),
        ("{{eq .labels 1}}", "a map cannot be compared"),
        ("{{lt nil 1}}", "null and a number cannot be ordered"),
        ("{{printf 1}}", "a number is not a string"),
        ("{{printf `%d` `a`}}", "printf: a string does not fit %d"),
        ("{{printf `%s`}}", 'printf: "%s" has no value'),
        ("{{printf `%s` 1 2}}", "printf: a number has no verb"),
        *(
            (f"{{{{printf `{form}` 1}}}}", "is not supported, only %s %v %q")
            for form in ("%9999d", "%[2]s", "%f", "%05s", "%#v", "%")
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
