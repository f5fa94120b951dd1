from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl import units

HOUR = 3600
DAY = 86400


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("-0", 0),
        ("2s", 2),
        ("1m30s", 90),
        (".5s", 0.5),
        ("-1.5h", -5400),
        ("250μs", 250e-6),
        ("1h15m30.918273645s", 4530.918273645),
        ("2s3h", 10802),  # any order
        ("0.3333333333333333333333h", 1200 - 1e-9),  # cut to whole nanoseconds
        ("00000000000000000000000001s", 1),
    ],
)
def test_parse_duration(text: str, seconds: float) -> None:
    assert units.parse_duration(text) == pytest.approx(seconds, rel=1e-15, abs=1e-15)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        ".s",
        "1.5",
        "2 s",
        "2s ",
        "1d",
        "--2s",
        "1e3s",
        "1_0s",
        "٣s",
        "2s\n",
        "nan",
        "10000000000s",
        "9" * 5000 + "h",
    ],
)
def test_refused_durations(text: str) -> None:
    with pytest.raises(ValueError, match=r'^"') as caught:
        units.parse_duration(text)
    assert len(str(caught.value)) < 200
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-0.0, "0s"),
        (1e-10, "0s"),
        (1e-9, "1ns"),
        (1.5e-6, "1.5µs"),
        (0.100001, "100.001ms"),
        (59.999999999, "59.999999999s"),
        (3600, "1h0m0s"),
        (-90, "-1m30s"),
        (360000, "100h0m0s"),
    ],
)
def test_format_duration(seconds: float, text: str) -> None:
    assert units.format_duration(seconds) == text


@given(st.integers(-(10**15), 10**15))
def test_durations_survive_a_round_trip(nanoseconds: int) -> None:
    seconds = nanoseconds / 1e9
    assert units.parse_duration(units.format_duration(seconds)) == pytest.approx(seconds, abs=1e-9)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("017", 15),
        ("0_17", 15),
        ("0x" + "0" * 100 + "1", 1),
    ],
)
def test_parse_int(text: str, value: int) -> None:
    assert units.parse_int(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "+-1",
        "1.0",
        "1e3",
        "1 ",
        "_1",
        "1__0",
        "0x",
        "08",
        "٣",
        "9223372036854775808",
        "-9223372036854775809",
        "9" * 5000,
    ],
)
def test_refused_integers(text: str) -> None:
    with pytest.raises(ValueError, match=r'^".*" (is not an integer|does not fit in 64 bits)$'):
        units.parse_int(text)


@given(st.integers(-(2**63), 2**63 - 1))
def test_integers_in_every_base(value: int) -> None:
    sign, size = ("-" if value < 0 else ""), abs(value)
    for text in (f"{size}", f"0x{size:x}", f"0o{size:o}", f"0{size:o}", f"0b{size:b}", f"{size:_}"):
        assert units.parse_int(sign + text) == value


@pytest.mark.parametrize("text", ["", "yes", "no", "on", "tRUE", " true", "2"])
def test_refused_booleans(text: str) -> None:
    with pytest.raises(ValueError, match="is not a boolean"):
        units.parse_bool(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        # As crictl shows them in `images`.
        (0, "0B"),
        (1000, "1kB"),
        (1_234_567, "1.23MB"),
        (999_999, "1e+03kB"),
        (2**63, "9.22EB"),
        (10**30, "1e+06YB"),
    ],
)
def test_format_size_with_three_digits(size: int, text: str) -> None:
    assert units.format_size(size) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1024, "1.0 KiB"),
        (1023.94 * 1024, "1023.9 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (2**63, "8.0 EiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_format_bytes(size: float, text: str) -> None:
    assert units.format_bytes(size) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1024", 1024),
        ("500MB", 500_000_000),
        ("1kB", 1000),
        ("10 GiB", 10 * 1024**3),
        ("1.5Ki", 1536),
        ("0.3", 0),
        ("7E", 7 * 10**18),
    ],
)
def test_parse_size(text: str, size: int) -> None:
    assert units.parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "B", "-1", "+1", "1m", "1mb", "1.", ".5", "1i", "1e3", "1  k", " 1", "1k\n", "٣", "1KiBB"],
)
def test_refused_sizes(text: str) -> None:
    with pytest.raises(ValueError, match=r'^".*" is not a size '):
        units.parse_size(text)


@pytest.mark.parametrize("text", ["8Ei", "9223372036854775808", "9" * 5000])
def test_sizes_beyond_63_bits(text: str) -> None:
    with pytest.raises(ValueError, match=r'^".*" is too large$'):
        units.parse_size(text)


AGES = [
    # Every step of crictl's CREATED column.
    (-5, "Less than a second"),
    (59.5, "59 seconds"),
    (60.5, "About a minute"),
    (120.5, "2 minutes"),
    (3599, "59 minutes"),
    (5399, "About an hour"),
    (5400, "2 hours"),
    (47.6 * HOUR, "2 days"),
    (14.1 * DAY, "2 weeks"),
    (60.1 * DAY, "2 months"),
    (731 * DAY, "2 years"),
    (1094.99 * DAY, "2 years"),
]


@pytest.mark.parametrize(("seconds", "text"), AGES)
def test_format_age(seconds: float, text: str) -> None:
    assert units.format_age(seconds) == text


@given(st.text())
def test_quoted_text_is_one_printable_line(text: str) -> None:
    quoted = units.quote(text)
    assert quoted.isprintable()
    assert quoted[0] == quoted[-1] == '"'


def test_quote_escapes_and_cuts() -> None:
    assert units.quote("plain é") == '"plain é"'
    assert units.quote("a\x1b[2Jb\n\u202e") == r'"a\x1b[2Jb\n\u202e"'
    assert units.quote("x" * 100, 10) == '"' + "x" * 10 + '…"'
    assert units.escape("tab\there") == r"tab\there"
    assert units.escape("byte \udcff, \ud800") == r"byte \xff, \ud800"
