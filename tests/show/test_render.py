from __future__ import annotations

from collections.abc import Callable
from io import StringIO

from hypothesis import given
from hypothesis import strategies as st

from pycrictl.show import render
from pycrictl.show.render import Block, Table

HOSTILE = "a\x1b[2J\n\t\r\x07\x9b31m\u202eb"
ESCAPED = "a\\x1b[2J\\n\\t\\r\\x07\\x9b31m\\u202eb"


def written(write: Callable[[StringIO], None]) -> str:
    out = StringIO()
    write(out)
    return out.getvalue()


def table_text(table: Table, *, header: bool = True) -> str:
    return written(lambda out: render.write_table(table, out, header=header))


def test_columns_are_twenty_wide_or_three_wider_than_the_longest_cell() -> None:
    table = Table(("A", "B", "C"), [("x" * 17, "y" * 18, "z" * 40), ("", "é", "")])
    assert table_text(table) == (
        f"A{' ' * 19}B{' ' * 20}C\n{'x' * 17}   {'y' * 18}   {'z' * 40}\n{' ' * 20}é{' ' * 20}\n"
    )


def test_names_cannot_steer_the_terminal() -> None:
    table = Table(("A", "B"), [(HOSTILE, HOSTILE)])
    assert table_text(table) == f"A{' ' * (len(ESCAPED) + 2)}B\n{ESCAPED}   {ESCAPED}\n"
    assert written(lambda out: render.write_lines([HOSTILE, "b"], out)) == f"{ESCAPED}\nb\n"
    block: Block = [(HOSTILE, HOSTILE), ("Labels", {HOSTILE: HOSTILE})]
    text = f"{ESCAPED}: {ESCAPED}\nLabels:\n\t{ESCAPED} -> {ESCAPED}\n"
    assert written(lambda out: render.write_block(block, out)) == text
    assert written(lambda out: render.write_blocks([block, block], out)) == f"{text}\n" * 2


@given(st.lists(st.tuples(st.text(), st.text()), max_size=5))
def test_a_row_is_always_one_line(rows: list[tuple[str, str]]) -> None:
    text = table_text(Table(("A", "B"), rows))
    assert len(text.split("\n")) == len(rows) + 2
    assert text.replace("\n", "").isprintable()


def test_what_templates_make_keeps_its_lines() -> None:
    text = written(lambda out: render.write_text("a\tb\n\x1b[31m\r\x85é\u200d", out))
    assert text == "a\tb\n\\x1b[31m\\r\\x85é\u200d\n"
