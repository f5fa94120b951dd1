"""The functions of Go templates, and values as Go's ``fmt`` prints them. Pure.

Go's own ``not eq ne lt le gt ge and or len index print printf``, and crictl's ``json title lower
upper``. They take values of documents and raise ``ValueError`` for unsuitable ones. The verbs of
``printf`` are ``%s %v %q %d %T``, with a width and ``-``. ``%s`` and ``%q`` accept any value, since
numbers in the data are strings in crictl.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from pycrictl.show.datatext import compact_json, whole
from pycrictl.units import quote

Value = Any

VERBS: Final = "svqdT"
_VERB: Final = re.compile(r"%(-?)([1-9][0-9]{0,2})?(.?)", re.DOTALL)
_KINDS: Final = {
    type(None): ("null", "<nil>"),
    str: ("a string", "string"),
    bool: ("a boolean", "bool"),
    int: ("a number", "int"),
    float: ("a number", "float64"),
    dict: ("a map", "map[string]interface {}"),
    list: ("a list", "[]interface {}"),
}
"""Names of the types of values, in messages and in Go."""

_WORD: Final = re.compile(r"\w+(?:['’.:]\w+)*")


def plain(value: Value) -> str:
    return "<no value>" if value is None else _inner(value)


def _inner(value: Value) -> str:
    """Return a value as printed inside another one: ``map[a:1 b:[x y]]``."""
    if isinstance(value, list):
        return f"[{' '.join(map(_inner, value))}]"
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{_inner(value[key])}' for key in sorted(value))}]"
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return "<nil>" if value is None else str(whole(value))


def _print(*values: Value) -> str:
    """Return the values; a space separates neighbours unless one is a string."""
    parts = []
    for index, value in enumerate(values):
        if index and not isinstance(value, str) and not isinstance(values[index - 1], str):
            parts.append(" ")
        parts.append(_inner(value))
    return "".join(parts)


def _printf(template: Value, *values: Value) -> str:
    left = list(values)

    def printed(found: re.Match[str]) -> str:
        is_left, width, verb = found.groups()
        if verb == "%":
            return "%"
        if not verb or verb not in VERBS:
            known = " ".join(f"%{each}" for each in VERBS)
            raise ValueError(f"{quote(found[0])} is not supported, only {known}")
        if not left:
            raise ValueError(f"{quote(found[0])} has no value")
        value = left.pop(0)
        if verb == "d" and type(value) is not int:
            raise ValueError(f"{kind_of(value)} does not fit %d")
        text = _KINDS[type(value)][1] if verb == "T" else _inner(value)
        text = compact_json(text) if verb == "q" else text
        return text.ljust(int(width or 0)) if is_left else text.rjust(int(width or 0))

    text = _VERB.sub(printed, _text(template))
    if left:
        raise ValueError(f"{kind_of(left[0])} has no verb")
    return text


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _order(first: Value, second: Value) -> int:
    """Return -1, 0 or 1 if ``first`` is less than, equal to or greater than ``second``."""
    is_text = isinstance(first, str) and isinstance(second, str)
    if not is_text and not (_is_number(first) and _is_number(second)):
        raise ValueError(f"{kind_of(first)} and {kind_of(second)} cannot be ordered")
    return int(first > second) - int(first < second)


def _is_equal(first: Value, second: Value) -> bool:
    """Compare two simple values; maps and lists can be compared with nil only."""
    if first is None or second is None:
        return first is second
    for value in (first, second):
        if isinstance(value, dict | list):
            raise ValueError(f"{kind_of(value)} cannot be compared")
    if type(first) is not type(second) and not (_is_number(first) and _is_number(second)):
        raise ValueError(f"{kind_of(first)} cannot be compared with {kind_of(second)}")
    return bool(first == second)


def _index(value: Value, *keys: Value) -> Value:
    for key in keys:
        if isinstance(value, dict):
            if not isinstance(key, str):
                raise ValueError(f"{kind_of(key)} is not a key of a map")
            value = value.get(key)
        elif isinstance(value, list):
            if type(key) is not int:
                raise ValueError(f"{kind_of(key)} is not an index")
            if not 0 <= key < len(value):
                raise ValueError(f"index {key} is out of range")
            value = value[key]
        else:
            raise ValueError(f"{kind_of(value)} cannot be indexed")
    return value


def _len(value: Value) -> int:
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, dict | list):
        return len(value)
    raise ValueError(f"{kind_of(value)} has no length")


def _title(value: Value) -> str:
    return _WORD.sub(lambda word: word[0][0].title() + word[0][1:], _text(value))


def _text(value: Value) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{kind_of(value)} is not a string")
    return value


def kind_of(value: Value) -> str:
    return _KINDS[type(value)][0]


FUNCTIONS: Final[dict[str, tuple[Callable[..., Value], int, int | None]]] = {
    "not": (lambda value: not value, 1, 1),
    "eq": (lambda first, *others: any(_is_equal(first, other) for other in others), 2, None),
    "ne": (lambda first, second: not _is_equal(first, second), 2, 2),
    "lt": (lambda first, second: _order(first, second) < 0, 2, 2),
    "le": (lambda first, second: _order(first, second) <= 0, 2, 2),
    "gt": (lambda first, second: _order(first, second) > 0, 2, 2),
    "ge": (lambda first, second: _order(first, second) >= 0, 2, 2),
    "len": (_len, 1, 1),
    "index": (_index, 1, None),
    "print": (_print, 0, None),
    "printf": (_printf, 1, None),
    "json": (lambda value: compact_json(value) + "\n", 1, 1),
    "title": (_title, 1, 1),
    "lower": (lambda value: _text(value).lower(), 1, 1),
    "upper": (lambda value: _text(value).upper(), 1, 1),
}
"""Functions with their minimum and maximum numbers of arguments (None for no maximum)."""

DECIDING: Final = {"and": False, "or": True}
"""Functions that return the first argument with this truth value, and skip those after it."""
