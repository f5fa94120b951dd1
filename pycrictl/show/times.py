"""Points in time, given in nanoseconds since 1970, as Go programs write them. Pure.

``zone`` is the time zone to show; None means the local one.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from pycrictl.units import format_age

NEVER: Final = "0001-01-01T00:00:00Z"
"""Stands for a time that is unknown or has not come yet."""

_NS_PER_S: Final = 1_000_000_000


def rfc3339(time_ns: int, zone: tzinfo | None = None) -> str:
    """Format as ``2023-11-14T22:13:20.123456789Z``; trailing zeros of the fraction are cut."""
    moment, fraction = _split(time_ns, zone)
    offset = moment.utcoffset() or timedelta(0)
    return f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}{_offset(offset, ':') if offset else 'Z'}"


def go_time(time_ns: int, zone: tzinfo | None = None) -> str:
    """Format as ``2023-11-14 22:13:20.123456789 +0000 UTC``."""
    moment, fraction = _split(time_ns, zone)
    offset = moment.utcoffset() or timedelta(0)
    return f"{moment:%Y-%m-%d %H:%M:%S}{fraction} {_offset(offset, '')} {moment.tzname()}"


def age(time_ns: int, now: float) -> str:
    """Say how long ago it was at ``now`` (seconds since 1970): ``5 minutes``, ``About an hour``."""
    return format_age(now - time_ns / _NS_PER_S)


def _split(time_ns: int, zone: tzinfo | None) -> tuple[datetime, str]:
    """Return the local time of the whole second, and the fraction with its point."""
    # All 64-bit times lie between the years 1677 and 2262.
    seconds, fraction = divmod(time_ns, _NS_PER_S)
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    return moment.astimezone(zone), f".{fraction:09}".rstrip("0").rstrip(".")


def _offset(offset: timedelta, separator: str) -> str:
    minutes = abs(offset) // timedelta(minutes=1)
    sign = "-" if offset < timedelta(0) else "+"
    return f"{sign}{minutes // 60:02}{separator}{minutes % 60:02}"
