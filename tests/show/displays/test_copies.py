"""What a copy shows: the bar on a terminal, lines, and objects."""

from __future__ import annotations

import io
import json

import pytest

from pycrictl.errors import UsageError
from pycrictl.show.displays.copies import (
    MAX_WARNINGS,
    Bar,
    CopyDisplay,
    JsonLines,
    PlainLines,
    Progress,
    Silent,
    open_copy_display,
    summary,
)
from tests.show.screen import Terminal

GIB = 1 << 30
COUNTS = {
    "files": 3,
    "directories": 1,
    "links": 0,
    "size_bytes": 12_900_000,
    "kept": 0,
    "skipped": 0,
}
HALF = Progress(GIB, 2 * GIB, 100 * 1024 * 1024, 10.0)


class Dumb(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ({}, "copied 3 files, 1 directory (12.3 MiB) in 1.2 s"),
        ({"files": 1, "directories": 0}, "copied 1 file (12.3 MiB) in 1.2 s"),
        ({"files": 0, "directories": 2}, "copied 2 directories in 1.2 s"),
        ({"files": 0, "directories": 0, "links": 1}, "copied 1 link in 1.2 s"),
        (
            {"files": 0, "directories": 0, "size_bytes": 0, "kept": 1},
            "copied 0 files in 1.2 s, kept 1 that were there",
        ),
        ({"skipped": 2}, "copied 3 files, 1 directory (12.3 MiB) in 1.2 s, left out 2"),
    ],
)
def test_the_summary(counts: dict[str, int], told: str) -> None:
    assert summary({**COUNTS, **counts}, 1.2) == told


def kinds(stderr: io.StringIO, *, term: str = "xterm", quiet: bool = False) -> dict[str, type]:
    return {
        mode: type(open_copy_display(mode, stderr=stderr, environ={"TERM": term}, quiet=quiet))
        for mode in ("plain", "json", "none")
    }


def test_which_display_is_opened() -> None:
    expected = {"plain": PlainLines, "json": JsonLines, "none": PlainLines}
    assert kinds(io.StringIO()) == expected
    assert kinds(Dumb(), term="dumb") == expected
    assert set(kinds(io.StringIO(), quiet=True).values()) == {Silent}
    paces = {
        mode: open_copy_display(mode, stderr=io.StringIO(), environ={}, quiet=False).interval_s
        for mode in ("auto", "bar", "plain", "none")
    }
    assert paces == {"auto": None, "bar": 10.0, "plain": 10.0, "none": None}
    with pytest.raises(UsageError, match="unknown kind of progress"):
        open_copy_display("loud", stderr=io.StringIO(), environ={}, quiet=False)


def tell(display: CopyDisplay, stderr: io.StringIO) -> list[str]:
    display.show(HALF)
    display.skip("d/pi\x1bpe", "it is a named pipe")
    display.finish(COUNTS, 1.2)
    display.close()
    return stderr.getvalue().splitlines()


def test_lines() -> None:
    stderr = io.StringIO()
    assert tell(PlainLines(stderr, tells_progress=True), stderr) == [
        "copying 50% 1.0/2.0 GiB 100.0 MiB/s ETA 0:11",
        "pycrictl: warning: left out d/pi\\x1bpe: it is a named pipe",
        "copied 3 files, 1 directory (12.3 MiB) in 1.2 s",
    ]


def test_many_warnings_are_counted() -> None:
    stderr = io.StringIO()
    display = PlainLines(stderr, tells_progress=False)
    for number in range(MAX_WARNINGS + 5):
        display.skip(f"d/{number}", "it is a socket")
    display.finish(COUNTS, 1.2)
    told = stderr.getvalue().splitlines()
    assert len(told) == MAX_WARNINGS + 2
    assert told[-2] == "pycrictl: warning: left out 5 more"


def test_objects() -> None:
    stderr = io.StringIO()
    first, skipped, last = map(json.loads, tell(JsonLines(stderr), stderr))
    assert first == {"progress": GIB, "total": 2 * GIB}
    assert skipped == {"skipped": "d/pi\x1bpe", "reason": "it is a named pipe"}
    assert last == {**COUNTS, "elapsed_s": 1.2}


def test_a_stderr_that_goes_away() -> None:
    stderr = io.StringIO()
    display = PlainLines(stderr, tells_progress=True)
    stderr.close()
    display.show(HALF)
    display.finish(COUNTS, 1.2)


@pytest.mark.parametrize("columns", [20, 45, 80, 200])
def test_the_bar(columns: int) -> None:
    with Terminal(columns, 24) as terminal:
        bar = Bar(terminal.stderr, {"TERM": "xterm"})
        for progress in (
            Progress(0, 2 * GIB, None, 0.2),
            HALF,
            Progress(3 * GIB, 2 * GIB, 1e6, 30.0),  # the source grew
            Progress(5, None, 1e6, 30.0),
        ):
            bar.show(progress)
            (line,) = terminal.look()
            assert len(line) < columns
            assert ("%" in line) == (progress.total_bytes is not None)
        bar.skip("pipe", "no")
        assert len(terminal.look()) == (1 if columns > 40 else 2) + 1
        bar.close()
        told = "".join(terminal.look())
        assert "".join(told.split()) == "pycrictl:warning:leftoutpipe:no"
        bar.finish(COUNTS, 1.2)
        bar.close()
        assert "12.3 MiB" in "".join(terminal.look())


def test_the_bar_keeps_its_length() -> None:
    with Terminal(80, 24) as terminal:
        bar = Bar(terminal.stderr, {"TERM": "xterm"})
        ends = set()
        for progress in (Progress(0, 2 * GIB, None, 0.2), HALF):
            bar.show(progress)
            (line,) = terminal.look()
            ends.add(line.rindex("|"))
        assert len(ends) == 1
        assert line.endswith("1.0/2.0 GiB   100.0 MiB/s  ETA 0:11")
        bar.close()
