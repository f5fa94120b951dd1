"""Tables for a terminal: what matters first, long cells cut in the middle. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TextIO

from pycrictl.show.colours import painted
from pycrictl.show.displays.phrases import cut_middle, fill, width
from pycrictl.show.render import Screen, Table, write_lines
from pycrictl.units import escape

GAP: Final = 2
MOST: Final = 24
"""Columns that a cell may have before others are left out for it."""


def fitted_lines(table: Table, columns: int, *, header: bool = True) -> list[str]:
    """Return the lines of a table whose columns stand in the order of their importance.

    Those of ``table.whole`` are not cut if they fit at all; others that do not fit are left out.
    """
    names = table.header
    rows = [tuple(escape(cell) for cell in row) for row in table.rows]
    natural = [max(map(width, column)) for column in zip(names, *rows, strict=True)]
    shown: list[int] = []
    left = columns
    needed = [size + GAP for name, size in zip(names, natural, strict=True) if name in table.whole]
    whole = table.whole if sum(needed) <= columns + GAP else ()
    most = min(MOST, columns)
    for index, name in enumerate(names):
        if not any(row[index] for row in rows) and name in table.optional:
            continue
        least = natural[index] if name in whole else min(natural[index], most)
        gap = GAP if shown else 0
        if shown and gap + least > left:
            break
        shown.append(index)
        left -= gap + least
    widths = {
        index: natural[index] if names[index] in whole else min(natural[index], most)
        for index in shown
    }
    for index in shown:  # what is left goes to those that were cut
        more = min(max(left, 0), natural[index] - widths[index])
        widths[index] += more
        left -= more

    def line(cells: Sequence[str]) -> str:
        parts = [fill(cut_middle(cells[index], widths[index]), widths[index]) for index in shown]
        return (" " * GAP).join(parts).rstrip()

    return [line(names), *map(line, rows)] if header else [line(row) for row in rows]


def write_fitted(table: Table, out: TextIO, screen: Screen, *, header: bool = True) -> None:
    lines = fitted_lines(table, screen.columns, header=header)
    if screen.is_coloured and table.tones:
        start = len(lines) - len(table.rows)
        lines[start:] = map(painted, lines[start:], table.tones)
    out.write("".join(f"{line}\n" for line in lines))
    if header and table.footer:
        write_lines(["", table.footer], out)
