"""The one rule of ``--progress``, and lines and objects with or without a reader."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

import pytest

from pycrictl.base.environ import Environment
from pycrictl.pulls.state import Sums
from pycrictl.show.displays import Mode
from pycrictl.show.displays.copies import open_copy_display
from pycrictl.show.displays.outlet import Lines, Objects, Outlet, Stdout, choose
from pycrictl.show.displays.pull_lines import open_display
from tests.show.screen import Terminal
from tests.show.views import MIB, layer, view

RULE: dict[tuple[Mode, str], tuple[str, str, str]] = {
    # What the command writes to stdout: progress, a result, nothing.
    ("auto", "terminal"): ("bar", "bar", "bar"),
    ("auto", "terminal with log lines"): ("plain", "plain", "plain"),
    ("auto", "dumb terminal"): ("plain", "plain", "plain"),
    ("auto", "terminal of unknown kind"): ("plain", "plain", "plain"),
    ("auto", "file"): ("plain", "none", "none"),
    ("bar", "terminal"): ("bar", "bar", "bar"),
    ("bar", "terminal with log lines"): ("bar", "bar", "bar"),
    ("bar", "dumb terminal"): ("plain", "plain", "plain"),
    ("bar", "file"): ("plain", "plain", "plain"),
    ("plain", "terminal"): ("plain", "plain", "plain"),
    ("plain", "file"): ("plain", "plain", "plain"),
    ("json", "terminal"): ("stdout", "stderr", "stdout"),
    ("json", "file"): ("stdout", "stderr", "stdout"),
    ("none", "terminal"): ("none", "none", "none"),
    ("none", "file"): ("none", "none", "none"),
}
TERMS = {"dumb terminal": "dumb", "terminal of unknown kind": ""}
NOTE = "pycrictl: no bars: standard error is not a terminal that can show them\n"


@contextmanager
def streams(kind: str) -> Iterator[tuple[TextIO, Callable[[], str]]]:
    """Yield a standard error of that kind, and a function that returns its content."""
    if kind == "file":
        stderr = io.StringIO()
        yield stderr, stderr.getvalue
    else:
        with Terminal() as terminal:
            yield terminal.stderr, lambda: "".join(f"{line}\n" for line in terminal.visible_lines())


def show_pull(outlet: Outlet) -> Callable[[], None]:
    display = open_display(outlet)
    display.show(view([layer(1, progress=MIB, total=4 * MIB)]))
    return display.close


def show_copy(outlet: Outlet) -> Callable[[], None]:
    display = open_copy_display(outlet)
    if display.interval_s is not None:
        display.show(Sums(progress=MIB, total=4 * MIB), 60.0)
    return display.close


@pytest.mark.parametrize("family", [show_pull, show_copy])
@pytest.mark.parametrize(("mode", "kind"), RULE)
def test_the_rule(mode: Mode, kind: str, family: Callable[[Outlet], Callable[[], None]]) -> None:
    contents: tuple[Stdout, ...] = ("progress", "result", "nothing")
    for stdout, expected in zip(contents, RULE[mode, kind], strict=True):
        with streams(kind) as (stderr, on_stderr):
            objects = io.StringIO()
            environ = {"TERM": TERMS.get(kind, "xterm"), "NO_COLOR": "1"}
            env = Environment(stdout=objects, stderr=stderr, environ=environ)
            outlet = choose(mode, env, stdout=stdout, has_log="log" in kind)
            close = family(outlet)
            out, err = objects.getvalue(), on_stderr()
            close()
        is_replaced = mode == "bar" and expected == "plain"
        assert err.startswith(NOTE) == is_replaced
        err = err.removeprefix(NOTE)
        shown = {"stdout": out, "stderr": err}
        if expected in shown:
            assert '"progress": 1048576, "total": 4194304' in shown.pop(expected)
            assert set(shown.values()) == {""}
        else:
            assert out == ""
            assert ("25%|" in err) == (expected == "bar")
            assert bool(err) == (expected != "none")
        assert outlet.interval_s == (0.25 if expected == "bar" else 1.0)


@pytest.fixture
def gone() -> Iterator[io.TextIOWrapper]:
    """A stream whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    yield stream
    stream.close()  # its buffer holds nothing that would fail once more


def objects(stream: io.TextIOBase, *, is_result: bool = False) -> Objects:
    env = Environment(stderr=io.StringIO(), wall_clock=lambda: 1_700_000_000.1234)
    return Objects(Outlet("json", env, stream, is_result))  # type: ignore[arg-type]  # a TextIO


def test_lines_that_nobody_reads_are_dropped(gone: io.TextIOWrapper) -> None:
    lines = Lines(gone)
    lines.write(["a"])
    lines.note("still here")
    closed = io.StringIO()
    closed.close()
    Lines(closed).note("nor here")


def test_a_result_that_nobody_reads_is_an_error(gone: io.TextIOWrapper) -> None:
    with pytest.raises(BrokenPipeError):
        objects(gone, is_result=True).write_objects([{"a": 1}])
    with pytest.raises(BrokenPipeError):
        gone.close()


def test_each_batch_is_stamped_and_flushed() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream, os.fdopen(reader) as lines:
        objects(stream).write_objects([{"a": "\x1b\u202e\ud800"}])
        line = lines.readline()
        assert line.isascii()
        assert json.loads(line) == {"a": "\x1b\u202e\ud800", "time": "2023-11-14T22:13:20.123Z"}
