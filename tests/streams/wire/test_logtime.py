from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest

from pycrictl.base.errors import UsageError
from pycrictl.node.logs.logtime import (
    TIMESTAMP,
    format_timestamp,
    in_zone,
    normalized,
    parse_time,
    timestamp_ns,
)

SECOND = 10**9
DAY = 24 * 3600 * SECOND
NOON = int(datetime(2024, 1, 31, 12, tzinfo=UTC).timestamp()) * SECOND


@pytest.mark.parametrize(
    ("timestamp", "text"),
    [
        (b"2024-01-02T03:04:05.123456789Z", b"2024-01-02T03:04:05.123456789Z"),
        (b"2024-01-02T03:04:05Z", b"2024-01-02T03:04:05.000000000Z"),
        (b"2024-01-02T03:04:05.5Z", b"2024-01-02T03:04:05.500000000Z"),
        (b"2024-01-02T03:04:05.1234567891Z", b"2024-01-02T03:04:05.123456789Z"),
        (b"2024-01-02T03:04:05.5+02:00", b"2024-01-02T03:04:05.500000000+02:00"),
        (b"2024-01-02T03:04:05.123456789+00:00", b"2024-01-02T03:04:05.123456789Z"),
        (b"2024-01-02T03:04:05-00:00", b"2024-01-02T03:04:05.000000000Z"),
    ],
)
def test_nine_digits(timestamp: bytes, text: bytes) -> None:
    assert re.fullmatch(TIMESTAMP, timestamp)
    assert format_timestamp(timestamp) == text
    time, zone = re.fullmatch(rb"(.*?)(Z|[-+]..:..)", timestamp).groups()  # type: ignore[union-attr]
    assert normalized([time], zone) == [text + b" "]


@pytest.mark.parametrize(
    ("time_ns", "zone", "text"),
    [
        (NOON, b"Z", b"2024-01-31T12:00:00"),
        (NOON + 120, b"-09:30", b"2024-01-31T02:30:00.00000012"),
        (NOON + 10 * SECOND, b"+12:00", b"2024-02-01T00:00:10"),
        (-DAY * 365 * 1965, b"Z", b"0006-04-22T00:00:00"),
        (-(2**70), b"+02:00", b"0001-01-01T00:00:00.588696576"),
        (2**70, b"Z", b"9999-12-31T23:59:59.411303424"),
    ],
)
def test_in_a_zone(time_ns: int, zone: bytes, text: bytes) -> None:
    assert in_zone(time_ns, zone) == text


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (b"1970-01-01T00:00:00Z", 0),
        (b"1970-01-01T00:00:00.000000001Z", 1),
        (b"1969-12-31T23:59:59.5Z", -SECOND // 2),
        (b"2024-01-31T12:00:00.1Z", NOON + SECOND // 10),
        (b"2024-01-31T14:00:00+02:00", NOON),
        (b"2024-01-31T11:30:00-00:30", NOON),
    ],
)
def test_nanoseconds(timestamp: bytes, expected: int) -> None:
    assert timestamp_ns(timestamp) == expected


@pytest.mark.parametrize(
    "timestamp",
    [
        b"2024-13-01T00:00:00Z",
        b"2024-01-01T00:00:61Z",
        b"0000-01-01T00:00:00Z",
        b"2024-01-01T00:00:00+99:00",
    ],
)
def test_times_that_are_none(timestamp: bytes) -> None:
    assert re.fullmatch(TIMESTAMP, timestamp)
    with pytest.raises(ValueError, match=r".+"):
        timestamp_ns(timestamp)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1706702400", NOON),
        ("1706702400.000000001", NOON + 1),
        ("1706702400.5", NOON + SECOND // 2),
        ("2024-01-31", NOON - DAY // 2),
        ("2024-01-31T12", NOON),
        ("2024-01-31T12:00", NOON),
        ("2024-01-31T12:00:00.25", NOON + SECOND // 4),
        ("2024-01-31T12:00:00.123456789Z", NOON + 123456789),
        ("2024-01-31T14:00+02:00", NOON),
        ("2024-01-31T14:00:00.5+02:00", NOON + SECOND // 2),
    ],
)
def test_times_that_are_given(text: str, expected: int) -> None:
    assert parse_time(text, zone=UTC) == expected


def test_a_time_without_a_zone() -> None:
    text = "2024-01-31T12:00:00"
    assert parse_time(text, zone=timezone(timedelta(hours=2))) == NOON - 2 * 3600 * SECOND
    assert parse_time(text) == int(datetime(2024, 1, 31, 12).astimezone().timestamp()) * SECOND


@pytest.mark.parametrize(
    "text",
    [
        *("", "now", "5m", "-1", "1.", ".5", "1.0000000001", "2024-01", "2024-1-31", "2024-02-30"),
        *("2024-01-31T", "2024-01-31T24:30", "2024-01-31T12:", "2024-01-31 12:00"),
        *("2024-01-31T12:00:00.", "2024-01-31T12:00:00.1234567891", "2024-01-31T12:00:00+99:00"),
        *("٢٠٢٤-٠١-٠١", "1706702400\n", "9" * 13),
    ],
)
def test_times_that_cannot_be_given(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_time(text, zone=UTC)
    assert "invalid time" in caught.value.message
    assert caught.value.hint
