"""Lines for people, objects for programs: what becomes of them, and of their readers."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator

import pytest

from pycrictl.environ import Environment
from pycrictl.show.displays.modes import Outlet
from pycrictl.show.displays.writers import Lines, Objects, Silent


@pytest.fixture
def gone() -> Iterator[io.TextIOWrapper]:
    """A stream whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    yield stream
    with pytest.raises(BrokenPipeError):
        stream.close()


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


def test_objects_that_nobody_reads_are_dropped(gone: io.TextIOWrapper) -> None:
    lost = objects(gone)
    lost.write_objects([{"a": 1}])
    lost.write_objects([{"a": 2}])


def test_a_result_that_nobody_reads_is_an_error(gone: io.TextIOWrapper) -> None:
    with pytest.raises(BrokenPipeError):
        objects(gone, is_result=True).write_objects([{"a": 1}])


def test_each_batch_is_stamped_and_flushed() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream, os.fdopen(reader) as lines:
        objects(stream).write_objects([{"a": "\x1b\u202e\ud800"}])
        line = lines.readline()
        assert line.isascii()
        assert json.loads(line) == {"a": "\x1b\u202e\ud800", "time": "2023-11-14T22:13:20.123Z"}


def test_notes_stand_beside_the_objects() -> None:
    stream, stderr = io.StringIO(), io.StringIO()
    Objects(Outlet("json", Environment(stderr=stderr), stream, True)).note("broke\x1b[1m\nhere")
    assert (stream.getvalue(), stderr.getvalue()) == ("", "broke\\x1b[1m here\n")


def test_silent_shows_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    display = Silent()
    display.show(object())
    display.note("note")
    display.skip("path", "reason")
    display.end(["image"])
    display.close()
    assert capfd.readouterr() == ("", "")
