"""JSON text of data. Pure.

Indented by two spaces, with one space after a colon. Documents have all keys sorted; those of
messages keep the order of the proto file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from decimal import Decimal
from json.encoder import encode_basestring as quote_string
from json.encoder import encode_basestring_ascii
from typing import Any, Final

INDENT: Final = "  "


def document_json(document: Any) -> str:
    """Return data as JSON with sorted keys; ``<``, ``>`` and ``&`` are escaped as in Go."""
    return _for_html(_text(document, "\n", sorted))


def ordered_json(document: Any) -> str:
    return _escape_controls(_text(document, "\n", iter))


def compact_json(document: Any) -> str:
    if isinstance(document, float):
        return number_text(document)
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return _for_html(text)


def number_text(value: int | float) -> str:
    """Return a finite number as Go writes it in JSON: ``1.5``, ``2``, ``0.00001``, ``1e+30``."""
    text = repr(value).removesuffix(".0")
    mantissa, e, exponent = text.partition("e")
    if not e:
        return text
    if -7 < int(exponent) < 21:
        return format(Decimal(text), "f")
    return f"{mantissa}e{int(exponent):+d}"


def _escape_controls(text: str) -> str:
    """Escape in the strings of a JSON ``text`` what is not printable, as ``units.escape`` does.

    JSON itself escapes the control characters below 0x20 only. Terminals act on others as well, and
    those that change the direction of writing, or are invisible, can hide text.
    """
    if text.isascii() and "\x7f" not in text:
        return text
    escapes = {ord(char): encode_basestring_ascii(char)[1:-1] for char in unprintable(text)}
    return text.translate(escapes | {0x7F: "\\u007f"})


def unprintable(text: str) -> set[str]:
    """Return the characters of ``text`` that are not printable, but for line breaks and tabs."""
    if text.isprintable():
        return set()
    return {char for char in set(text) if not char.isprintable() and char not in "\n\t"}


def _for_html(text: str) -> str:
    for char in "<>&\u2028\u2029":
        if char in text:
            text = text.replace(char, f"\\u{ord(char):04x}")
    return _escape_controls(text)


def _wrap(opening: str, parts: list[str], closing: str, newline: str) -> str:
    if not parts:
        return opening + closing
    inner = newline + INDENT
    return opening + inner + ("," + inner).join(parts) + newline + closing


def _text(value: Any, newline: str, order: Callable[[Iterable[str]], Iterable[str]]) -> str:
    if isinstance(value, str):
        return quote_string(value)
    inner = newline + INDENT
    if isinstance(value, dict):
        keys = order(value)
        parts = [f"{quote_string(key)}: {_text(value[key], inner, order)}" for key in keys]
        return _wrap("{", parts, "}", newline)
    if isinstance(value, list):
        return _wrap("[", [_text(item, inner, order) for item in value], "]", newline)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return number_text(value)
