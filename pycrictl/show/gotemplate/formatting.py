"""Values as Go's ``fmt`` prints them without a verb."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pycrictl.show.jsontext import number_text

NO_VALUE: Final = "<no value>"

_TYPES: Final = {
    str: "string",
    bool: "bool",
    int: "int",
    float: "float64",
    dict: "map[string]interface {}",
    list: "[]interface {}",
}


def type_name(value: Any) -> str:
    """Return the Go type of a value."""
    return _TYPES.get(type(value), "<nil>")


def plain(value: Any) -> str:
    """Return a value as an action prints it."""
    return NO_VALUE if value is None else inner(value)


def inner(value: Any) -> str:
    """Return a value as it stands within another one: ``map[a:1 b:[x y]]``."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{inner(value[key])}' for key in sorted(value))}]"
    if isinstance(value, list):
        return f"[{' '.join(map(inner, value))}]"
    return "<nil>" if value is None else number_text(value)


def joined(values: Sequence[Any]) -> str:
    """Return what ``print`` prints: a space separates neighbours unless one is a string."""
    parts = []
    for index, value in enumerate(values):
        if index and not isinstance(value, str) and not isinstance(values[index - 1], str):
            parts.append(" ")
        parts.append(inner(value))
    return "".join(parts)
