from __future__ import annotations

from typing import Any

import pytest

from pycrictl.show.jsonpath import MAX_NESTING, JsonPathError, Path, Template

DOCUMENT: dict[str, Any] = {
    "containers": [
        {
            "id": "1",
            "metadata": {"name": "a", "attempt": 1},
            "labels": {"app.k8s/x": "v", "a.b": "w", "on": "true"},
            "state": "CONTAINER_RUNNING",
            "createdAt": "1795208999000000000",
        },
        {
            "id": "2",
            "metadata": {"name": "b", "attempt": 2},
            "labels": {},
            "state": "CONTAINER_EXITED",
            "ready": True,
            "none": None,
            "list": [1, "x<y"],
        },
    ]
}


def rendered(text: str) -> str:
    return Template(text, aliases={"items": "containers"}).render(DOCUMENT)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        # what kubectl's own page shows
        ("{.containers[*].metadata.name}", "a b"),
        ("{.items[*].metadata.name}", "a b"),
        ("{$.items[*].metadata.name}", "a b"),
        ("{@.items[0].id}", "1"),
        ("{.items[0]['id', 'state']}", "1 CONTAINER_RUNNING"),
        ("{.items[*]['metadata.name', 'id']}", "1 2"),
        ("{.items[-1:].id}", "2"),
        ("{.items[0:1].id}", "1"),
        ("{.items[::2].id}", "1"),
        ("{.items[0,1].id}", "1 2"),
        ("{..name}", "a b"),
        ('{.items[?(@.metadata.name=="b")].id}', "2"),
        ("{.items[?(@.metadata.name=='b')].id}", "2"),
        ("{.items[?(@.metadata.attempt>1)].id}", "2"),
        ("{.items[?(@.ready)].id}", "2"),
        (r"{.items[0].labels.a\.b}", "w"),
        (r"{.items[0].labels.app\.k8s/x}", "v"),
        (r'{.items[?(@.labels.app\.k8s/x=="v")].id}', "1"),
        ("{.items[0].labels['a.b']}", "w"),
        ('{range .items[*]}{.id}{"\\t"}{.state}{"\\n"}{end}', None),
        ("{range .items[*]}[{.id}] {end}", "[1] [2] "),
        ("{range .items[*]}{$.items[0].id}{@.id} {end}", "11 12 "),
        ("{range .items[*]}{range .list[*]}{@}-{end}{end}", "1-x<y-"),
        ("{range .nosuch[*]}x{end}", ""),
        ("names: {.items[*].id}!", "names: 1 2!"),
        ('{\'a\'}{"b\\"}"}', 'ab"}'),
        ("{range.items[*]}{.id}{end}{range$.items[*]}{.id}{end}", "1212"),
        ("{.ranges}{.items[0].range}", ""),
        ("{1} {-1} {1.50} {+01} {true}{ false }", "1 -1 1.5 1 truefalse"),
        ("{range .items[1].list[*]}{},{end}", "1,x<y,"),
        ('{.items[?(@.metadata.name=="=~ match(")].id}', ""),
        ("{.items[?(@.search)].id}", ""),
        # values of every kind
        ("{.items[1].ready} {.items[1].none}", "true null"),
        ("{.items[1].list}", '[1,"x\\u003cy"]'),
        ("{.items[1].metadata}", '{"attempt":2,"name":"b"}'),
        # nothing there is nothing shown
        ("{.nosuch}", ""),
        ("{.items[9].id}", ""),
        ("{.items[0].id.deeper}", ""),
        # without braces it is a path
        (".items[*].id", "1 2"),
        ("items[0].id", "1"),
        ("{.items[*].id }", "1 2"),
        ("{[0]}", ""),
        ("", None),
    ],
)
def test_templates(template: str, text: str | None) -> None:
    if template.startswith("{range .items[*]}{.id}{"):
        text = "1\tCONTAINER_RUNNING\n2\tCONTAINER_EXITED\n"
    if text is None:
        with pytest.raises(JsonPathError):
            rendered(template)
    else:
        assert rendered(template) == text


def test_the_whole_document() -> None:
    assert rendered("{$}") == rendered("{@}") == rendered("{.}") == rendered("{}")
    assert rendered("{.}").startswith('{"containers":[{"createdAt":"1795208999000000000",')


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{", '"}" is missing in "{"'),
        ("{.a", '"}" is missing in "{.a"'),
        ('{"a}', '"}" is missing'),
        ('{"a"b}', "is not a text in quotes"),
        ("{.a[}", '"]" is missing in ".a["'),
        ("{.a[?(@.b==]}", "is not a JSONPath"),
        ("{.a[99999999999999999999999]}", "is not a JSONPath"),
        ("{.a b}", '" b" is not expected'),
        (" ", "it is empty"),
        ("{.a[b]}", '".a[b]" is not a JSONPath: "b" in brackets wants quotes'),
        ("{.a[0, b]}", '"b" in brackets wants quotes'),
        ("{range .a}", "{range} without {end}"),
        ("{range}{end}", "it is empty"),
        ("{end}", "{end} without {range}"),
        ("{range .a}{end}{end}", "{end} without {range}"),
        ("{..}", "a name is missing"),
        ("{.a[?nosuch(@.b)]}", "is not a JSONPath"),
        ("{.\x1b[2J}", '"]" is missing in ".\\x1b[2J"'),
        ("{range .a}" * (MAX_NESTING + 1) + "{end}" * (MAX_NESTING + 1), "nested too deeply"),
        ("{.a" + "[?@" * 3000 + "]" * 3000 + "}", "is not a JSONPath"),
    ],
)
def test_what_is_no_template(template: str, reason: str) -> None:
    with pytest.raises(JsonPathError) as raised:
        Template(template)
    assert reason in raised.value.message
    assert raised.value.message.isprintable()
    assert len(raised.value.message) < 400


@pytest.mark.parametrize(
    ("selector", "name"),
    [
        ('?(@.name=~"a")', "=~"),
        ("?(@.name =~ /(a+)+$/)", "=~"),
        ("0, ?(@.name =~ /a/)", "=~"),
        ("?(@.b[?(@.name =~ /a/)])", "=~"),
        ('?match(@.name, "(a+)+$")', "match()"),
        ('?(!search(@.name, "(a+)+$"))', "search()"),
    ],
)
def test_regular_expressions_are_refused(selector: str, name: str) -> None:
    with pytest.raises(JsonPathError) as raised:
        Template(f"{{.containers[{selector}].id}}")
    assert raised.value.message.endswith(f" is not supported: {name} takes a regular expression")
    assert raised.value.hint


def test_values_cannot_break_lines_or_steer_the_terminal() -> None:
    document = {"a": ["x\ny", "\x1b[2J", {"k\x9b": "\u202e"}]}
    assert Template("{.a[*]}\n").render(document) == "\n".join(
        ['x\\ny \\x1b[2J {"k\\u009b":"\\u202e"}', ""]
    )


def test_an_alias_holds_at_the_top_only() -> None:
    document = {"containers": [{"items": "inner", "containers": "other"}]}
    template = Template(
        "{.items[0].items} {range .items[*]}{.items}{end}", aliases={"items": "containers"}
    )
    assert template.render(document) == "inner inner"


@pytest.mark.parametrize("text", ["{.a.b}", ".a.b", "a.b", " {.a.b} ", "$.a.b", "@.a.b", "a['b']"])
def test_paths_are_read_as_kubectl_does(text: str) -> None:
    assert Path(text).find({"a": {"b": 1}}) == [1]


def test_a_name_of_any_characters() -> None:
    name = "a.b/c-d é\"'"
    path = "." + "".join(f"\\{char}" if char in ". " else char for char in name)
    assert Path(path).find({name: 5}) == [5]


def test_ten_thousand_objects() -> None:
    document = {"items": [{"id": str(number), "x": {"y": [number]}} for number in range(10_000)]}
    text = Template("{range .items[*]}{.id} {.x.y[0]}{'\\n'}{end}").render(document)
    assert len(text.splitlines()) == 10_000
    assert text.splitlines()[-1] == "9999 9999"
