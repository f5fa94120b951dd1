"""Values as Go's ``fmt`` prints them: ``print``, ``println`` and the verbs of ``printf``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from json.encoder import encode_basestring as quote_string
from typing import Any, Final

from pycrictl.show.jsontext import number_text

NO_VALUE: Final = "<no value>"

MAX_WIDTH: Final = 1_000_000
"""Widths and precisions beyond it are an error, as in Go."""

_VERB: Final = re.compile(r"%([-+# 0]*)([0-9]*)(?:\.([0-9]*))?(.?)", re.DOTALL)
_TYPES: Final = {
    str: "string",
    bool: "bool",
    int: "int",
    float: "float64",
    dict: "map[string]interface {}",
    list: "[]interface {}",
}


def type_name(value: Any) -> str:
    """The Go type of a value."""
    return _TYPES.get(type(value), "<nil>")


def plain(value: Any) -> str:
    """A value as an action prints it."""
    return NO_VALUE if value is None else inner(value)


def inner(value: Any) -> str:
    """A value as it stands within another one: ``map[a:1 b:[x y]]``."""
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
    """What ``print`` prints: a space parts neighbours of which none is a string."""
    parts = []
    for index, value in enumerate(values):
        if index and not isinstance(value, str) and not isinstance(values[index - 1], str):
            parts.append(" ")
        parts.append(inner(value))
    return "".join(parts)


def formatted(template: str, values: Sequence[Any]) -> str:
    """What ``printf`` prints. A verb that does not fit its value is shown, as in Go.

    Raises:
        ValueError: a width is out of range.
    """
    parts, position, used = [], 0, 0
    for match in _VERB.finditer(template):
        parts.append(template[position : match.start()])
        position = match.end()
        flags, width_text, precision_text, verb = match.groups()
        width, precision = _size(width_text), _size(precision_text)
        if verb == "%":
            parts.append("%")
        elif not verb:
            parts.append("%!(NOVERB)")
        elif used == len(values):
            parts.append(f"%!{verb}(MISSING)")
        else:
            parts.append(_verb(verb, flags, width, precision, values[used]))
            used += 1
    parts.append(template[position:])
    if used < len(values):
        extra = ", ".join(f"{type_name(value)}={inner(value)}" for value in values[used:])
        parts.append(f"%!(EXTRA {extra})")
    return "".join(parts)


def _size(digits: str | None) -> int | None:
    if digits is None:
        return None
    size = int(digits[:8] or "0")
    if size > MAX_WIDTH:
        raise ValueError(f"width {digits[:8]} is out of range")
    return size


def _verb(verb: str, flags: str, width: int | None, precision: int | None, value: Any) -> str:
    text = _converted(verb, flags, precision, value)
    if text is None:
        return f"%!{verb}({type_name(value)}={inner(value)})"
    missing = (width or 0) - len(text)
    if missing <= 0:
        return text
    if "-" in flags:
        return text + " " * missing
    if "0" in flags and isinstance(value, int | float) and verb not in "vsq":
        sign = text[:1] if text[:1] in "+- " else ""
        return sign + "0" * missing + text[len(sign) :]
    return " " * missing + text


def _converted(verb: str, flags: str, precision: int | None, value: Any) -> str | None:
    """The value in the form of the verb, or None if they do not fit."""
    if verb == "T":
        return type_name(value)
    if verb == "v":
        return _quoted_inside(value) if "#" in flags else inner(value)
    if verb in "sq" and not isinstance(value, dict | list | bool | None):
        # Numbers of the data are text in Go, so that %s fits them.
        text = inner(value)[:precision]
        return quote_string(text) if verb == "q" else text
    if verb == "s" and isinstance(value, list):
        return inner(value)
    if isinstance(value, bool):
        return inner(value) if verb == "t" else None
    if isinstance(value, str):
        hexadecimal = value.encode().hex()
        return {"x": hexadecimal, "X": hexadecimal.upper()}.get(verb)
    if isinstance(value, int):
        return _integer(verb, flags, value) or _float(verb, flags, precision, value)
    if isinstance(value, float):
        return _float(verb, flags, precision, value)
    return None


def _integer(verb: str, flags: str, value: int) -> str | None:
    if verb == "c":
        return chr(value) if 0 <= value < 0x110000 else "\ufffd"
    if verb not in "dxXob":
        return None
    alternate = "#" if "#" in flags and verb != "d" else ""
    text = format(value, _sign(flags) + alternate + verb)
    return text.replace("0o", "0", 1) if alternate and verb == "o" else text


def _float(verb: str, flags: str, precision: int | None, value: float) -> str | None:
    if verb not in "feEgG":
        return None
    try:
        if verb in "gG" and precision is None:
            return _sign(flags).strip("-") * (value >= 0) + number_text(float(value))
        return format(float(value), f"{_sign(flags)}.{6 if precision is None else precision}{verb}")
    except OverflowError:
        return None


def _sign(flags: str) -> str:
    return "+" if "+" in flags else " " if " " in flags else "-"


def _quoted_inside(value: Any) -> str:
    """The form of ``%#v``, but for Go's type names: data with its strings in quotes."""
    if isinstance(value, str):
        return quote_string(value)
    if isinstance(value, dict):
        parts = (f"{quote_string(key)}:{_quoted_inside(value[key])}" for key in sorted(value))
        return f"map[string]interface {{}}{{{', '.join(parts)}}}"
    if isinstance(value, list):
        return f"[]interface {{}}{{{', '.join(map(_quoted_inside, value))}}}"
    return inner(value)
