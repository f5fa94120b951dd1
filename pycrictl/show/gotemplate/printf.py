"""The verbs of ``printf``, as Go's ``fmt`` has them.

A verb applies to each part of a map or list. Numbers also fit ``%s`` and ``%q``, since those of
the data are text in crictl, and whole ones the verbs of fractions, since JSON writes 2.0 as 2.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pycrictl.show.gotemplate.formatting import inner, type_name
from pycrictl.show.jsontext import number_text
from pycrictl.units import quote

MAX_WIDTH: Final = 1_000_000
"""Larger widths and precisions are an error, as in Go."""

_VERB: Final = re.compile(r"%([-+# 0]*)([0-9]*)(?:\.([0-9]*))?(.?)", re.DOTALL)
_CHOSEN: Final = re.compile(r"%[-+# 0-9.*\[\]]*\w?")
_BASES: Final = {"b": "b", "o": "o", "O": "o", "x": "x", "X": "X", "d": "d", "v": "d"}
_PREFIXES: Final = {"b": "0b", "x": "0x", "X": "0X"}
_FRACTIONS: Final = "eEfFgG"
_ESCAPES: Final = {char: f"\\{'abfnrtv'[i]}" for i, char in enumerate("\a\b\f\n\r\t\v")} | {
    "\\": "\\\\",
    '"': '\\"',
}
_RUNES: Final = 0x110000


@dataclass(frozen=True, slots=True)
class _Form:
    """What a verb and the flags and sizes before it ask for.

    Attributes:
        flags: of ``-+# 0``.
        width: least number of characters, 0 for any.
        precision: digits or, of texts, characters; None if not given.
        is_syntax: whether it is ``%#v``, the syntax of Go.
    """

    verb: str
    flags: str
    width: int
    precision: int | None
    is_syntax: bool = False

    def padded(self, text: str) -> str:
        if "-" in self.flags:
            return text.ljust(self.width)
        return text.rjust(self.width, "0" if "0" in self.flags else " ")

    def sign(self, is_negative: bool) -> str:
        return "-" if is_negative else "+" if "+" in self.flags else " " * (" " in self.flags)


def formatted(template: str, values: Sequence[Any]) -> str:
    """Return what ``printf`` prints. A verb that does not fit its value is shown, as in Go.

    Raises:
        ValueError: a width is out of range, or a form is not supported.
    """
    parts, position, used = [], 0, 0
    for match in _VERB.finditer(template):
        parts.append(template[position : match.start()])
        position = match.end()
        form = _form(match)
        if form.verb == "%":
            parts.append("%")
        elif not form.verb:
            parts.append("%!(NOVERB)")
        elif used == len(values):
            parts.append(f"%!{form.verb}(MISSING)")
        else:
            parts.append(_printed(form, values[used]))
            used += 1
    parts.append(template[position:])
    if used < len(values):
        parts.append(f"%!(EXTRA {', '.join(map(_with_type, values[used:]))})")
    return "".join(parts)


def _form(match: re.Match[str]) -> _Form:
    flags, width, precision, verb = match.groups()
    if verb in ("[", "*"):
        chosen = _CHOSEN.match(match.string, match.start())
        form = chosen[0] if chosen else match[0]
        raise ValueError(f"{quote(form)} is not supported: arguments are taken in order")
    is_syntax = verb == "v" and "#" in flags
    if verb == "v":
        flags = flags.replace("#", "").replace("+", "")
    return _Form(verb, flags, _size(width) or 0, _size(precision), is_syntax)


def _size(digits: str | None) -> int | None:
    if digits is None:
        return None
    size = int(digits[:8] or "0")
    if size > MAX_WIDTH:
        raise ValueError(f"width {digits[:8]} is out of range")
    return size


def _printed(form: _Form, value: Any) -> str:
    if value is None:
        return form.padded("<nil>") if form.verb in "vT" else _misfit(form, value)
    if form.verb == "T":
        return form.padded(type_name(value)[: form.precision])
    return _part(form, value)


def _part(form: _Form, value: Any) -> str:
    """Return a value in the form of the verb, whether it stands within another one or alone."""
    if value is None:
        return "interface {}(nil)" if form.is_syntax else "<nil>"
    if isinstance(value, dict | list):
        return _whole(form, value)
    text = _simple(form, value)
    return _misfit(form, value) if text is None else text


def _whole(form: _Form, value: dict[str, Any] | list[Any]) -> str:
    """Return a map or list each part of which has the form."""
    if form.verb == "p":
        kind = "map" if isinstance(value, dict) else "list"
        raise ValueError(f'"%p" of a {kind} is not supported')
    if isinstance(value, dict):
        parts = [f"{_part(form, key)}:{_part(form, value[key])}" for key in sorted(value)]
    else:
        parts = [_part(form, item) for item in value]
    if form.is_syntax:
        return f"{type_name(value)}{{{', '.join(parts)}}}"
    return f"{'map' if isinstance(value, dict) else ''}[{' '.join(parts)}]"


def _misfit(form: _Form, value: Any) -> str:
    plain_form = replace(form, verb="v", flags=form.flags.replace("#", ""))
    return f"%!{form.verb}({_with_type(value, plain_form)})"


def _with_type(value: Any, form: _Form | None = None) -> str:
    if value is None:
        return "<nil>"
    return f"{type_name(value)}={_part(form, value) if form else inner(value)}"


def _simple(form: _Form, value: str | bool | float) -> str | None:
    """Return a value without parts in the form of the verb, or None if they do not fit."""
    if isinstance(value, bool):
        return form.padded(inner(value)) if form.verb in "tv" else None
    if isinstance(value, str):
        return _string(form, value)
    if form.verb in "sq":
        return _string(form, inner(value))
    if form.verb in _FRACTIONS or (isinstance(value, float) and form.verb in "vbxX"):
        return _fraction(form, float(value))
    return _integer(form, value) if isinstance(value, int) else None


# Strings


def _string(form: _Form, value: str) -> str | None:
    if form.verb == "q" or form.is_syntax:
        return form.padded(_quoted(value[: form.precision], form.flags))
    if form.verb in "sv":
        return form.padded(value[: form.precision])
    return form.padded(_hexadecimal(form, value)) if form.verb in "xX" else None


def _quoted(text: str, flags: str) -> str:
    if "#" in flags and all(_stands_in_backquotes(char) for char in text):
        return f"`{text}`"
    return f'"{"".join(_escaped(char, is_ascii="+" in flags) for char in text)}"'


def _stands_in_backquotes(char: str) -> bool:
    return char == "\t" or (char >= " " and char not in "`\x7f\ufeff")


def _escaped(char: str, *, is_ascii: bool) -> str:
    code = ord(char)
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable() and not (is_ascii and code > 0x7F):
        return char
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _hexadecimal(form: _Form, value: str) -> str:
    data = value.encode()[: form.precision]
    prefix = "0x" if "#" in form.flags and data else ""
    parts = [f"{byte:02x}" for byte in data]
    text = f" {prefix}".join(parts) if " " in form.flags else "".join(parts)
    return f"{prefix}{text}".upper() if form.verb == "X" else f"{prefix}{text}"


# Numbers


def _integer(form: _Form, value: int) -> str | None:
    if form.verb in "cU":
        return _character(form, value)
    if form.verb not in _BASES:
        return None
    digits = format(abs(value), _BASES[form.verb])
    sign = form.sign(value < 0)
    if form.precision is not None:
        digits = digits.rjust(form.precision, "0") if value or form.precision else ""
        if not digits:
            return " " * form.width
    elif "0" in form.flags and "-" not in form.flags:
        digits = digits.rjust(form.width - len(sign), "0")
    # Only the sign is counted before the zeros, not the prefix.
    prefix = _PREFIXES.get(form.verb, "") if "#" in form.flags else ""
    if "#" in form.flags and form.verb in "oO" and not digits.startswith("0"):
        prefix = "0"
    if form.verb == "O":
        prefix = f"0o{prefix}"
    return replace(form, flags=form.flags.replace("0", "")).padded(f"{sign}{prefix}{digits}")


def _character(form: _Form, value: int) -> str:
    is_character = 0 <= value < _RUNES and not 0xD800 <= value < 0xE000
    char = chr(value) if is_character else "\ufffd"
    if form.verb == "c":
        return form.padded(char)
    text = f"U+{value % 2**64:0{max(form.precision or 0, 4)}X}"
    if "#" in form.flags and is_character and char.isprintable():
        text += f" '{char}'"
    return replace(form, flags=form.flags.replace("0", "")).padded(text)


def _fraction(form: _Form, value: float) -> str:
    is_negative = repr(value).startswith("-")  # so is -0.0
    sign, text = form.sign(is_negative), _digits(form, abs(value))
    if "0" in form.flags and "-" not in form.flags:
        text = text.rjust(form.width - len(sign), "0")
    return form.padded(sign + text)


def _digits(form: _Form, value: float) -> str:
    verb, precision = form.verb, form.precision
    alternate = "#" if "#" in form.flags else ""
    if verb in "bxX" or (verb in "gG" and alternate):
        raise ValueError(f'"%{alternate}{verb}" of a fraction is not supported')
    if precision is None and verb == "v":
        return number_text(value)
    if precision is None and verb in "gG":
        text = _shortest(value)
        return text.upper() if verb == "G" else text
    size = 6 if precision is None else precision
    return format(value, f"{alternate}.{size}{'g' if verb == 'v' else verb}")


def _shortest(value: float) -> str:
    """Return as many digits as the number needs; from 1e+06 on with an exponent."""
    mantissa = repr(value).partition("e")[0]
    count = len(mantissa.replace(".", "").strip("0")) or 1
    text = format(value, f".{count - 1}e")
    exponent = int(text.partition("e")[2])
    return format(value, f".{max(count - 1 - exponent, 0)}f") if -4 <= exponent < 6 else text
