"""The words and numbers of progress displays: sizes, times, names cut to fit. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from pycrictl.units import escape, format_bytes

DIGEST_WIDTH: Final = 12
TEXT_LIMIT: Final = 300
"""Longest text from outside that is worth a place in a message."""

_UNIT_LETTERS: Final = "BKMGTPEZY"
_ORDINALS: Final = {1: "st", 2: "nd", 3: "rd"}


def clean(text: str) -> str:
    """Text from outside, made one short line that cannot steer a terminal."""
    # Cut first: to look through 100 MB would take seconds.
    words = escape(" ".join(text[: TEXT_LIMIT + 1].split()))
    return words if len(words) <= TEXT_LIMIT else words[: TEXT_LIMIT - 3] + "..."


def short_digest(digest: str) -> str:
    """The first digits of ``sha256:…``, as people tell layers apart."""
    return clean(digest.rpartition(":")[2][:DIGEST_WIDTH])[:DIGEST_WIDTH]


def short_image(reference: str) -> str:
    """An image's reference; a digest in it is cut to its first digits."""
    name, at, digest = reference.partition("@")
    algorithm, colon, digits = digest.partition(":")
    return clean(f"{name}{at}{algorithm}{colon}{digits[:DIGEST_WIDTH]}")


def part(done_bytes: int, total_bytes: int) -> str:
    """``3.1/12.3 MiB``, or only what is done while the total is unknown (0)."""
    if total_bytes <= 0:
        return format_bytes(done_bytes)
    total, _, unit = format_bytes(total_bytes).partition(" ")
    power = _UNIT_LETTERS.index(unit[0])
    return f"{done_bytes / 1024**power:.{1 if power else 0}f}/{total} {unit}"


def percent(done: int, total: int) -> int:
    """Whole percent, rounded down, so that 100 means that nothing is missing."""
    return min(max(done * 100 // total, 0), 100)


def clock(seconds: float) -> str:
    """``0:02``, ``1:02:03``; what exceeds 99 hours is said to."""
    if not seconds < 360_000:
        return ">99 h"
    minutes, left = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def duration(seconds: float) -> str:
    """``6.2 s``, ``42 s``, ``2 min 5 s``, ``1 h 2 min``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    if not minutes:
        return f"{left} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {left} s"


def ordinal(number: int) -> str:
    """``1st``, ``2nd``, ``3rd``, ``11th``."""
    teens = 11 <= number % 100 <= 13
    return f"{number}{'th' if teens else _ORDINALS.get(number % 10, 'th')}"


def plural(number: int, noun: str) -> str:
    """``1 layer``, ``2 layers``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def width(text: str) -> int:
    """Columns that ``text`` takes: two for wide characters, at most one for all others."""
    if text.isascii():
        return len(text)
    from unicodedata import east_asian_width

    return sum(2 if east_asian_width(char) in "FW" else 1 for char in text)


def cut(text: str, columns: int) -> str:
    """``text``, or as much of its start as fits with an ellipsis."""
    if width(text) <= columns:
        return text
    return _start(text, columns - 1) + "…"[:columns]


def cut_middle(text: str, columns: int) -> str:
    """``text``, or its ends with an ellipsis between: an image's host and tag stay.

    At least the ellipsis is left, in a column.
    """
    if width(text) <= columns:
        return text
    columns = max(columns, 1)
    tail = (columns - 1) // 2
    head = columns - 1 - tail
    end = _start(text[::-1], tail)[::-1]
    return f"{_start(text, head)}…{end}"


def fill(text: str, columns: int) -> str:
    """``text`` in exactly so many columns: padded, or shortened in the middle."""
    text = cut_middle(text, columns)
    return text + " " * (columns - width(text))


def join_fitting(words: Sequence[str], columns: int) -> str:
    """As many of the first ``words``, a space between, as fit."""
    text = cut(words[0], columns)
    for word in words[1:]:
        if width(text) + 1 + width(word) > columns:
            break
        text += f" {word}"
    return text


def _start(text: str, columns: int) -> str:
    for length, char in enumerate(text):
        columns -= width(char)
        if columns < 0:
            return text[:length]
    return text
