from __future__ import annotations

import pytest

from pycrictl.base.errors import UsageError
from pycrictl.node.logs.log_reader import Selection, parse_since
from pycrictl.node.logs.logline import Chunk

SECOND_NS = 10**9
NOW = 1_704_164_645.75


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("1704164645", 1_704_164_645),
        ("42m", 1_704_164_645 - 42 * 60),
        ("1h30m", 1_704_164_645 - 5400),
        ("500ms", 1_704_164_645),
        ("-10s", 1_704_164_655),
        ("2024-01-02T03:04:05Z", 1_704_164_645),
        ("2024-01-02T05:04:05+02:00", 1_704_164_645),
    ],
)
def test_since(text: str, seconds: int) -> None:
    assert parse_since(text, now=NOW, is_strict=True) == seconds * SECOND_NS


@pytest.mark.parametrize(("text", "ago_s"), [("1d", 86400), ("2d12h", 216000), ("0d30s", 30)])
def test_since_some_days(text: str, ago_s: int) -> None:
    assert parse_since(text, now=NOW) == (1_704_164_645 - ago_s) * SECOND_NS
    with pytest.raises(UsageError, match="is not a valid start time"):
        parse_since(text, now=NOW, is_strict=True)


def test_since_a_day_and_a_time_as_journalctl_writes_them() -> None:
    for text in ("2024-01-02 03:04:05", "2024-01-02 03:04", "2024-01-02 05:04:05+02:00"):
        assert parse_since(text, now=NOW) == parse_since(text.replace(" ", "T"), now=NOW)
        with pytest.raises(UsageError, match="is not a valid start time"):
            parse_since(text, now=NOW, is_strict=True)


def test_since_keeps_nanoseconds() -> None:
    assert parse_since("2024-01-02T03:04:05.000000001Z", now=NOW) == 1_704_164_645 * SECOND_NS + 1


@pytest.mark.parametrize(
    "text",
    [
        *("soon", "2024-13-01", "10 m", "5x", "", "9" * 40, "9" * 30 + "h", "-10s"),
        *("d", "1d1d", "1 d", "0d1704164645"),
    ],
)
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UsageError, match="is not a valid start time"):
        parse_since(text, now=NOW)


@pytest.mark.parametrize(
    ("limit", "taken", "left"),
    [(None, "abc defg h", ""), (5, "abc de", "h"), (3, "abc", "defg h"), (0, "", "abc defg h")],
)
def test_the_limit_counts_both_outputs_and_asks_for_no_more(
    limit: int | None, taken: str, left: str
) -> None:
    chunks = iter([Chunk("stdout", b"abc"), Chunk("stderr", b"defg"), Chunk("stdout", b"h")])
    limited = list(Selection(limit_bytes=limit).limited(chunks))
    assert b" ".join(chunk.data for chunk in limited).decode() == taken
    assert b" ".join(chunk.data for chunk in chunks).decode() == left
