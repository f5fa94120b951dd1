from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.base import units

HOUR = 3600
DAY = 86400
LONG = "9" * 5000


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("-0", 0),
        ("1m30s", 90),
        (".5s", 0.5),
        ("-1.5h", -5400),
        ("250μs", 250e-6),
        ("2s3h", 10802),  # any order
        ("0.3333333333333333333333h", 1200 - 1e-9),  # cut to whole nanoseconds
        ("00000000000000000000000001s", 1),
    ],
)
def test_parse_duration(text: str, seconds: float) -> None:
    assert units.parse_duration(text) == pytest.approx(seconds, rel=1e-15, abs=1e-15)


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (units.parse_int, "0", 0),
        (units.parse_int, "017", 15),
        (units.parse_int, "0_17", 15),
        (units.parse_int, "0x" + "0" * 100 + "1", 1),
        (units.parse_size, "1024", 1024),
        (units.parse_size, "500MB", 500_000_000),
        (units.parse_size, "1kB", 1000),
        (units.parse_size, "10 GiB", 10 * 1024**3),
        (units.parse_size, "1.5Ki", 1536),
        (units.parse_size, "0.3", 0),
        (units.parse_size, "7E", 7 * 10**18),
    ],
)
def test_numbers(read: Callable[[str], int], text: str, value: int) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "texts", "problem"),
    [
        (
            units.parse_duration,
            f"|-|.s|1.5|2 s|2s |1d|--2s|1e3s|1_0s|٣s|2s\n|nan|10000000000s|{LONG}h",
            r'^".*"',
        ),
        (units.parse_int, "|+-1|1.0|1e3|1 |_1|1__0|0x|08|٣", r'^".*" is not an integer$'),
        (
            units.parse_int,
            f"9223372036854775808|-9223372036854775809|{LONG}",
            r'^".*" does not fit in 64 bits$',
        ),
        (units.parse_bool, "|yes|no|on|tRUE| true|2", r'^".*" is not a boolean'),
        (
            units.parse_size,
            "|B|-1|+1|1m|1mb|1.|.5|1i|1e3|1  k| 1|1k\n|٣|1KiBB",
            r'^".*" is not a size ',
        ),
        (units.parse_size, f"8Ei|9223372036854775808|{LONG}", r'^".*" is too large$'),
    ],
)
def test_what_is_refused(read: Callable[[str], object], texts: str, problem: str) -> None:
    for text in texts.split("|"):
        with pytest.raises(ValueError, match=problem) as caught:
            read(text)
        assert len(str(caught.value)) < 200
        assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (units.format_duration, -0.0, "0s"),
        (units.format_duration, 1e-10, "0s"),
        (units.format_duration, 1e-9, "1ns"),
        (units.format_duration, 1.5e-6, "1.5µs"),
        (units.format_duration, 0.100001, "100.001ms"),
        (units.format_duration, 59.999999999, "59.999999999s"),
        (units.format_duration, 3600, "1h0m0s"),
        (units.format_duration, -90, "-1m30s"),
        (units.format_duration, 360000, "100h0m0s"),
        # As crictl shows them in `images`.
        (units.format_size, 0, "0B"),
        (units.format_size, 1000, "1kB"),
        (units.format_size, 1_234_567, "1.23MB"),
        (units.format_size, 999_999, "1e+03kB"),
        (units.format_size, 2**63, "9.22EB"),
        (units.format_size, 10**30, "1e+06YB"),
        (units.format_bytes, 512, "512 B"),
        (units.format_bytes, 1024, "1.0 KiB"),
        (units.format_bytes, 1023.94 * 1024, "1023.9 KiB"),
        (units.format_bytes, 1024**2 - 1, "1.0 MiB"),
        (units.format_bytes, 2**63, "8.0 EiB"),
        (units.format_bytes, -2048, "-2.0 KiB"),
        # Every step of crictl's CREATED column.
        (units.format_age, -5, "Less than a second"),
        (units.format_age, 59.5, "59 seconds"),
        (units.format_age, 60.5, "About a minute"),
        (units.format_age, 120.5, "2 minutes"),
        (units.format_age, 3599, "59 minutes"),
        (units.format_age, 5399, "About an hour"),
        (units.format_age, 5400, "2 hours"),
        (units.format_age, 47.6 * HOUR, "2 days"),
        (units.format_age, 14.1 * DAY, "2 weeks"),
        (units.format_age, 60.1 * DAY, "2 months"),
        (units.format_age, 731 * DAY, "2 years"),
        (units.format_age, 1094.99 * DAY, "2 years"),
    ],
)
def test_what_is_shown(write: Callable[[float], str], value: float, text: str) -> None:
    assert write(value) == text


@given(st.integers(-(10**15), 10**15))
def test_durations_survive_a_round_trip(nanoseconds: int) -> None:
    seconds = nanoseconds / 1e9
    assert units.parse_duration(units.format_duration(seconds)) == pytest.approx(seconds, abs=1e-9)


@given(st.integers(-(2**63), 2**63 - 1))
def test_integers_in_every_base(value: int) -> None:
    sign, size = ("-" if value < 0 else ""), abs(value)
    for text in (f"{size}", f"0x{size:x}", f"0o{size:o}", f"0{size:o}", f"0b{size:b}", f"{size:_}"):
        assert units.parse_int(sign + text) == value


@given(st.text())
def test_quoted_text_is_one_printable_line(text: str) -> None:
    quoted = units.quote(text)
    assert quoted.isprintable()
    assert quoted[0] == quoted[-1] == '"'


def test_quote_escapes_and_cuts() -> None:
    assert units.quote("plain é") == '"plain é"'
    assert units.quote("a\x1b[2Jb\n\u202e") == r'"a\x1b[2Jb\n\u202e"'
    assert units.quote("x" * 100, 10) == '"' + "x" * 10 + '…"'
    assert units.escape("byte \udcff, \ud800") == r"byte \xff, \ud800"
