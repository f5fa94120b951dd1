from __future__ import annotations

import json
import time
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.base.errors import ConfigError
from pycrictl.base.yamldata import parse

KEYS = st.text(max_size=80)  # in JSON one character takes up to twelve; libyaml's keys have 1,024

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


@given(st.lists(VALUES) | st.dictionaries(KEYS, VALUES), st.sampled_from([None, 1, "\t"]))
def test_json_is_read_as_json(value: Any, indent: int | str | None) -> None:
    assert parse(json.dumps(value, indent=indent)) == value


TEXTS: st.SearchStrategy[Any] = st.recursive(
    st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), TEXTS, min_size=1), st.booleans(), st.sampled_from(["'", '"']))
def test_quoted_yaml_is_read_as_yaml(value: Any, is_flow: bool, style: str) -> None:
    text = yaml.safe_dump(value, default_flow_style=is_flow, default_style=style)
    assert parse(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 5", 5),
        ("a: 0x10", 16),
        ("a: -9223372036854775808", -(2**63)),
        ("a: 18446744073709551615", 2**64 - 1),
        ("a: 0¹", "0¹"),
        ("a: --5", "--5"),
        ("a: 1e3", 1000.0),
        ("a: .5", 0.5),
        ("a: 1.10", 1.1),
        ("a: yes", True),
        ("a: ~", None),
        ("a: 'yes'", "yes"),
        ("a: !!str 5", "5"),
        ("a: 2024-01-01", "2024-01-01"),
        ("a: 1.2.3", "1.2.3"),
        ("a: <<", "<<"),
        ("a: |\n  one\n  two\n", "one\ntwo\n"),
        ('{"a": "\\ud83d\\ude00"}', "😀"),
        ('{"a":\t1e3}', 1000.0),
        ("{a: 1}", 1),
    ],
)
def test_scalars(text: str, value: object) -> None:
    (read,) = parse(text).values()
    assert (read, type(read)) == (value, type(value))


def test_scalars_as_text() -> None:
    assert parse("a: 010\nb: yes\nc: ~\nd: '~'\na: 2", is_typed=False) == {
        "a": "2", "b": "yes", "c": None, "d": "~",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ('{"a":\n', 1, "it is not JSON: "),
        ('{"a": 1\n "b": 2}', 2, "it is not JSON: "),
        ('{"a": "\\ud800"}', 1, "it is not JSON: found invalid Unicode character"),
        ("a: b: c", 1, "it is not YAML: mapping values are not allowed"),
        ('timeout: "1\n', 1, "it is not YAML: "),
        ("<<: *x", 1, "aliases are not supported"),
        ("\0" * 10, 1, "it is not YAML: "),
        ("a: 1\n\tb: 1", 2, "it is not YAML: "),
        ("a: \x1b[2J", 1, "it is not YAML: "),
        ("a: é\n\nb: \x07", 3, "it is not YAML: "),
        ("a: 1\nb: \udcff", 1, "it is not YAML: "),
        ("a: 1\n...\n%%%", 3, "it is not YAML: "),
        ("a: &x 1\nb: *x", 2, "aliases are not supported"),
        ("? [1]\n: 2", 1, "a key is not a scalar"),
        ("a: !!python/object/apply:os.system [x]", 1, "the tag"),
        ("a: !!binary aGk=", 1, "the tag"),
        ("[" * 200 + "]" * 200, 1, "nested too deeply"),
        ("a:\n" + "".join(" " * n + "- \n" for n in range(100)), 65, "nested too deeply"),
    ],
)
def test_what_is_refused(text: str, line: int, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert caught.value.message.startswith(f"line {line}: ")
    assert problem in caught.value.message
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    "text",
    [
        # Nine levels of nine aliases each, 3.8e8 strings when expanded.
        "a0: &a0 [lol]\n"
        + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)),
        "timeout: " + "[" * 500_000,
        "{" * 500_000,
        "? " * 300_000,
        "&a " * 300_000,
        "timeout: 1\n" * 95_000 + "timeout: {\n",
        "'" + "\n" * 1_000_000,
    ],
    ids=["aliases", "lists", "mappings", "keys", "anchors", "lines", "quote"],
)
def test_bombs_are_refused_quickly(text: str) -> None:
    started = time.process_time()
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert len(str(caught.value)) < 200
    assert time.process_time() - started < 60


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse(text)
    except ConfigError as error:
        line = int(error.message.removeprefix("line ").partition(":")[0])
        assert 1 <= line <= len(text.splitlines()) + 1
