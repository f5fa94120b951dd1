from __future__ import annotations

from collections.abc import Callable
from io import StringIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycrictl.show import render
from pycrictl.show.displays.block import clip
from pycrictl.show.displays.phrases import width
from pycrictl.show.render import (
    Block,
    Table,
    colours_are_wanted,
    fitted_lines,
    painted,
)

HOSTILE = "a\x1b[2J\n\t\r\x07\x9b31m\u202eb"
ESCAPED = "a\\x1b[2J\\n\\t\\r\\x07\\x9b31m\\u202eb"


def written(write: Callable[[StringIO], None]) -> str:
    out = StringIO()
    write(out)
    return out.getvalue()


def table_text(table: Table, *, header: bool = True) -> str:
    return written(lambda out: render.write_table(table, out, header=header))


def test_names_cannot_steer_the_terminal() -> None:
    table = Table(("A", "B"), [(HOSTILE, HOSTILE)])
    assert table_text(table) == f"A{' ' * (len(ESCAPED) + 2)}B\n{ESCAPED}   {ESCAPED}\n"
    assert written(lambda out: render.write_lines([HOSTILE, "b"], out)) == f"{ESCAPED}\nb\n"
    block: Block = [(HOSTILE, HOSTILE), ("Labels", {HOSTILE: HOSTILE})]
    text = f"{ESCAPED}: {ESCAPED}\nLabels:\n\t{ESCAPED} -> {ESCAPED}\n"
    assert written(lambda out: render.write_block(block, out)) == text
    assert written(lambda out: render.write_blocks([block, block], out)) == f"{text}\n" * 2


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.text(), st.text()), max_size=5))
def test_a_row_is_always_one_line(rows: list[tuple[str, str]]) -> None:
    text = table_text(Table(("A", "B"), rows))
    assert len(text.split("\n")) == len(rows) + 2
    assert text.replace("\n", "").isprintable()


def test_what_templates_make_keeps_its_lines() -> None:
    text = written(lambda out: render.write_text("a\tb\n\x1b[31m\r\x85é\u200d", out))
    assert text == "a\tb\n\\x1b[31m\\r\\x85é\u200d\n"


# On a terminal tables fit it, and important cells are whole

HEADER = ("NAME", "STATE", "EXIT", "POD", "IMAGE", "ID")
ROWS = [
    (
        "main-with-a-long-name",
        "Running",
        "",
        "web-7d9c6b4f5-x2x7k",
        "reg.example/shop/web:1.4",
        "1",
    ),
    ("b", "Exited", "3", "api", "reg.example/a/very/long/path/of/an/image:1.0.0-alpha.123456", "2"),
]
TABLE = Table(HEADER, ROWS, whole=("NAME", "STATE"), optional=("EXIT",))


@pytest.mark.parametrize("columns", [200, 120, 100, 80, 60, 40])
def test_every_line_fits_and_name_and_state_are_whole(columns: int) -> None:
    lines = fitted_lines(TABLE, columns)
    assert max(map(width, lines)) <= columns
    assert lines[1].startswith("main-with-a-long-name  Running")
    assert lines[2].split()[:2] == ["b", "Exited"]


@pytest.mark.parametrize("columns", [80, 40, 10, 1])
def test_a_name_longer_than_the_terminal_is_cut_all_the_same(columns: int) -> None:
    table = TABLE._replace(rows=[("x" * 253, *ROWS[0][1:])])
    assert max(map(width, fitted_lines(table, columns))) <= columns


def test_columns_go_from_the_end_and_what_is_left_is_given_back() -> None:
    assert fitted_lines(TABLE, 200)[0].split() == list(HEADER)
    assert fitted_lines(TABLE, 60)[0].split() == ["NAME", "STATE", "EXIT", "POD"]
    assert ROWS[1][4] in fitted_lines(TABLE, 200)[2]
    assert "…" in fitted_lines(TABLE, 95)[2]


def test_an_optional_column_needs_a_value() -> None:
    table = TABLE._replace(rows=ROWS[:1])
    assert "EXIT" not in fitted_lines(table, 200)[0]


@pytest.mark.parametrize(
    ("environ", "is_terminal", "wanted"),
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm"}, False, False),
        ({"TERM": "dumb"}, True, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, True),
    ],
)
def test_when_colours_are_wanted(environ: dict[str, str], is_terminal: bool, wanted: bool) -> None:
    assert colours_are_wanted(environ, is_terminal=is_terminal) is wanted
    assert painted("x", "") == "x"


@pytest.mark.parametrize(
    ("text", "columns", "rows", "lines"),
    [
        ("", 80, 24, []),
        ("a\n", 80, 24, ["a"]),
        ("a\n\nb\n", 80, 24, ["a", "", "b"]),
        ("a\nb\nc\n", 80, 3, ["a", "… 2 more"]),
        ("a\nb\nc\n", 80, 2, ["… 3 more"]),
        ("a\nb\nc\n", 3, 3, ["a", "… …"]),
        ("abcdef\n", 5, 24, ["abcd…"]),
        ("日本語日本\n", 8, 24, ["日本語…"]),
        ("a\tb\n", 20, 24, ["a       b"]),
    ],
)
def test_what_fits_in_place(text: str, columns: int, rows: int, lines: list[str]) -> None:
    assert clip(text, columns=columns, rows=rows) == lines
