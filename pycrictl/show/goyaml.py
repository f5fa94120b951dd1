"""Data as YAML, byte for byte as go-yaml 2, the library of crictl, writes it. Pure.

Mappings and sequences are in block style, with dashes in their parent's column. Strings are plain
if they are read back as strings, in literal style if they have several lines, and quoted otherwise.
A line that is longer than 80 columns is broken at the next single space. Unlike in go-yaml, all
unprintable characters are escaped.
"""

from __future__ import annotations

import math
import os
import re
from datetime import datetime
from functools import cmp_to_key
from typing import Any, Final

from pycrictl.show.datatext import go_float

_WIDTH: Final = 80
_LONGEST_KEY_BYTES: Final = 128
"""A longer key, or one of several lines, is written after a question mark."""

_TYPED: Final = re.compile(
    r"|~|null|Null|NULL|[yYnN]|[yY]es|YES|[nN]o|NO|[tT]rue|TRUE|[fF]alse|FALSE|[oO]n|ON|[oO]ff|OFF"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)|0b[-+](?:_*[01]){1,63}_*"
    r"|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?"  # sexagesimal
)
_DATE: Final = re.compile(
    r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})"
    r"(?:([Tt]| +)([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2})(?:[.,][0-9]+)?"
    r"(Z|[-+](?:[01][0-9]|2[0-4]):(?:[0-5][0-9]|60))?)?"
)
_PREFIXED: Final = re.compile(r"([-+]?)0(?:[xX][0-9a-fA-F]+|[bB][01]+|[oO][0-7]+)")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_PLAIN: Final = re.compile(
    r"\A(?:---|\.\.\.|[ #,\[\]{}&*!|>'\"%@`]|[-?](?: |\Z))|:(?: |\Z)| #| \Z"
)
_ESCAPED: Final = '\0\a\b\t\n\v\f\r\x1b"\\\x85\xa0\u2028\u2029'
_ESCAPES: Final = dict(zip(_ESCAPED, '0abtnvfre"\\N_LP', strict=True))


def document_yaml(document: Any) -> str:
    return _node(document, 0, 0) + "\n"


def _node(value: Any, indent: int, column: int) -> str:
    """Return a value that starts in ``column``; its other lines are indented by ``indent``."""
    line = "\n" + " " * indent
    if isinstance(value, dict) and value:
        keys = sorted(value, key=cmp_to_key(_key_order))
        return line.join(_entry(key, value[key], indent) for key in keys)
    if isinstance(value, list) and value:
        return line.join("- " + _node(item, indent + 2, indent + 2) for item in value)
    if isinstance(value, str):
        return _string(value, line, column)
    if isinstance(value, float):
        is_whole = value.is_integer() and -(2**63) <= value < 2**64
        return str(int(value)) if is_whole else go_float(value)
    return "null" if value is None else str(value).lower()


def _entry(key: str, value: Any, indent: int) -> str:
    if "\n" in key or len(key.encode()) > _LONGEST_KEY_BYTES:
        texts = (_node(part, indent + 2, indent + 2) for part in (key, value))
        return f"\n{' ' * indent}: ".join(["? " + next(texts), next(texts)])
    name = _string(key, "", -math.inf)
    if value and isinstance(value, dict | list):
        inner = indent + 2 if isinstance(value, dict) else indent
        return f"{name}:\n{' ' * inner}{_node(value, inner, inner)}"
    return f"{name}: {_node(value, indent + 2, indent + len(name) + 2)}"


def _string(text: str, line: str, column: float) -> str:
    """Return a string that starts in ``column``; ``line`` starts another line of it."""
    lines = text.removesuffix("\n").split("\n")
    is_special = not "".join(lines).isprintable() or max(text, default="") > "\uffff"
    if "\n" in text and not is_special and not re.search(r" (?:\n|\Z)", text):
        indent = "2" if text[0] in " \n" else ""
        end = "-" if text[-1] != "\n" else "" if lines[-1] else "+"
        return f"|{indent}{end}" + "".join(line + part if part else "\n" for part in lines)
    quote, breaks = "", "(?<=[^ ]) (?=[^ ])"
    if "\n" in text or is_special or _is_typed(text):
        quote, breaks, text = '"', "(?<=[^ ]) (?=.)", "".join(map(_yaml_char, text))
    elif _NOT_PLAIN.search(text):
        quote, text = "'", text.replace("'", "''")
    first, *words = re.split(breaks, text)
    parts = [quote, first]
    column += len(quote) + len(first)
    for word in words:
        is_folded = column > _WIDTH
        space = line + "\\" * (word[0] == " ") if is_folded else " "
        column = (len(space) - 1 if is_folded else column + 1) + len(word)
        parts += [space, word]
    return "".join([*parts, quote])


def _yaml_char(char: str) -> str:
    """Return a character as it stands in double quotes."""
    if char.isprintable() and char <= "\uffff" and char not in '"\\':
        return char
    code = ord(char)
    number = f"x{code:02X}" if code < 0x100 else f"u{code:04X}"
    return "\\" + _ESCAPES.get(char, number if code < 0x10000 else f"U{code:08X}")


def _is_typed(text: str) -> bool:
    """Return whether a plain ``text`` would be read as another type, such as a number."""
    if _TYPED.fullmatch(text) or _is_date(text):
        return True
    separators = "(?<=[0-9])_(?=[0-9])" if text[0] == "." else "_"
    number = text[0] + re.sub(separators, "", text[1:])
    if prefixed := _PREFIXED.fullmatch(number):
        return -(1 << 63) <= int(number, 0) < 1 << (63 if prefixed[1] else 64)
    return _FLOAT.fullmatch(number) is not None and math.isfinite(float(number))


def _is_date(text: str) -> bool:
    match = _DATE.fullmatch(text)
    if match is None or bool(match[8]) != (match[4] in ("T", "t")):
        return False
    year, *rest = (int(part or 0) for part in match.group(1, 2, 3, 5, 6, 7))
    try:
        datetime(year or 2000, *rest)  # type: ignore[arg-type]  # five numbers
    except ValueError:
        return False
    return True


def _key_order(first: str, second: str) -> int:
    """Compare two keys: letters come last, and digits are compared as numbers."""
    common = len(os.path.commonprefix([first, second]))  # noqa: RUF071 - not of paths
    left, right = first[common:], second[common:]
    if not left or not right:
        return len(left) - len(right)
    if left[0].isalpha() or right[0].isalpha():
        return -1 if (left[0].isalpha(), left[0]) < (right[0].isalpha(), right[0]) else 1
    # Leading zeros do not count, but zeros after other digits do.
    is_within = "0" in (left[0], right[0]) and re.search(r"[1-9][0-9]*\Z", first[:common])

    def rank(rest: str) -> tuple[int, str, int, str]:
        digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
        number = "1" + digits if is_within else digits.lstrip("0")
        return len(number), number, len(digits), rest[0]

    return -1 if rank(left) < rank(right) else 1
