"""Results as text: tables, blocks of fields, lines, JSON and YAML, in crictl's forms.

Every function writes to a given text stream, in one piece where possible: a reader that goes
away early gets whole lines. What comes from outside passes through ``units.escape`` (or the
escapes of JSON and YAML), so that no name can control the terminal or forge a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO

from pycrictl.show import jsontext, yamltext
from pycrictl.units import escape

if TYPE_CHECKING:
    from pycrictl.show.colours import Tone

COLUMN_GAP: Final = 3
MIN_COLUMN_WIDTH: Final = 20

CLEAR_SCREEN: Final = "\x1b[2J\x1b[H"
"""Clears a terminal and moves to its upper left corner."""

_CONTROL: Final = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]"


class Table(NamedTuple):
    """Rows under headings; every row has a cell for each, as it comes from the runtime.

    ``min_width`` is the least width of a column with its gap, ``footer`` a line below. Of a
    terminal are headings of columns that are never cut (``whole``) or left out where all is empty
    (``optional``), and the colours of rows.
    """

    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    min_width: int = MIN_COLUMN_WIDTH
    footer: str = ""
    whole: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    tones: Sequence[Tone] = ()


class Screen(NamedTuple):
    columns: int
    is_coloured: bool = False


Field = tuple[str, str | Mapping[str, str]]
"""A label and its value: text, or a map whose entries stand below the label, one a line."""

Block = Sequence[Field]
"""All that is shown of one object, line by line."""


def write_table(table: Table, out: TextIO, *, header: bool = True) -> None:
    """Write left-aligned columns; the last one is not padded.

    A column is as wide as its longest cell, heading included, and a gap. Characters are counted,
    not terminal columns, as crictl does.
    """
    rows = [tuple(escape(cell) for cell in row) for row in table.rows]
    widths = [
        max(table.min_width, max(map(len, column)) + COLUMN_GAP)
        for column in zip(table.header, *rows, strict=True)
    ]
    widths[-1] = 0
    lines = [table.header, *rows] if header else rows
    out.write(
        "".join(
            "".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + "\n"
            for line in lines
        )
    )
    if header and table.footer:
        write_lines(["", table.footer], out)


def write_lines(lines: Iterable[str], out: TextIO) -> None:
    out.write("".join(f"{escape(line)}\n" for line in lines))


def write_text(text: str, out: TextIO) -> None:
    """Write what a template made, and a line break. Its lines and tabs are kept."""
    out.write(re.sub(_CONTROL, lambda match: escape(match[0]), text) + "\n")


def write_block(block: Block, out: TextIO) -> None:
    """Write ``Label: value`` lines; entries of maps are indented by a tab and sorted by key."""
    lines = []
    for label, value in block:
        if isinstance(value, str):
            lines.append(f"{escape(label)}: {escape(value)}\n")
        else:
            lines.append(f"{escape(label)}:\n")
            lines += [f"\t{escape(key)} -> {escape(value[key])}\n" for key in sorted(value)]
    out.write("".join(lines))


def write_blocks(blocks: Iterable[Block], out: TextIO) -> None:
    for block in blocks:
        write_block(block, out)
        out.write("\n")


def write_json(document: Any, out: TextIO, *, is_ordered: bool = False) -> None:
    text = jsontext.ordered_json(document) if is_ordered else jsontext.document_json(document)
    out.write(text + "\n")


def write_yaml(document: Any, out: TextIO) -> None:
    """Write data as YAML; an empty line ends it."""
    out.write(yamltext.document_yaml(document) + "\n")
