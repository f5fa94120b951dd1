"""Times in container logs, and times given in options to select log lines. Pure.

Times are integer nanoseconds since 1970, because a float cannot hold them exactly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final

from pycrictl.base.errors import UsageError

TIMESTAMP: Final = (
    rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}"
    rb"(?:[.][0-9]+)?(?:Z|[-+][0-9]{2}:[0-9]{2})"
)
"""A regular expression for log timestamps: RFC 3339 with any number of fractional digits."""

_SECOND_NS: Final = 10**9
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MIN_S: Final = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(seconds=1)
_MAX_S: Final = (datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC) - _EPOCH) // timedelta(seconds=1)
_SECONDS_CHARACTERS: Final = 19
_USUAL_CHARACTERS: Final = 30
_Z: Final = ord("Z")
# Not compiled here, as most logs are read without a given time.
_GIVEN: Final = (
    r"(?a)([0-9]{4}-[0-9]{2}-[0-9]{2})(?:T([0-9]{2})(?::([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?)?)?"
    r"(Z|[-+][0-9]{2}:[0-9]{2})?"
)
_UNIX: Final = r"(?a)([0-9]{1,12})(?:\.([0-9]{1,9}))?"


def format_timestamp(timestamp: bytes) -> bytes:
    """Return a log timestamp with nine fractional digits, in its own zone.

    Args:
        timestamp: a full match of TIMESTAMP; its numbers may be out of range.
    """
    if len(timestamp) == _USUAL_CHARACTERS and timestamp[-1] == _Z:
        return timestamp
    fraction, zone = _split(timestamp)
    return b"%b.%b%b" % (timestamp[:_SECONDS_CHARACTERS], fraction, zone)


def normalized(times: Iterable[bytes], zone: bytes) -> list[bytes]:
    """Return timestamps in the form of ``format_timestamp``, each followed by a space.

    Args:
        times: timestamps without their zone, which is ``zone``.
    """
    end = (b"Z" if zone.endswith(b"00:00") else zone) + b" "
    width = _USUAL_CHARACTERS - 1
    return [
        time + end if len(time) == width else format_timestamp(time + zone) + b" " for time in times
    ]


@lru_cache(maxsize=8)
def in_zone(time_ns: int, zone: bytes) -> bytes:
    """Return a time as the local time of a zone, without its offset and trailing zeros.

    Such timestamps of one zone can be compared as bytes. Years outside 1 to 9999 become 1 or 9999.
    """
    seconds, nanoseconds = divmod(time_ns, _SECOND_NS)
    seconds -= _seconds(b"1970-01-01T00:00:00" + zone)
    moment = _EPOCH + timedelta(seconds=min(max(seconds, _MIN_S), _MAX_S))
    text = f"{moment:%Y-%m-%dT%H:%M:%S}".rjust(_SECONDS_CHARACTERS, "0")
    return f"{text}.{nanoseconds:09}".rstrip("0").rstrip(".").encode()


def timestamp_ns(timestamp: bytes) -> int:
    """Parse a timestamp matched by TIMESTAMP; ValueError if its day, time or zone is invalid."""
    fraction, zone = _split(timestamp)
    return _seconds(timestamp[:_SECONDS_CHARACTERS] + zone) * _SECOND_NS + int(fraction)


def _split(timestamp: bytes) -> tuple[bytes, bytes]:
    """Return nine fractional digits, and the zone; a zero offset becomes Z."""
    if timestamp.endswith(b"Z"):
        fraction, zone = timestamp[_SECONDS_CHARACTERS + 1 : -1], b"Z"
    else:
        fraction, zone = timestamp[_SECONDS_CHARACTERS + 1 : -6], timestamp[-6:]
        if zone.endswith(b"00:00"):
            zone = b"Z"
    return fraction[:9].ljust(9, b"0"), zone


@lru_cache(maxsize=256)  # lines of the same second are adjacent
def _seconds(timestamp: bytes) -> int:
    moment = datetime.fromisoformat(timestamp.decode())
    return (moment - _EPOCH) // timedelta(seconds=1)


def parse_time(text: str, *, zone: tzinfo | None = None) -> int:
    """Parse a point in time given in an option.

    A day (``2024-01-31``), hour (``…T15``), minute (``…T15:04``) or second with up to nine
    fractional digits (``…T15:04:05.123``), optionally followed by ``Z`` or an offset (``+02:00``),
    else in ``zone`` or this machine's zone; or seconds since 1970 (``1706713445.123``).
    """
    try:
        if match := re.fullmatch(_UNIX, text):
            return int(match[1]) * _SECOND_NS + int((match[2] or "").ljust(9, "0"))
        if match := re.fullmatch(_GIVEN, text):
            day, hour, minute, second, fraction, given_zone = match.groups()
            moment = datetime.fromisoformat(
                f"{day}T{hour or '00'}:{minute or '00'}:{second or '00'}{given_zone or ''}"
            )
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=zone) if zone else moment.astimezone()
            seconds = (moment - _EPOCH) // timedelta(seconds=1)
            return seconds * _SECOND_NS + int((fraction or "").ljust(9, "0"))
    except (ValueError, OverflowError):
        pass  # no such day, time or zone
    raise UsageError(
        f'invalid time "{text}"',
        hint="give a day (2024-01-31), a time (2024-01-31T15:04:05Z) or seconds since 1970",
    )
