"""The functions of Go templates, and values as Go's ``fmt`` prints them. Pure.

They are Go's own (except ``call``) and crictl's ``json title lower upper``. They take values of
documents, whose numbers are ``Number``, and raise ``ValueError`` for unsuitable ones.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pycrictl.base.units import escape, quote
from pycrictl.show.datatext import compact_json, go_float

Value = Any


@dataclass(frozen=True, slots=True)
class Number:
    """A number in the data: text, as in crictl, that can also be compared with numbers."""

    text: str

    @property
    def value(self) -> Any:
        return json.loads(self.text)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __str__(self) -> str:
        return self.text


_KINDS: Final = {
    type(None): ("null", "<nil>"),
    str: ("a string", "string"),
    bool: ("a boolean", "bool"),
    int: ("a number", "int"),
    float: ("a number", "float64"),
    Number: ("a number", "json.Number"),
    dict: ("a map", "map[string]interface {}"),
    list: ("a list", "[]interface {}"),
}
"""Names of the types of values, in messages and in Go."""

_WORD: Final = r"\w+(?:['’.:]\w+)*"


# Printing


class _Directive(NamedTuple):
    """What follows ``%``; the precision includes its dot."""

    flags: str = ""
    width: str = ""
    precision: str = ""
    verb: str = "v"


_DIRECTIVE: Final = r"(?s)%([-+# 0]*)([0-9]{0,3})((?:\.[0-9]{0,3})?)(.?)"
_PLAIN: Final = _Directive()
_VERBS: Final[dict[type, dict[str, Callable[[Any], str] | None]]] = {
    str: {
        "s": str,
        "q": lambda text: '"' + escape(re.sub(r'(["\\])', r"\\\1", text)) + '"',
        "x": lambda text: text.encode().hex(),
        "X": lambda text: text.encode().hex().upper(),
    },
    bool: {"t": lambda value: str(value).lower()},
    int: {**dict.fromkeys("doxXc"), "b": "{:b}".format},
    float: {"g": go_float, **dict.fromkeys("eEfF")},
}
"""The verbs of each type except ``%T``; ``%v`` means the first. None: formatted as in Python."""


def plain(value: Value) -> str:
    return "<no value>" if value is None else _inner(value)


def _inner(value: Value, directive: _Directive = _PLAIN) -> str:
    """Return a value as printed inside another one: ``map[a:1 b:[x y]]``."""
    return "<nil>" if value is None else _formatted(value, directive)


def _formatted(value: Value, directive: _Directive) -> str:
    """Return a value as a directive prints it; in lists and maps it applies to what they hold."""
    flags, width, precision, verb = directive
    if isinstance(value, list) and verb != "T":
        return f"[{' '.join(_inner(item, directive) for item in value)}]"
    if isinstance(value, dict) and verb != "T":
        pairs = (
            f"{_inner(key, directive)}:{_inner(value[key], directive)}" for key in sorted(value)
        )
        return f"map[{' '.join(pairs)}]"
    if verb == "T":
        value, verb = _KINDS[type(value)][1], "s"
    elif value is None:
        return "<nil>" if verb == "v" else f"%!{verb}(<nil>)"
    elif isinstance(value, Number):
        value = str(value) if verb in "vsqxX" else value.value
        value = float(value) if verb in _VERBS[float] else value
    verbs = _VERBS[type(value)]
    verb = next(iter(verbs)) if verb == "v" else verb
    if verb not in verbs:
        return f"%!{verb}({_with_type(value, directive)})"
    write = verbs[verb]
    if write is None or (precision and verb == "g"):
        return str(f"%{flags}{width}{precision}{verb}" % value)
    if isinstance(value, str) and precision:
        value = value[: int(precision[1:] or 0)]
    if "-" in flags:
        return write(value).ljust(int(width or 0))
    return write(value).rjust(int(width or 0), "0" if "0" in flags else " ")


def _with_type(value: Value, directive: _Directive = _PLAIN) -> str:
    text = _inner(value, directive._replace(verb="v"))
    return text if value is None else f"{_KINDS[type(value)][1]}={text}"


def _print(*values: Value) -> str:
    """Return the values; a space separates neighbours unless one is a string."""
    parts = []
    for index, value in enumerate(values):
        if index and not {type(value), type(values[index - 1])} & {str, Number}:
            parts.append(" ")
        parts.append(_inner(value))
    return "".join(parts)


def _printf(template: Value, *values: Value) -> str:
    left = list(values)

    def printed(match: re.Match[str]) -> str:
        directive = _Directive(*match.groups())
        verb = directive.verb
        if verb in ("", "%"):
            return verb or "%!(NOVERB)"
        if verb in "*[0123456789" or (verb == "v" and "#" in directive.flags):
            raise ValueError(f"{quote(match[0])} is not supported")
        return _formatted(left.pop(0), directive) if left else f"%!{verb}(MISSING)"

    text = re.sub(_DIRECTIVE, printed, _text(template))
    return text + f"%!(EXTRA {', '.join(map(_with_type, left))})" if left else text


_HTML: Final = str.maketrans(
    {"\0": "\ufffd", '"': "&#34;", "'": "&#39;", "&": "&amp;", "<": "&lt;", ">": "&gt;"}
)


def _js(match: re.Match[str]) -> str:
    char = match[0]
    if char in "\\'\"":
        return "\\" + char
    return char if char > "~" and char.isprintable() else f"\\u{ord(char):04X}"


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode())


# Comparing


def _pair(*values: Value) -> list[Value]:
    """Return two values to compare; numbers of the data are compared with text as text."""
    is_text = any(isinstance(value, str) for value in values)
    pair = [
        (str(value) if is_text else value.value) if isinstance(value, Number) else value
        for value in values
    ]
    kinds = {float if type(value) is int else type(value) for value in pair}
    if len(kinds) > 1 or not kinds <= {str, float, bool}:
        raise ValueError(f"{' and '.join(map(kind_of, pair))} cannot be compared")
    return pair


def _is_equal(first: Value, second: Value) -> bool:
    if first is None or second is None:
        return first is second
    return bool(operator.eq(*_pair(first, second)))


# Parts


def _index(value: Value, *keys: Value) -> Value:
    for key in keys:
        if isinstance(value, dict):
            if not isinstance(key, str):
                raise ValueError(f"{kind_of(key)} is not a key of a map")
            value = value.get(key)
        elif isinstance(value, list | str):
            items: Any = value.encode() if isinstance(value, str) else value
            _check_indexes(key, limit=len(items) - 1)
            value = items[key]
        else:
            raise ValueError(f"{kind_of(value)} cannot be indexed")
    return value


def _slice(value: Value, *bounds: Value) -> Value:
    """Return a part of a list, or of the bytes of a string; a third bound has no effect."""
    items: Any = value.encode() if isinstance(value, str) else value
    if not isinstance(items, list | bytes):
        raise ValueError(f"{kind_of(value)} cannot be sliced")
    _check_indexes(*bounds, limit=len(items))
    bounds = (*bounds, *(0, len(items))[len(bounds) :])
    part = items[bounds[0] : bounds[1]]
    return part.decode(errors="replace") if isinstance(part, bytes) else part


def _check_indexes(*indexes: Value, limit: int) -> None:
    for index in indexes:
        if type(index) is not int:
            raise ValueError(f"{kind_of(index)} is not an index")
        if not 0 <= index <= limit:
            raise ValueError(f"index {index} is out of range")
    if list(indexes) != sorted(indexes):
        raise ValueError(f"index {indexes[0]} is greater than the next")


def _len(value: Value) -> int:
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, dict | list):
        return len(value)
    raise ValueError(f"{kind_of(value)} has no length")


# Texts


def _title(value: Value) -> str:
    return re.sub(_WORD, lambda word: word[0][0].title() + word[0][1:], _text(value))


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
    "lt": (lambda *values: operator.lt(*_pair(*values)), 2, 2),
    "le": (lambda *values: operator.le(*_pair(*values)), 2, 2),
    "gt": (lambda *values: operator.gt(*_pair(*values)), 2, 2),
    "ge": (lambda *values: operator.ge(*_pair(*values)), 2, 2),
    "len": (_len, 1, 1),
    "index": (_index, 1, None),
    "slice": (_slice, 1, 4),
    "print": (_print, 0, None),
    "printf": (_printf, 1, None),
    "println": (lambda *values: " ".join(map(_inner, values)) + "\n", 0, None),
    "html": (lambda *values: _print(*values).translate(_HTML), 0, None),
    "js": (lambda *values: re.sub(r"[\\'\"<>&=]|[^ -~]", _js, _print(*values)), 0, None),
    "urlquery": (
        lambda *values: re.sub("[^A-Za-z0-9_.~ -]", _percent, _print(*values)).replace(" ", "+"),
        0,
        None,
    ),
    "json": (lambda value: compact_json(value, default=lambda number: number.value) + "\n", 1, 1),
    "title": (_title, 1, 1),
    "lower": (lambda value: _text(value).lower(), 1, 1),
    "upper": (lambda value: _text(value).upper(), 1, 1),
}
"""Functions with their minimum and maximum numbers of arguments (None for no maximum)."""

DECIDING: Final = {"and": False, "or": True}
"""Functions that return the first argument with this truth value, and skip those after it."""
