"""Parses and formats durations, numbers, sizes, ages and quoted words. Pure.

The literals are Go's, since flags and configuration files were written for a Go program. Every
parser raises ``ValueError`` with a short message that quotes its input; the caller says where the
input came from.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

_NANOSECONDS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # U+00B5, micro sign
    "μs": 1_000,  # U+03BC, Greek mu
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
INT64_MAX: Final = 2**63 - 1

# ASCII digits only: str.isdigit and \d also accept other scripts' digits, which Go refuses.
_DURATION_TERM: Final = r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)"
_INTEGER: Final = (
    r"[+-]?(?:0[xX](?:_?[0-9a-fA-F])+|0[oO](?:_?[0-7])+|0[bB](?:_?[01])+|0(?:_?[0-7])+"
    r"|[1-9](?:_?[0-9])*|0)"
)
_SIZE: Final = r"([0-9]+(?:\.[0-9]+)?) ?(?:([kKMGTPE])(i?))?B?"

_LONGEST_LITERAL: Final = 100
"""Longer literals count as out of range; above 4300 digits Python raises its own error."""

TEXT_LIMIT: Final = 300
"""Maximum length of other programs' text in a message, in characters."""

_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})

_DECIMAL_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB")
_BINARY_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB")
_SIZE_POWERS: Final = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}

SHORT_ID_CHARS: Final = 13
"""How many characters of an ID are shown, as in crictl."""
DIGEST_PREFIX: Final = "sha256:"

_UID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_NOISE: Final = (
    # An image needs its whole digest.
    (rf"(?<!@sha256:)\b([0-9a-f]{{{SHORT_ID_CHARS}}})[0-9a-f]{{{64 - SHORT_ID_CHARS}}}\b", r"\1"),
    (rf"\({_UID}\)", ""),
    (rf"{_UID}\b", "…"),
    (r"\bpycrictl proxy: |rpc error: code = \w+ desc = ", ""),
)

_ORDINALS: Final = {1: "st", 2: "nd", 3: "rd"}


def parse_duration(text: str) -> float:
    """Read a Go duration in seconds: ``2s``, ``1m30s``, ``500ms``, ``-1.5h``, and a bare ``0``."""
    sign = -1 if text.startswith("-") else 1
    rest = text[1:] if text[:1] in ("+", "-") else text
    if rest == "0":
        return 0.0
    if re.fullmatch(r"[0-9]+(?:\.[0-9]*)?", rest):
        raise ValueError(f"{quote(text)} has no unit (write {quote(text + 's')} for seconds)")
    if not re.fullmatch(rf"(?:{_DURATION_TERM})+", rest):
        raise ValueError(f"{quote(text)} is not a duration (such as 2s, 1m30s or 500ms)")
    total_ns = INT64_MAX + 1
    if len(rest) <= _LONGEST_LITERAL:
        terms = re.findall(_DURATION_TERM, rest)
        total_ns = sum(_scaled(number, _NANOSECONDS[unit]) for number, unit in terms)
    if total_ns > INT64_MAX:
        raise ValueError(f"{quote(text)} is too long a duration")
    return sign * total_ns / 1e9


def _scaled(number: str, scale: int) -> int:
    """Return a decimal number times a scale, cut to an integer."""
    whole, _, fraction = number.partition(".")
    divisor: int = 10 ** len(fraction)
    return int(whole + fraction) * scale // divisor


def format_duration(seconds: float) -> str:
    """Write a duration as Go does: ``500ms``, ``2s``, ``1m30s``, ``1h0m0s``."""
    nanoseconds = round(abs(seconds) * 1e9)
    sign = "-" if seconds < 0 and nanoseconds else ""
    if nanoseconds < 1_000_000_000:
        for unit in ("ms", "µs", "ns"):
            if nanoseconds >= _NANOSECONDS[unit]:
                return f"{sign}{_decimal(nanoseconds, _NANOSECONDS[unit])}{unit}"
        return "0s"
    minutes, nanoseconds = divmod(nanoseconds, _NANOSECONDS["m"])
    text = f"{_decimal(nanoseconds, _NANOSECONDS['s'])}s"
    if minutes:
        hours, minutes = divmod(minutes, 60)
        text = f"{minutes}m{text}"
        if hours:
            text = f"{hours}h{text}"
    return sign + text


def parse_int(text: str) -> int:
    """Read a Go integer literal of 64 bits: ``10 0x1f 0o17 017 0b1 1_000``, signed or not."""
    if not re.fullmatch(_INTEGER, text):
        raise ValueError(f"{quote(text)} is not an integer")
    digits = text.lstrip("+-").replace("_", "").lower()
    octal = len(digits) > 1 and digits.isdigit() and digits[0] == "0"
    # Above 4300 decimal digits Python raises an error of its own.
    if len(digits) < 4000:
        value = int(digits, 8 if octal else 0) * (-1 if text[0] == "-" else 1)
        if -INT64_MAX - 1 <= value <= INT64_MAX:
            return value
    raise ValueError(f"{quote(text)} does not fit in 64 bits")


def parse_bool(text: str) -> bool:
    """Read a Go boolean literal: ``1 t T true TRUE True`` and ``0 f F false FALSE False``."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f"{quote(text)} is not a boolean (true or false)")


def format_size(size_bytes: int, digits: int = 3) -> str:
    """Write a size as crictl's tables do: decimal units, ``digits`` significant digits.

    999,999 bytes give ``1e+03kB`` with three digits, since the unit is chosen before rounding.
    Scripts parse these columns, so the quirk is kept.
    """
    size, power = float(size_bytes), 0
    while size >= 1000 and power < len(_DECIMAL_UNITS) - 1:
        size /= 1000
        power += 1
    return f"{size:.{digits}g}{_DECIMAL_UNITS[power]}"


_UNIT_LETTERS: Final = "BKMGTPEZY"


def format_bytes(size_bytes: float) -> str:
    """Format a size for people: ``512 B``, ``12.3 MiB``; broken servers report negative ones."""
    size, power = float(abs(size_bytes)), 0
    # 1023.95 and more would be shown as 1024.0.
    while size >= (1024 if power == 0 else 1023.95) and power < len(_BINARY_UNITS) - 1:
        size /= 1024
        power += 1
    sign = "-" if size_bytes < 0 else ""
    number = f"{size:.1f}" if power else f"{size:.0f}"
    return f"{sign}{number} {_BINARY_UNITS[power]}"


def format_part(
    done_bytes: int, total_bytes: int, *, is_estimated: bool = False, of: str = "/"
) -> str:
    """Return ``3.1/12.3 MiB``, or only the part done while the total is unknown (0).

    ``3.1/~12.3 MiB`` if the total is an estimate.
    """
    if total_bytes <= 0:
        return format_bytes(done_bytes)
    total, _, unit = format_bytes(total_bytes).partition(" ")
    power = _UNIT_LETTERS.index(unit[0])
    about = "~" if is_estimated else ""
    return f"{done_bytes / 1024**power:.{1 if power else 0}f}{of}{about}{total} {unit}"


def parse_size(text: str) -> int:
    """Read a size in bytes: ``1024``, ``500MB``, ``10Gi``, ``1.5GiB``.

    ``k M G T P E`` are powers of 1000, ``Ki Mi Gi …`` of 1024; a final ``B`` changes nothing.
    A lower-case ``m`` is refused: elsewhere in Kubernetes it means a thousandth. Fractions of a
    byte are dropped.
    """
    match = re.fullmatch(_SIZE, text)
    if not match:
        raise ValueError(f"{quote(text)} is not a size (such as 1024, 500MB or 10Gi)")
    number, unit, binary = match.groups()
    scale: int = (1024 if binary else 1000) ** _SIZE_POWERS.get(unit, 0)
    size = _scaled(number, scale) if len(text) <= _LONGEST_LITERAL else INT64_MAX + 1
    if size > INT64_MAX:
        raise ValueError(f"{quote(text)} is too large")
    return size


_AGES: Final = (("hours", 1, 1), ("days", 24, 7), ("weeks", 7 * 24, 30), ("months", 30 * 24, 365))
"""Each unit, its hours, and the days in the next larger unit, which is used for two or more."""


def format_age(seconds: float) -> str:
    """Write an age as crictl's CREATED column does, without its final `` ago``."""
    whole = int(seconds)
    if whole < 1:
        return "Less than a second"
    if whole < 60:
        return plural(whole, "second")
    if whole < 120:
        return "About a minute"
    if whole < 3600:
        return f"{whole // 60} minutes"
    hours = int(seconds / 3600 + 0.5)
    if hours == 1:
        return "About an hour"
    for unit, unit_hours, next_days in _AGES:
        if hours < 2 * 24 * next_days:
            return f"{hours // unit_hours} {unit}"
    # Years are counted from unrounded hours, so that none is counted half an hour early.
    return f"{whole // 3600 // (365 * 24)} years"


def format_moment(wall_s: float, timespec: str = "seconds") -> str:
    """Write a wall time as the API server does (RFC 3339, UTC)."""
    return f"{datetime.fromtimestamp(wall_s, UTC).replace(tzinfo=None).isoformat('T', timespec)}Z"


def age_in_words(seconds: float) -> str:
    text = format_age(seconds)
    return text[0].lower() + text[1:]


def duration_in_words(seconds: float) -> str:
    """Return ``6.2 s``, ``42 s``, ``2 min 5 s``, ``1 h 2 min``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    if not minutes:
        return f"{left} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {left} s"


def ordinal(number: int) -> str:
    teens = 11 <= number % 100 <= 13
    return f"{number}{'th' if teens else _ORDINALS.get(number % 10, 'th')}"


def escape(text: str) -> str:
    """Escape the control, format and other unprintable characters of ``text``.

    All text from outside must be escaped before it reaches a terminal or a message.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(char: str) -> str:
    # Python's surrogates for bytes that are not UTF-8.
    return f"\\x{ord(char) - 0xDC00:02x}" if "\udc80" <= char <= "\udcff" else ascii(char)[1:-1]


def quote(text: str, limit: int = 120) -> str:
    """Put ``text`` in quotes for a message, escaped and cut to ``limit`` characters."""
    return f'"{escape(text if len(text) <= limit else text[:limit] + "…")}"'


def quote_path(path: str) -> str:
    """Put a path in quotes for a message, whole: Linux allows 4096 characters."""
    return quote(path, 4096)


def short_id(text: str) -> str:
    """Return the beginning of a full ID, as tables show it; any other text unchanged."""
    return text[:SHORT_ID_CHARS] if len(text) == 64 and not text.strip("0123456789abcdef") else text


def readable(text: str) -> str:
    """Shorten an error for people: cut IDs, and drop UIDs and the prefixes of intermediaries."""
    for pattern, shown in _NOISE:
        text = re.sub(pattern, shown, text)
    return text


def plural(number: int, noun: str, several: str = "") -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {several or noun + 's'}"


def shorten(text: str, limit: int) -> str:
    """Shorten a text in the middle: its end, such as the cause of an error, matters most."""
    if len(text) <= limit:
        return text
    start = limit // 3
    return f"{text[:start].rstrip()}…{text[start + 1 - limit :]}"


def _decimal(value: int, unit: int) -> str:
    whole, fraction = divmod(value, unit)
    if not fraction:
        return str(whole)
    return f"{whole}.{str(fraction).rjust(len(str(unit)) - 1, '0').rstrip('0')}"
