"""What a copy shows: the bar on a terminal, lines, and objects."""

from __future__ import annotations

import io
import json

import pytest

from pycrictl.base.environ import Environment
from pycrictl.pulls.state import Sums
from pycrictl.show.displays.copies import (
    MAX_WARNINGS,
    CopyDisplay,
    CopyLines,
    CopyObjects,
    summary,
)
from pycrictl.show.displays.meters import Meters
from pycrictl.show.displays.outlet import Lines, Outlet
from tests.show.screen import Terminal

GIB = 1 << 30
MIBS = 12_900_000
HALF = Sums(progress=GIB, total=2 * GIB, rate=100 * 1024 * 1024, eta_s=10.24)
KEYS = ("files", "directories", "links", "size_bytes", "skipped")


def copied(*counts: int) -> dict[str, float]:
    return {**dict(zip(KEYS, counts, strict=True)), "elapsed_s": 1.2}


COPIED = copied(3, 1, 0, MIBS, 0)


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ((3, 1, 0, MIBS, 0), "copied 3 files, 1 directory (12.3 MiB) in 1.2 s"),
        ((0, 0, 1, MIBS, 0), "copied 1 link in 1.2 s"),
        ((3, 1, 0, MIBS, 2), "copied 3 files, 1 directory (12.3 MiB) in 1.2 s, left out 2"),
    ],
)
def test_the_summary(counts: tuple[int, ...], told: str) -> None:
    assert summary(copied(*counts)) == told


def written(display: CopyDisplay, stream: io.StringIO) -> list[str]:
    display.show(HALF, 10.0)
    display.skip("d/pi\x1bpe", "it is a named pipe")
    display.end(COPIED)
    display.close()
    return stream.getvalue().splitlines()


def test_lines() -> None:
    stderr = io.StringIO()
    assert written(CopyLines(Lines(stderr)), stderr) == [
        "copying 50% 1.0/2.0 GiB 100.0 MiB/s ETA 0:11",
        "pycrictl: warning: left out d/pi\\x1bpe: it is a named pipe",
        "copied 3 files, 1 directory (12.3 MiB) in 1.2 s",
    ]


def test_objects() -> None:
    out = io.StringIO()
    display = CopyObjects(Outlet("json", Environment(wall_clock=lambda: 0.0), out, False))
    time = {"time": "1970-01-01T00:00:00.000Z"}
    assert [json.loads(line) for line in written(display, out)] == [
        {"progress": GIB, "total": 2 * GIB, **time},
        {"skipped": "d/pi\x1bpe", "reason": "it is a named pipe", **time},
        {**COPIED, **time},
    ]


@pytest.mark.parametrize("has_result", [True, False])
def test_many_warnings_are_counted(has_result: bool) -> None:
    """If the output is an archive, only what it lacks is reported."""
    stderr, program = io.StringIO(), "kubectl container-cp"
    display = CopyLines(Lines(stderr), program, shows_progress=False, has_result=has_result)
    for number in range(MAX_WARNINGS + 5):
        display.skip(f"d/{number}", "it is a socket")
    display.end(COPIED)
    warnings = [f"left out d/{number}: it is a socket" for number in range(MAX_WARNINGS)]
    lines = [f"{program}: warning: {text}" for text in (*warnings, "left out 5 more")]
    assert stderr.getvalue().splitlines() == lines + [summary(COPIED)] * (not has_result)


@pytest.mark.parametrize("columns", [20, 45, 80, 200])
def test_the_bar(columns: int) -> None:
    with Terminal(columns, 24) as terminal:
        bar, lines = CopyLines(Meters(terminal.stderr, {"TERM": "xterm"})), []
        for sums in (
            Sums(total=2 * GIB),
            HALF,
            Sums(progress=3 * GIB, total=2 * GIB, rate=1e6),  # the source grew
            Sums(progress=5, rate=1e6),
        ):
            bar.show(sums, 10.0)
            (line,) = terminal.visible_lines()
            assert len(line) < columns
            assert ("%" in line) == bool(sums.total)
            lines.append(line)
        if columns == 80:
            assert lines[1].startswith(" 50%|███")
            assert lines[1].endswith("| 1.0/2.0 GiB  100.0 MiB/s  ETA 0:11")
            assert lines[0].rindex("|") == lines[1].rindex("|")  # it keeps its length
        bar.skip("pipe", "no")
        assert len(terminal.visible_lines()) == (1 if columns > 40 else 2) + 1
        bar.close()
        told = "".join(terminal.visible_lines())
        assert "".join(told.split()) == "pycrictl:warning:leftoutpipe:no"
        bar.end(COPIED)
        bar.close()
        assert "12.3 MiB" in "".join(terminal.visible_lines())
