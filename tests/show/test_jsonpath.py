from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import pytest

from pycrictl.base.units import quote
from pycrictl.show.jsonpath import MAX_NESTING, JsonPath, JsonPathError, JsonPathTemplate

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
            "off": False,
            "none": None,
            "list": [1, "x<y"],
        },
    ]
}


def rendered(text: str) -> str:
    return JsonPathTemplate(text, aliases={"items": "containers"}).render(DOCUMENT)


# What kubectl 1.32 prints for the same data.
AS_KUBECTL = r"""
{.items[*].metadata.name} -> a b
{$.items[*].metadata.name} -> a b
{@.items[0].id} -> 1
{.items[-1].id} -> 2
{.items[-1:].id} -> 2
{.items[:-1].id} -> 1
{.items..name} -> a b
{..name..name} ->
{.items[1].list[*]} -> 1 x<y
{.items[?(@.metadata.name=="b")].id} -> 2
{.items[?( @.metadata.name == 'b' )].id} -> 2
{.items[?(@.metadata.name<="b")].id} -> 1 2
{.items[?(@.metadata.attempt>1)].id} -> 2
{.items[?(@.ready)].id} -> 2
{.items[?(@.ready==true)].id} -> 2
{.items[?(@.nosuch!="x")].id} ->
{.items[?(@.labels.on=="true")].id} -> 1
{.items[?(@.labels['a\.b']=="w")].id} -> 1
{.items[?(@.id=="a'b")].id} ->
{.items[0].labels.a\.b} -> w
{range .items[*]}[{.id}] {end} -> [1] [2]
{range .items[*]}{.id}{range .list[*]}<{@}>{end}{"\n"}{end} -> 1\n2<1><x<y>\n
{range .items[*]}{.id}{"\t"}{.state}{"\n"}{end} -> 1\tCONTAINER_RUNNING\n2\tCONTAINER_EXITED\n
{range.items[*]}{.id}{end}{range$.items[*]}{.id}{end} -> 1212
{range .nosuch[*]}x{end} ->
names: {.items[*].id}! -> names: 1 2!
{'a'}{"b\"}"} -> ab"}
{.items[1].list} -> [1,"x\u003cy"]
{.items[1].metadata} -> {"attempt":2,"name":"b"}
{.nosuch} ->
{.items[0].id.deeper} ->
"""


def test_what_kubectl_prints() -> None:
    for line in AS_KUBECTL.strip().splitlines():
        template, _, text = line.partition(" ->")
        expected = text.replace(r"\n", "\n").replace(r"\t", "\t").strip()
        assert (template, rendered(template).strip()) == (template, expected)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        # where kubectl fails, or prints less
        ("{.items[0].labels['a.b']}", "w"),
        ("{.items[9].id}{.items[-9].id}{.items[5:].id}{.items[2:1].id}{.items[0:9].id}", "1 2"),
        ("{.items[1][?(@==1)]} {.items[1].list[?(@=='x<y')]}", " x<y"),
        (
            "{.items[?(@.ready==1)].id} {.items[?(@.ready!=1)].id} {.items[?(@.ready>false)].id}",
            " 2 ",
        ),
        ('{.items[?(@.id>1)].id} {.items[?(@.id>"1")].id}', " 2"),
        # without braces it is a path
        (".items[*].id", "1 2"),
        ("items[0].id", "1"),
        ("{[0]}", ""),
    ],
)
def test_templates(template: str, text: str) -> None:
    assert rendered(template) == text


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("", "it is empty"),
        ("{.a", '"}" is missing in "{.a"'),
        ("{.a[}", '"[" is not expected'),
        ("{.a[99999999999999999999999]}", '"[99999999999999999999999]" is not expected'),
        ("{.a[b]}", '".a[b]" is not a JSONPath: "[b]" is not expected'),
        ("{..}", '".." is not expected'),
        ("{.\x1b[2J}", '"[2J" is not expected'),
        ("{range .a}", "{range} without {end}"),
        ("{end}", "{end} without {range}"),
        ("{range .a}" * (MAX_NESTING + 1) + "{end}" * (MAX_NESTING + 1), "nested too deeply"),
    ],
)
def test_what_is_no_template(template: str, reason: str) -> None:
    with pytest.raises(JsonPathError) as raised:
        JsonPathTemplate(template)
    assert reason in raised.value.message
    assert raised.value.message.isprintable()
    assert len(raised.value.message) < 400


@pytest.mark.parametrize(
    "condition",
    ["?(@.b==", "?(@.b===1)", "?(@.b && @.c)", "?(@.b[?(@.c)])", "?(@.b[*]==1)", "?(@.a==@.b)"],
)
def test_what_is_no_filter(condition: str) -> None:
    with pytest.raises(JsonPathError) as raised:
        JsonPathTemplate(f"{{.a[{condition}]}}")
    assert raised.value.message.endswith(f"{quote(f'[{condition}]')} is not expected")
    assert raised.value.hint is not None
    assert "[?(@.NAME == VALUE)]" in raised.value.hint


def test_what_would_take_all_memory_ends() -> None:
    document: Any = [[] for _ in range(30)]
    for _ in range(30):
        document = [document]
    with pytest.raises(JsonPathError, match="selects too many values"):
        JsonPathTemplate("{" + "..*" * 40 + "}").render(document)


@pytest.mark.parametrize(
    "template",
    [
        "{.a" + "[?(@" * 30_000 + ")]" * 30_000 + "}",
        "{.a" + ".a" * 50_000 + " }",
        "{" + "'a\\'" * 30_000,
        "{" + "\\" * 100_001,
        "{.a['" + "b'" * 50_000,
    ],
)
def test_long_texts_are_read_quickly(template: str) -> None:
    started = time.process_time()
    with suppress(JsonPathError):
        assert JsonPathTemplate(template).render({}) == ""
    assert time.process_time() - started < 10


def test_values_cannot_break_lines_or_steer_the_terminal() -> None:
    document = {"a": ["x\ny", "\x1b[2J", {"k\x9b": "\u202e"}]}
    assert JsonPathTemplate("{.a[*]}\n").render(document) == "\n".join(
        ['x\\ny \\x1b[2J {"k\\u009b":"\\u202e"}', ""]
    )


def test_an_alias_holds_at_the_top_only() -> None:
    document = {"containers": [{"items": "inner", "containers": "other"}]}
    template = JsonPathTemplate(
        "{.items[0].items} {range .items[*]}{.items}{end}", aliases={"items": "containers"}
    )
    assert template.render(document) == "inner inner"


@pytest.mark.parametrize("text", ["{.a.b}", ".a.b", "a.b", " {.a.b} ", "$.a.b", "@.a.b", "a['b']"])
def test_paths_are_read_as_kubectl_does(text: str) -> None:
    assert JsonPath(text).find({"a": {"b": 1}}) == [1]
