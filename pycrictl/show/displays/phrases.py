"""The words and numbers of progress displays: sizes, times, names cut to fit. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final
from unicodedata import east_asian_width

from pycrictl.base.units import TEXT_LIMIT, escape, format_bytes, format_part

if TYPE_CHECKING:
    from pycrictl.pulls.state import Sums

DIGEST_WIDTH: Final = 12


def clean(text: str) -> str:
    """Return external text as one short line that cannot control a terminal."""
    # Cut first: scanning 100 MB would take seconds.
    words = escape(" ".join(text[: TEXT_LIMIT + 1].split()))
    return words if len(words) <= TEXT_LIMIT else words[: TEXT_LIMIT - 3] + "..."


def short_digest(digest: str) -> str:
    """Return the first digits of ``sha256:…``, the usual short name of a layer."""
    return clean(digest.rpartition(":")[2][:DIGEST_WIDTH])[:DIGEST_WIDTH]


def layer(name: str, digest: str) -> str:
    """Return a layer's name: its digest, ``layer 3 of 7``, or ``layer 12/34``."""
    if ":" in name or digest:
        return short_digest(digest or name)
    name = clean(name)
    shorter = (name, name.replace(" of ", "/"), name.rpartition(" ")[2])
    return next((text for text in shorter if width(text) <= DIGEST_WIDTH), name[:DIGEST_WIDTH])


def short_image(reference: str) -> str:
    name, at, digest = reference.partition("@")
    algorithm, colon, digits = digest.partition(":")
    digits, space, rest = digits.partition(" ")
    return clean(f"{name}{at}{algorithm}{colon}{digits[:DIGEST_WIDTH]}{space}{rest}")


def percent(done: int, total: int) -> int:
    return min(max(done * 100 // total, 0), 100)


def words(sums: Sums) -> tuple[str, str, str, str, str]:
    """Return ``45%``, ``5.2/10.0 GiB``, ``unpacked 2.1/~25.0 GiB``, ``120.3 MiB/s``, ``ETA 0:05``.

    Unknown values are empty.
    """
    done, total, unpacked, rate = sums.progress, sums.total, "", sums.current_rate
    share = percent(done, total) if sums.percent is None and total > 0 else sums.percent
    if sums.extracted_total:
        about = sums.is_estimated
        size = format_part(sums.extracted, sums.extracted_total, is_estimated=about)
        unpacked = f"unpacked {size}"
    return (
        f"{share}%" if total > 0 else "",
        format_part(done, total),
        unpacked,
        "" if rate is None else f"{format_bytes(rate):>9}/s",
        "" if sums.eta_s is None else f"ETA {clock(sums.eta_s)}",
    )


def sentence(verb: str, sums: Sums, *more: str) -> str:
    return " ".join(filter(None, (verb, *map(str.strip, words(sums)), *more)))


def clock(seconds: float) -> str:
    """Return ``0:02``, ``1:02:03``, or ``>99 h``."""
    if not seconds < 360_000:
        return ">99 h"
    minutes, left = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def width(text: str) -> int:
    """Return the columns that a text takes: two for wide characters, at most one for others."""
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(char) in "FW" else 1 for char in text)


def cut(text: str, columns: int) -> str:
    if width(text) <= columns:
        return text
    return _start(text, columns - 1) + "…"[:columns]


def cut_name(name: str, columns: int) -> str:
    """Return a pull's name (``IMAGE on NODE for POD``), shortened to fit ``columns``.

    The registry is dropped first, then the rest of the image's path, then the middle.
    """
    image, space, rest = name.partition(" ")
    if space and not rest.startswith(("on ", "for ")):
        return cut_middle(name, columns)
    registry, slash, path = image.partition("/")
    is_registry = slash and (registry == "localhost" or not {".", ":"}.isdisjoint(registry))
    short = f"{image.rpartition('/')[2]}{space}{rest}"
    choices = (name, f"{path}{space}{rest}" if is_registry else short, short)
    fitting = (choice for choice in choices if width(choice) <= columns)
    return next(fitting, cut_middle(short, columns))


def cut_middle(text: str, columns: int) -> str:
    """Return a text, with an ellipsis instead of its middle if it is too wide.

    The result has at least the ellipsis, which takes one column.
    """
    if width(text) <= columns:
        return text
    columns = max(columns, 1)
    tail = (columns - 1) // 2
    head = columns - 1 - tail
    end = _start(text[::-1], tail)[::-1]
    return f"{_start(text, head)}…{end}"


def fill(text: str, columns: int) -> str:
    """Return a pull's name, padded or shortened to exactly ``columns``."""
    text = cut_name(text, columns)
    return text + " " * (columns - width(text))


def _start(text: str, columns: int) -> str:
    for length, char in enumerate(text):
        columns -= width(char)
        if columns < 0:
            return text[:length]
    return text
