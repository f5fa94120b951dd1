"""Data as JSON, and numbers as Go writes them. Pure.

JSON is indented by two spaces; keys are sorted, except in message documents, which keep the order
of the proto file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from json.encoder import encode_basestring_ascii
from typing import Any


def document_json(document: Any, *, is_ordered: bool = False) -> str:
    """Return data as JSON; with sorted keys, ``<``, ``>`` and ``&`` are escaped as in Go."""
    text = json.dumps(whole(document), ensure_ascii=False, indent=2, sort_keys=not is_ordered)
    return _escaped(text) if is_ordered else _for_html(text)


def compact_json(document: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Return data as JSON on one line; ``default`` makes data of values of other types."""
    document = whole(document)
    options: dict[str, Any] = {"ensure_ascii": False, "separators": (",", ":"), "sort_keys": True}
    return _for_html(json.dumps(document, default=default, **options))


def whole(value: Any) -> Any:
    """Return data with numbers as Go writes them: without a zero fraction."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 1e21 else value
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    return [whole(item) for item in value] if isinstance(value, list) else value


def _for_html(text: str) -> str:
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return _escaped(text)


def _escaped(text: str) -> str:
    """Escape unprintable characters in the strings of a JSON ``text``, as ``escape`` does.

    JSON itself escapes only control characters below 0x20. Terminals act on others as well, and
    characters that are invisible or change the writing direction can hide text.
    """
    if text.isascii() and "\x7f" not in text:
        return text
    hidden = {ord(char) for char in set(text) if not char.isprintable() and char != "\n"}
    escapes = {code: encode_basestring_ascii(chr(code))[1:-1] for code in hidden}
    return text.translate(escapes | {0x7F: "\\u007f"})


def go_float(value: float) -> str:
    """Return a number as Go's ``%v`` does: ``1.5``, ``1e+06``, ``1e-05``."""
    texts = (f"{value:.{digits}e}" for digits in range(17))
    shortest = next(text for text in texts if float(text) == value)
    is_long = not -5 < int(shortest.partition("e")[2]) < 6
    return shortest if is_long else repr(value).removesuffix(".0")
