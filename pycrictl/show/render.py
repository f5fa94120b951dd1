"""Results as text: tables, blocks of fields, lines, JSON and YAML, in crictl's forms.

Functions write to a given text stream, in one piece where possible, so a reader that stops early
gets whole lines. External text is escaped with ``escape`` (or the escapes of JSON and YAML),
so no name can control the terminal or forge a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TextIO

from pycrictl.base.environ import is_dumb
from pycrictl.base.units import escape
from pycrictl.show.datatext import document_json
from pycrictl.show.displays.phrases import cut_middle, fill, width
from pycrictl.show.records import records_of

Tone = Literal["", "bad", "warning", "quiet", "busy"]
"""The meaning of a colour; empty for no colour."""

_CODES: Final[Mapping[Tone, str]] = {"bad": "31", "warning": "33", "quiet": "2", "busy": "36"}
_SGR: Final = r"\x1b\[[0-9;]*m"

COLUMN_GAP: Final = 3
MIN_COLUMN_WIDTH: Final = 20

FITTED_GAP: Final = 2
MOST_FITTED: Final = 24
"""The width to which longer cells are cut on a terminal, unless space is left over."""

CLEAR_SCREEN: Final = "\x1b[2J\x1b[H"
"""Clears a terminal and moves to its upper left corner."""

CONTROL: Final = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]"
"""Matches lone surrogates, and control characters other than tabs and line breaks."""


class Table(NamedTuple):
    """Rows under headings; every row has one cell per heading, not escaped yet.

    ``min_width`` is the minimum width of a column with its gap. On terminals,
    columns in ``whole`` are not cut, and empty columns in ``optional`` are omitted. ``order`` has
    the sort key of each row if rows are sorted, to merge them with the rows of other hosts.
    """

    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    min_width: int = MIN_COLUMN_WIDTH
    whole: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    order: Sequence[Any] = ()
    is_descending: bool = False


Field = tuple[str, str | Mapping[str, str]]
"""A label and its value: text, or a map whose entries follow the label, one per line."""

Block = Sequence[Field]
"""The fields shown for one object, in order."""


def write_table(table: Table, out: TextIO, *, header: bool = True) -> None:
    """Write left-aligned columns; the last one is not padded.

    A column is as wide as its longest cell or heading, plus a gap. As in crictl, width is counted
    in characters, not in terminal columns.
    """
    if (records := records_of(out)) is not None:
        return records.put("table", table._asdict(), has_header=header, is_fitted=False)
    rows = [tuple(escape(cell) for cell in row) for row in table.rows]
    widths = [
        max(table.min_width, max(map(len, column)) + COLUMN_GAP)
        for column in zip(table.header, *rows, strict=True)
    ]
    widths[-1] = 0
    lines = [table.header, *rows] if header else rows
    out.write(
        "".join(
            "".join(cell.ljust(columns) for cell, columns in zip(line, widths, strict=True)) + "\n"
            for line in lines
        )
    )


def fitted_lines(table: Table, columns: int, *, header: bool = True) -> list[str]:
    """Return the lines of a table; columns that do not fit are left out from the end.

    Columns must be in order of importance. Those in ``table.whole`` are not cut if they all fit.
    """
    names = table.header
    rows = [tuple(escape(cell) for cell in row) for row in table.rows]
    natural = [max(map(width, column)) for column in zip(names, *rows, strict=True)]
    sizes = dict(zip(names, natural, strict=True))
    left = columns + FITTED_GAP
    whole = table.whole
    if sum(sizes[name] + FITTED_GAP for name in whole if name in sizes) > left:
        whole = ()
    widths: dict[int, int] = {}
    for index, (name, size) in enumerate(zip(names, natural, strict=True)):
        if name in table.optional and not any(row[index] for row in rows):
            continue
        least = size if name in whole else min(size, MOST_FITTED, columns)
        if widths and least + FITTED_GAP > left:
            break
        widths[index] = least
        left -= least + FITTED_GAP
    for index, least in widths.items():  # the rest goes to columns that were cut
        widths[index] += min(max(left, 0), natural[index] - least)
        left -= widths[index] - least

    def line(cells: Sequence[str]) -> str:
        parts = [fill(cut_middle(cells[index], size), size) for index, size in widths.items()]
        return (" " * FITTED_GAP).join(parts).rstrip()

    return [line(names), *map(line, rows)] if header else [line(row) for row in rows]


def write_fitted(table: Table, out: TextIO, columns: int, *, header: bool = True) -> None:
    if (records := records_of(out)) is not None:
        return records.put("table", table._asdict(), has_header=header, is_fitted=True)
    out.write("".join(f"{line}\n" for line in fitted_lines(table, columns, header=header)))


def write_ids(ids: Iterable[str], out: TextIO) -> None:
    if (records := records_of(out)) is not None:
        return records.put("ids", [*ids])
    return write_lines(ids, out)


def write_lines(lines: Iterable[str], out: TextIO) -> None:
    out.write("".join(f"{escape(line)}\n" for line in lines))


def write_text(text: str, out: TextIO) -> None:
    """Write a template's output and a line break; escape controls except line breaks and tabs."""
    out.write(re.sub(CONTROL, lambda match: escape(match[0]), text) + "\n")


def write_block(block: Block, out: TextIO, *, gap: str = " ") -> None:
    """Write ``Label: value`` lines; entries of maps are indented by a tab and sorted by key.

    As a record, a block without maps is a row of a table, with its labels as headings.
    """
    records = records_of(out)
    if records is not None and all(isinstance(value, str) for _, value in block):
        header = tuple(re.sub("(?<=[a-z])(?=[A-Z])", " ", label).upper() for label, _ in block)
        table = Table(header, [tuple(str(value) for _, value in block)], min_width=0)
        return write_table(table, out)
    lines = []
    for label, value in block:
        if isinstance(value, str):
            lines.append(f"{escape(label)}:{gap}{escape(value)}\n")
        else:
            lines.append(f"{escape(label)}:\n")
            lines += [f"\t{escape(key)} -> {escape(value[key])}\n" for key in sorted(value)]
    out.write("".join(lines))


def write_blocks(blocks: Iterable[Block], out: TextIO) -> None:
    for block in blocks:
        write_block(block, out)
        out.write("\n")


def write_groups(heading: str, groups: Mapping[str, Sequence[Block]], out: TextIO) -> None:
    """Write the name of each group and, below, the lines of its blocks, numbered by block.

    As a record, each block is a row; its first column, ``heading``, has the name of its group.
    """
    rows = [
        (name.strip(), *(str(value) for _, value in b)) for name in groups for b in groups[name]
    ]
    if rows and records_of(out) is not None:
        labels = next(block for blocks in groups.values() for block in blocks)
        header = (heading, *(label.upper() for label, _ in labels))
        return write_table(Table(header, rows, min_width=0), out)
    for name, blocks in groups.items():
        lines = [f"{text}[{n}]: {value}" for n, block in enumerate(blocks) for text, value in block]
        write_lines([name, *lines], out)


def write_json(document: Any, out: TextIO, *, is_ordered: bool = False) -> None:
    if (records := records_of(out)) is not None:
        return records.put("document", document, form="json")
    out.write(document_json(document, is_ordered=is_ordered) + "\n")


def write_yaml(document: Any, out: TextIO) -> None:
    """Write data as YAML; an empty line ends it."""
    if (records := records_of(out)) is not None:
        return records.put("document", document, form="yaml")
    from pycrictl.show.goyaml import document_yaml  # noqa: PLC0415 - not for tables

    out.write(document_yaml(document) + "\n")


# Colours for people: a few SGR codes (ECMA-48)


def colours_are_wanted(environ: Mapping[str, str], *, is_terminal: bool) -> bool:
    """See https://no-color.org."""
    return is_terminal and not environ.get("NO_COLOR") and not is_dumb(environ)


def painted(text: str, tone: Tone) -> str:
    return f"\x1b[{_CODES[tone]}m{text}\x1b[0m" if tone and text else text


def plain(text: str) -> str:
    return re.sub(_SGR, "", text)
