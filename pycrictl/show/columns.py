"""Columns of tables, prepared ones and ``custom-columns``, and the order of ``--sort-by``. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from pycrictl.base.errors import UsageError
from pycrictl.base.units import quote
from pycrictl.show.jsonpath import JsonPath, value_text
from pycrictl.show.protodata import Document
from pycrictl.show.render import Table

T = TypeVar("T")

ABSENT: Final = "<none>"
MIN_WIDTH: Final = 6
_COMMA: Final = r",(?![^\[\]]*\])"
"""A comma outside brackets."""

_DIGITS: Final = r"(?a)(\d+)"


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        path: the JSONPath of its field, for sorting; empty if it has none.
        cell: returns its text, given an object and the other known data.
        when: a name: the column is shown only if the table's ``wanted`` has it; if empty, always.
    """

    heading: str
    path: str
    cell: Callable[[Any, Any], str]
    when: str = ""


def table_of(
    columns: Iterable[Column],
    items: Iterable[Any],
    known: Any = None,
    *,
    wanted: Collection[str] = (),
    **more: Any,
) -> Table:
    """Return a row for each object; ``more`` are further fields of the table."""
    shown = [column for column in columns if not column.when or column.when in wanted]
    rows = [tuple(column.cell(item, known) for column in shown) for item in items]
    return Table(tuple(column.heading for column in shown), rows, **more)


def reordered(columns: Sequence[Column], *first: str) -> list[Column]:
    """Return the columns with these headings, then the others."""
    places = {heading: place for place, heading in enumerate(first)}
    return sorted(columns, key=lambda column: places.get(column.heading, len(first)))


def sort_paths(columns: Iterable[Column]) -> dict[str, str]:
    """Return the headings that ``--sort-by`` accepts, with their paths."""
    return {column.heading.lower(): column.path for column in columns if column.path}


class Columns:
    """The columns of ``NAME:PATH,NAME:PATH``; a comma in brackets belongs to its path."""

    def __init__(self, text: str) -> None:
        self._columns = [_column(part) for part in re.split(_COMMA, text)]

    def table(self, documents: Iterable[Document]) -> Table:
        header = tuple(name for name, _ in self._columns)
        rows = [
            tuple(
                ",".join(map(value_text, path.find(document))) or ABSENT
                for _, path in self._columns
            )
            for document in documents
        ]
        return Table(header, rows, min_width=MIN_WIDTH)


class SortKey:
    """An order by a path's first value; objects without one come first (descending: last).

    Digits in strings sort as numbers (``pod-9`` is before ``pod-10``), and so do 64-bit integers,
    which are strings in JSON. ``text`` is a heading or a path; with a leading ``-``, descending.
    """

    def __init__(self, text: str, headings: Mapping[str, str] | None = None) -> None:
        bare = text.removeprefix("-")
        self._text = text
        self.is_descending = bare != text
        heading = (headings or {}).get(bare.strip().lower())
        self._path = JsonPath(heading or bare)
        self._is_known = heading is not None  # it may be empty in every row

    def sorted(self, items: Sequence[T], documents: Iterable[Document]) -> list[T]:
        values = [self._path.find(document) for document in documents]
        self._is_known = self._is_known or any(values)
        if values and not self._is_known:
            raise UsageError(
                f"no listed object has the field {quote(self._text)}",
                hint="--output json shows the fields",
            )
        pairs = [(_natural(value), item) for value, item in zip(values, items, strict=True)]
        ordered = sorted(pairs, key=lambda pair: pair[0], reverse=self.is_descending)
        return [item for _, item in ordered]

    def ordered(self, table: Table, documents: Iterable[Document]) -> Table:
        """Return a table of sorted objects with their sort keys, to merge it with other hosts'."""
        keys = [_natural(self._path.find(document)) for document in documents]
        return table._replace(order=keys, is_descending=self.is_descending)


def _column(text: str) -> tuple[str, JsonPath]:
    name, colon, path = text.partition(":")
    if not colon or not name.strip():
        raise UsageError(
            f"{quote(text)} is not NAME:PATH",
            hint="write custom-columns=NAME:.metadata.name,ID:.id",
        )
    return name.strip(), JsonPath(path)


def _natural(values: Sequence[Any]) -> list[tuple[int, int, str]]:
    """Return a sort key in which digit sequences, of any length, compare as numbers."""
    if not values or values[0] is None:
        return []
    first = values[0]
    text = first if isinstance(first, str) else value_text(first)
    if isinstance(first, float):
        text = f"{first:.9f}"  # as many decimals for all
    order = []
    for index, part in enumerate(re.split(_DIGITS, text)):
        digits = part.lstrip("0")
        if part:
            order.append((1, len(digits), digits) if index % 2 else (2, 0, part))
    return order
