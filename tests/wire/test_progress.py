from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.wire.progress import (
    MAX_MESSAGE_BYTES,
    MAX_TEXT,
    ProgressDecoder,
    Report,
    encode_report,
)

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
HALVES = Report("a?b", "?", 0, 0, "😀")

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
int64s = st.integers(INT64_MIN, INT64_MAX)
counts = st.integers(0, INT64_MAX)
reports = st.builds(
    Report, names, names, int64s, int64s, names, names, counts, counts, counts,
    counts, st.floats(0.5, 4e9), names, names, names, st.floats(0.5, 4e9),
    st.none() | st.fixed_dictionaries({"percent": counts}),
)  # fmt: skip


def decode(message: str | bytes | bytearray) -> Report | None:
    return ProgressDecoder().receive_message(message)


def reason_of(message: str | bytes) -> str:
    """Decode a message that must be bad; return the reason given."""
    decoder = ProgressDecoder()
    assert decoder.receive_message(message) is None
    assert decoder.bad_count == 1
    assert decoder.first_bad is not None
    return decoder.first_bad


# Good messages


@pytest.mark.parametrize(
    ("message", "report"),
    [
        ('{"progress":1}', Report("", "", 1, 0)),
        ('{"total":1}', Report("", "", 0, 1)),
        ('{"progress":0}', Report("", "", 0, 0)),
        ('{"error":"boom"}', Report("", "", 0, 0, "boom")),
        ('{"progress":0,"total":0,"image":null,"layer":null,"error":null}', Report("", "", 0, 0)),
        ('{"progress":null,"total":null,"image":"a"}', Report("a", "", 0, 0)),
        ('{"progress":5.0,"total":1e3}', Report("", "", 5, 1000)),
        ('{"progress":-5,"total":-1}', Report("", "", -5, -1)),
        (f'{{"progress":{INT64_MIN},"total":{INT64_MAX}}}', Report("", "", INT64_MIN, INT64_MAX)),
        ('{"progress":1,"total":2,"unknown":[{"x":null}]}', Report("", "", 1, 2)),
        ('{"progress":1,"progress":2,"total":3}', Report("", "", 2, 3)),
        (' \t\r\n{"progress":1,"total":2} \t\r\n', Report("", "", 1, 2)),
        # Lone surrogates are replaced, and can be printed.
        ('{"image":"a\\ud800b","layer":"\\udc00","error":"\\ud83d\\ude00"}', HALVES),
        (json.dumps({"error": "x" * (MAX_TEXT + 1)}), Report(error="x" * (MAX_TEXT - 1) + "…")),
    ],
)  # fmt: skip
def test_tolerated(message: str, report: Report) -> None:
    decoder = ProgressDecoder()
    assert decoder.receive_message(message) == report
    assert decoder.bad_count == 0
    assert decoder.first_bad is None


@pytest.mark.parametrize(
    "additional",
    [
        {"phase": 3},
        {"queue_position": "first"},
        {"queue_position": -1},
        {"queue_position": True},
        {"extracted": 1.5},
        {"extracted_total": 2**63},
        {"resumed": -1},
        {"started": 1e12},
        {"behind": 7},
    ],
)
def test_an_additional_key_of_another_type_counts_as_missing(additional: dict[str, Any]) -> None:
    assert decode(json.dumps({"progress": 1, "total": 2, **additional})) == Report("", "", 1, 2)


@pytest.mark.parametrize("message", ["", " ", "\r", b"", b"\n", bytearray()])
def test_a_blank_message_is_nothing(message: str | bytes) -> None:
    decoder = ProgressDecoder()
    assert decoder.receive_message(message) is None
    assert decoder.bad_count == 0


# Bad messages


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("nonsense", 'not valid JSON: "nonsense"'),
        ('{"progress":1', "not valid JSON: "),
        ('{"progress":1}}', "not valid JSON: "),
        ("null", "not one JSON object: "),
        ("{}", "no progress in it: "),
        ('{"image":"a","layer":"b"}', "no progress in it: "),
        ('{"error":""}', "no progress in it: "),
        ('{"progress":true}', '"progress" is not an integer: '),
        ('{"progress":1,"total":"2"}', '"total" is not an integer: '),
        ('{"progress":1.5}', '"progress" is not an integer: '),
        ('{"progress":NaN}', "not valid JSON: "),
        ('{"progress":1e999}', '"progress" is not an integer: '),
        ('{"progress":9223372036854775808}', '"progress" is not an integer: '),
        ('{"total":-9223372036854775809}', '"total" is not an integer: '),
        ('{"image":1,"progress":1}', '"image" is not a string of at most 4096 characters: '),
        (json.dumps({"layer": "x" * (MAX_TEXT + 1), "progress": 1}), '"layer" is not a string'),
        ('{"error":{},"progress":1}', '"error" is not a string: '),
        ('{"image":"a\nb","progress":1}', "not valid JSON: "),
        ('{"progress":' + "9" * 5000 + "}", "not valid JSON: "),
        ("[" * 100_000, "not valid JSON: "),
        (b"\xff\xfe", "not valid UTF-8: "),
        (b'{"image":"\xed\xa0\x80","progress":1}', "not valid UTF-8: "),
        ("\ufeff{}", "not valid JSON: "),
    ],
)
def test_bad(message: str | bytes, reason: str) -> None:
    assert reason_of(message).startswith(reason)


def test_what_is_kept_of_a_bad_message_is_short_and_cannot_steer_a_terminal() -> None:
    kept = reason_of("\x1b[2J\x9b31m\u202e" + "x" * 1000)
    assert kept.isprintable()
    assert len(kept) < 200


def test_a_message_over_the_limit_is_not_parsed() -> None:
    decoder = ProgressDecoder(max_message_bytes=20)
    assert decoder.receive_message(b'{"progress":1234567}') == Report("", "", 1234567, 0)
    assert decoder.receive_message(b'{"progress":12345678}') is None
    assert decoder.first_bad == 'longer than 20 bytes: "{"progress":12345678}"'


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(st.sampled_from(Report._fields), children, max_size=3)
    ),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([*Report._fields, "other"]), json_values))
def test_a_report_always_has_the_right_types_and_ranges(fields: dict[str, Any]) -> None:
    decoder = ProgressDecoder()
    report = decoder.receive_message(json.dumps(fields))
    assert (report is None) == (decoder.bad_count == 1)
    if report is not None:
        assert report.sums is None or isinstance(report.sums, dict)
        usual = report._replace(sums=None)
        for value, default in zip(usual, Report("", "", 0, 0), strict=True):
            assert type(value) is type(default)
            if isinstance(value, int):
                assert INT64_MIN <= value <= INT64_MAX


# A stream of lines


def lines_of(chunks: list[bytes], *, max_message_bytes: int = MAX_MESSAGE_BYTES) -> list[Report]:
    decoder = ProgressDecoder(max_message_bytes=max_message_bytes)
    found = [report for chunk in chunks for report in decoder.receive_data(chunk)]
    return found + decoder.receive_eof()


@given(st.lists(reports, max_size=5), st.data())
def test_chunks_may_end_anywhere(expected: list[Report], data: st.DataObject) -> None:
    newlines = st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\r\n \r\n"])
    stream = b"".join(
        encode_report(report).encode() + data.draw(newlines, "newline") for report in expected
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8), "cuts"))
    edges = [0, *cuts, len(stream)]
    chunks = [stream[start:end] for start, end in pairwise(edges)]
    assert lines_of(chunks) == expected


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_a_line_over_the_limit_hides_no_other(size: int) -> None:
    stream = b'{"progress":1}\n' + b"x" * 5000 + b'\n{"progress":2}\n' + b"y" * 5000
    decoder = ProgressDecoder(max_message_bytes=100)
    found: list[Report] = []
    for start in range(0, len(stream), size):
        found += decoder.receive_data(stream[start : start + size])
        assert len(decoder._line) <= 100
    found += decoder.receive_eof()
    assert [report.progress for report in found] == [1, 2]
    assert decoder.first_bad is not None
    assert decoder.first_bad.startswith('longer than 100 bytes: "xxx')


# Writing


@given(reports)
def test_what_is_written_can_be_read(report: Report) -> None:
    line = encode_report(report)
    assert line.isascii()
    assert line.isprintable()
    assert decode(line) == report
    # A strict reader of the KEP finds its keys with their types.
    fields = json.loads(line)
    assert fields.keys() <= set(Report._fields)
    assert [type(fields[key]) for key in ("progress", "total")] == [int, int]
    assert {type(fields.get(key, "")) for key in ("image", "layer", "error")} == {str}
