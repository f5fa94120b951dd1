"""The functions of templates: Go's, and crictl's own ``json``, ``title``, ``lower``, ``upper``.

They take values of documents and raise ``ValueError`` with the reason if these do not fit.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote_plus

from pycrictl.show.gotemplate.formatting import NO_VALUE, formatted, inner, is_number, joined
from pycrictl.show.jsontext import compact_json
from pycrictl.units import quote

Value = Any

_WORD: Final = re.compile(r"\w+(?:['’.:]\w+)*")
_HTML: Final = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&#34;", "'": "&#39;", "\0": "\ufffd"}
)
_JS: Final = str.maketrans(
    {"\\": "\\\\", "'": "\\'", '"': '\\"'} | {char: f"\\u{ord(char):04X}" for char in "<>&="}
)


def _order(first: Value, second: Value) -> int:
    """Return a number below, at or above 0 as ``first`` is to ``second``."""
    is_text = isinstance(first, str) and isinstance(second, str)
    if not is_text and not (is_number(first) and is_number(second)):
        raise ValueError(f"{_named(first)} and {_named(second)} cannot be ordered")
    return int(first > second) - int(first < second)


def _is_equal(first: Value, second: Value) -> bool:
    """Compare two simple values; maps and lists can be compared with nil only."""
    if first is None or second is None:
        return first is second
    for value in (first, second):
        if isinstance(value, dict | list):
            raise ValueError(f"{_named(value)} cannot be compared")
    if type(first) is not type(second) and not (is_number(first) and is_number(second)):
        raise ValueError(f"{_named(first)} cannot be compared with {_named(second)}")
    return bool(first == second)


def _eq(first: Value, *others: Value) -> bool:
    if not others:
        raise ValueError("there is nothing to compare with")
    return any(_is_equal(first, other) for other in others)


def _index(value: Value, *keys: Value) -> Value:
    for key in keys:
        if isinstance(value, dict):
            if not isinstance(key, str):
                raise ValueError(f"{_named(key)} is not a key of a map")
            value = value.get(key)
        elif isinstance(value, list | str):
            parts = value.encode() if isinstance(value, str) else value  # Go counts bytes
            value = parts[_place(key, len(parts) - 1)]
        else:
            raise ValueError(f"{_named(value)} cannot be indexed")
    return value


def _slice(value: Value, *places: Value) -> Value:
    if not isinstance(value, list | str) or len(places) > 2:
        raise ValueError("it takes a list or a string, and at most two indices")
    parts = value.encode() if isinstance(value, str) else value
    start, end = 0, len(parts)
    if places:
        start = _place(places[0], end)
    if len(places) == 2:
        end = _place(places[1], end)
    if start > end:
        raise ValueError(f"index {start} is after {end}")
    part = parts[start:end]
    return part.decode(errors="replace") if isinstance(part, bytes) else part


def _place(value: Value, last: int) -> int:
    if type(value) is not int:
        raise ValueError(f"{_named(value)} is not an index")
    if not 0 <= value <= last:
        raise ValueError(f"index {value} is out of range")
    return value


def _len(value: Value) -> int:
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, dict | list):
        return len(value)
    raise ValueError(f"{_named(value)} has no length")


def _printf(template: Value, *values: Value) -> str:
    return formatted(_text(template), values)


def _title(value: Value) -> str:
    return _WORD.sub(lambda word: word[0][0].title() + word[0][1:], _text(value))


def _html(*values: Value) -> str:
    return _printed(values).translate(_HTML)


def _js(*values: Value) -> str:
    text = _printed(values).translate(_JS)
    return "".join(
        char if char.isprintable() or char == "\x7f" else f"\\u{ord(char):04X}" for char in text
    )


def _urlquery(*values: Value) -> str:
    return quote_plus(_printed(values))


def _printed(values: tuple[Value, ...]) -> str:
    return joined([NO_VALUE if value is None else value for value in values])


def _text(value: Value) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{_named(value)} is not a string")
    return value


def _named(value: Value) -> str:
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, list):
        return "a list"
    return quote(value) if isinstance(value, str) else inner(value)


FUNCTIONS: Final[dict[str, tuple[Callable[..., Value], int, int | None]]] = {
    "not": (lambda value: not value, 1, 1),
    "eq": (_eq, 1, None),
    "ne": (lambda first, second: not _is_equal(first, second), 2, 2),
    "lt": (lambda first, second: _order(first, second) < 0, 2, 2),
    "le": (lambda first, second: _order(first, second) <= 0, 2, 2),
    "gt": (lambda first, second: _order(first, second) > 0, 2, 2),
    "ge": (lambda first, second: _order(first, second) >= 0, 2, 2),
    "len": (_len, 1, 1),
    "index": (_index, 1, None),
    "slice": (_slice, 1, None),
    "print": (lambda *values: joined(values), 0, None),
    "println": (lambda *values: " ".join(map(inner, values)) + "\n", 0, None),
    "printf": (_printf, 1, None),
    "html": (_html, 0, None),
    "js": (_js, 0, None),
    "urlquery": (_urlquery, 0, None),
    "json": (lambda value: compact_json(value) + "\n", 1, 1),
    "title": (_title, 1, 1),
    "lower": (lambda value: _text(value).lower(), 1, 1),
    "upper": (lambda value: _text(value).upper(), 1, 1),
}
"""Functions, each with the least and the greatest number of its arguments."""

DECIDING: Final = {"and": False, "or": True}
"""Functions that take no further arguments after the first with this truth, which they return."""
