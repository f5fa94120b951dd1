"""Lines of several logs in the order of their times."""

from __future__ import annotations

import pytest

from pycrictl.logs.merging import MAX_LINE_BYTES, LineCutter, LogLine, in_order
from pycrictl.wire.logline import Chunk

SECOND = 1_704_164_645 * 10**9  # 2024-01-02T03:04:05Z


def stamp(seconds: int) -> bytes:
    return b"2024-01-02T03:04:%02d.000000000Z " % (5 + seconds)


def cut(*chunks: bytes, prefix: bytes = b"", **options: object) -> list[LogLine]:
    cutter = LineCutter(prefix, **options)  # type: ignore[arg-type]  # as the test has them
    lines = [line for chunk in chunks for line in cutter.receive(Chunk("stdout", chunk))]
    return [*lines, *cutter.end()]


def test_each_line_has_its_time_and_its_prefix() -> None:
    text = stamp(0) + b"a\n" + stamp(1) + b"b\n"
    for at in range(len(text)):
        assert cut(text[:at], text[at:], prefix=b"[x] ") == [
            LogLine(SECOND, "stdout", b"[x] a\n"),
            LogLine(SECOND + 10**9, "stdout", b"[x] b\n"),
        ]


@pytest.mark.parametrize("text", [b"no time", b"2024-99-99T00:00:00Z x", stamp(0)[:-3] + b"x"])
def test_a_line_without_a_time_stays_behind_the_one_before(text: bytes) -> None:
    first, second = cut(stamp(2) + b"a\n" + text)
    assert first.time_ns == second.time_ns == SECOND + 2 * 10**9
    assert second.text.strip() == (b"x" if b"99-99" in text else text)


def test_a_time_that_goes_back_does_not_turn_lines_round() -> None:
    lines = cut(stamp(3) + b"a\n" + stamp(1) + b"b\n")
    assert [line.text for line in in_order([lines, cut(stamp(2) + b"c\n")])] == [
        *(b"c\n", b"a\n", b"b\n")
    ]


def test_outputs_are_cut_apart() -> None:
    cutter = LineCutter(b"")
    assert not [*cutter.receive(Chunk("stdout", stamp(0) + b"o"))]
    (line,) = cutter.receive(Chunk("stderr", stamp(1) + b"e\n"))
    assert line.stream == "stderr"
    (line,) = cutter.receive(Chunk("stdout", b"ut\n"))
    assert line.text == b"out\n"


def test_the_limit_counts_no_prefix() -> None:
    text = stamp(0) + b"abc\n" + stamp(1) + b"def\n"
    assert [line.text for line in cut(text, prefix=b"[x] ", limit_bytes=6)] == [
        *(b"[x] abc\n", b"[x] de\n")
    ]


def test_an_endless_line_is_passed_on_in_parts() -> None:
    lines = cut(stamp(0) + b"x" * MAX_LINE_BYTES, b"y" * 10 + b"\n")
    assert [len(line.text) for line in lines] == [MAX_LINE_BYTES + 1, 11]
