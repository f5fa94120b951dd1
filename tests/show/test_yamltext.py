from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.show import yamltext
from pycrictl.show.yamltext import document_yaml, natural_order
from tests.show.test_jsontext import HIDDEN

TEXT = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("-:#'\"|>&*!%@`[]{}, \n\t0123ex._")
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=20,
)


@pytest.fixture(params=["libyaml", "python"])
def _emitter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yamltext._dumper.cache_clear()
    if request.param == "python":
        monkeypatch.delattr(yaml, "CSafeDumper")
    yield
    yamltext._dumper.cache_clear()


@given(JSON)
def test_is_read_back_as_it_was(document: Any) -> None:
    assert yaml.safe_load(document_yaml(document)) == document


@pytest.mark.usefixtures("_emitter")
def test_styles() -> None:
    document = {
        "lines": "a\nb\n",
        "cut": "a\nb",
        "indented": " a\nb\n",
        "blank": "a\n\n",
        "quoted": "a: b",
        "dash": "- a",
        "apostrophe": "it's",
        "escape": "\x1b[31m",
        "next": "a\x85b",
        "long": "word " * 40 + "end",
        "empty": [{}, [], ""],
    }
    assert document_yaml(document) == (
        "apostrophe: it's\n"
        'blank: "a\\n\\n"\n'
        "cut: |-\n  a\n  b\n"
        "dash: '- a'\n"
        'empty:\n- {}\n- []\n- ""\n'
        'escape: "\\e[31m"\n'
        "indented: |2\n   a\n  b\n"
        "lines: |\n  a\n  b\n"
        f"long: {'word ' * 40}end\n"
        'next: "a\\Nb"\n'
        "quoted: 'a: b'\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        *("", "~", "null", "NULL", "y", "N", "Yes", "off", "true", "FALSE", "=", "<<"),
        *("0", "-1", "+12", "1_000", "0x1F", "0b1", "0o17", "017", "1.5", ".5", "1e3", "1.e+3"),
        *("1:20", "190:20:30.5", ".inf", "-.INF", ".NaN", "0101" * 16, "12e3456"),
        *("2026-11-20", "2026-1-2", "2026-11-20T21:07:55.1Z", "2026-11-20 21:07:55 +01:00"),
    ],
)
def test_what_looks_like_something_else_is_quoted(text: str) -> None:
    assert document_yaml({"a": text}) == f'a: "{text}"\n'


@pytest.mark.parametrize(
    "text",
    ["a", "1.2.3", "4350756c3f2d", "sha256:01", "127.0.0.1:5555/a:1", "<none>", "10.0.0.5", "a_1"],
)
def test_names_are_plain(text: str) -> None:
    assert document_yaml({"a": text}) == f"a: {text}\n"


def test_numbers() -> None:
    document = [1, 2.0, 1.5, 1e30, 9007199254740993, None, True]
    assert document_yaml(document) == "".join(
        f"- {text}\n" for text in ("1", "2", "1.5", "1e+30", "9007199254740993", "null", "true")
    )


def test_keys_are_in_natural_order() -> None:
    keys = ["", "-", "1", "2", "10", "A", "a", "a-", "a.", "a2", "a10", f"a{'9' * 5000}", "aa", "é"]
    shuffled = keys[::-1]
    assert sorted(shuffled, key=natural_order) == keys


@pytest.mark.usefixtures("_emitter")
@pytest.mark.parametrize("around", ["{}", "a {} b", "a\n{}\n", "é {}", "- {}: '{}"])
def test_hidden_characters_are_escaped(around: str) -> None:
    document = {around.format(HIDDEN, HIDDEN): [around.format(HIDDEN, "é")], "é": "→\tb"}
    text = document_yaml(document)
    assert not set(text) & set(HIDDEN)
    assert "é:" in text
    assert yaml.safe_load(text) == document
