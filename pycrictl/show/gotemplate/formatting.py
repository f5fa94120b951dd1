"""Values as Go's ``fmt`` prints them, alone and by the verbs of ``printf``.

The verbs are those of crictl's recipes: ``%s %v %q %d %x %f %t %T``, with a width, ``-``, ``0``
and, for ``%f``, a precision. A verb applies to each part of a map or list. Numbers also fit ``%s``
and ``%q``, since those of the data are text in crictl, and whole ones ``%f``, since JSON writes 2.0
as 2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from pycrictl.show.jsontext import number_text
from pycrictl.units import quote

NO_VALUE: Final = "<no value>"
VERBS: Final = tuple("svqdxftT")

_TYPES: Final = {
    str: "string",
    bool: "bool",
    int: "int",
    float: "float64",
    dict: "map[string]interface {}",
    list: "[]interface {}",
}
_VERB: Final = re.compile(r"%([-0]*)([0-9]{0,3})(?:\.([0-9]{1,3}))?(.?)", re.DOTALL)
_ESCAPES: Final = dict(
    zip('\a\b\f\n\r\t\v\\"', (f"\\{char}" for char in 'abfnrtv\\"'), strict=True)
)


def plain(value: Any) -> str:
    """Return a value as an action prints it."""
    return NO_VALUE if value is None else inner(value)


def inner(value: Any) -> str:
    """Return a value as it stands within another one: ``map[a:1 b:[x y]]``."""
    if isinstance(value, dict | list):
        return _parts(value, inner)
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return "<nil>" if value is None else number_text(value)


def joined(values: Sequence[Any]) -> str:
    """Return what ``print`` prints: a space separates neighbours unless one is a string."""
    parts = []
    for index, value in enumerate(values):
        if index and not isinstance(value, str) and not isinstance(values[index - 1], str):
            parts.append(" ")
        parts.append(inner(value))
    return "".join(parts)


def formatted(template: str, values: Sequence[Any]) -> str:
    """Return what ``printf`` prints. A verb that does not fit its value is shown, as in Go.

    Raises:
        ValueError: a verb is not supported.
    """
    left = list(values)

    def printed(found: re.Match[str]) -> str:
        flags, width, precision, verb = found.groups()
        if verb == "%":
            return "%"
        if verb not in VERBS or (precision and verb != "f"):
            known = " ".join(f"%{each}" for each in VERBS)
            raise ValueError(f"{quote(found[0])} is not supported, only {known}")
        if not left:
            return f"%!{verb}(MISSING)"

        def part(value: Any) -> str:
            if isinstance(value, dict | list):
                return _parts(value, part)
            text = "<nil>" if value is None else _simple(verb, value, int(precision or 6))
            return f"%!{verb}({_typed(value)})" if text is None else padded(text)

        def padded(text: str) -> str:
            if "-" in flags:
                return text.ljust(int(width or 0))
            return text.zfill(int(width or 0)) if flags else text.rjust(int(width or 0))

        value = left.pop(0)
        if verb == "T":
            return padded(_TYPES.get(type(value), "<nil>"))
        return f"%!{verb}(<nil>)" if value is None and verb != "v" else part(value)

    text = _VERB.sub(printed, template)
    return f"{text}%!(EXTRA {', '.join(map(_typed, left))})" if left else text


def _parts(value: dict[str, Any] | list[Any], part: Callable[[Any], str]) -> str:
    if isinstance(value, list):
        return f"[{' '.join(map(part, value))}]"
    return f"map[{' '.join(f'{part(key)}:{part(value[key])}' for key in sorted(value))}]"


def _typed(value: Any) -> str:
    return "<nil>" if value is None else f"{_TYPES[type(value)]}={inner(value)}"


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _simple(verb: str, value: Any, digits: int) -> str | None:
    """Return a value without parts in the form of a verb; None if they do not fit."""
    match verb:
        case "v":
            return inner(value)
        case "s" if not isinstance(value, bool):
            return inner(value)
        case "q" if not isinstance(value, bool):
            return f'"{"".join(map(_escaped, inner(value)))}"'
        case "d" if type(value) is int:
            return str(value)
        case "x" if isinstance(value, str):
            return value.encode().hex()
        case "x" if type(value) is int:
            return format(value, "x")
        case "f" if is_number(value):
            return format(value, f".{digits}f")
        case "t" if isinstance(value, bool):
            return inner(value)
    return None


def _escaped(char: str) -> str:
    code = ord(char)
    if char in _ESCAPES or char.isprintable():
        return _ESCAPES.get(char, char)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
