from __future__ import annotations

import os
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pycrictl.base.errors import PycrictlError
from pycrictl.node.logs.log_reader import LogReader, Selection, pause_for
from tests.support.logfiles import ALL, append, follow, line, lines, on_stream, read


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "0.log"


def test_unfinished_last_line(path: Path) -> None:
    path.write_bytes(lines("a", "b")[:-1])
    assert on_stream(read(path)) == "a\nb"
    assert on_stream(read(path, Selection(tail_lines=1))) == "b"
    assert read(path, Selection(tail_lines=0)) == []


def test_tail_of_one_output(path: Path) -> None:
    rare = b"".join(line(f"e{number}", "stderr") + lines("x") * 500 for number in range(6))
    path.write_bytes(rare)
    wanted = Selection(tail_lines=2, only="stderr")
    assert on_stream(read(path, wanted), "stderr") == "e4\ne5\n"
    whole = read(path, Selection(tail_lines=9, only="stderr"))
    assert on_stream(whole, "stderr").count("\n") == 6
    assert on_stream(read(path, Selection(tail_lines=3, only="stdout"))) == "x\nx\nx\n"
    path.write_bytes(line("a") + line("e", "stderr") + line("b")[:-1])
    assert on_stream(read(path, Selection(tail_lines=1, only="stdout"))) == "b"
    assert on_stream(read(path, Selection(tail_lines=2, only="stdout"))) == "a\nb"


def test_first_bad_line_is_told_once(path: Path) -> None:
    path.write_bytes(lines("a") + b"x\x1b[2J\n" + lines("b") + b"y\n")
    reported: list[str] = []
    chunks = list(LogReader(str(path), ALL, warn=reported.append).read())
    assert on_stream(chunks) == "a\nx\x1b[2J\nb\ny\n"
    assert reported == [r"the log has lines in an unknown format, the first is 'x\x1b[2J'"]


def test_last_words_are_not_lost(path: Path) -> None:
    """Output written just before the runtime reports the container's end is still read."""
    path.write_bytes(b"")

    def is_alive() -> bool:
        append(path, lines("last"))()
        return False

    reader = LogReader(str(path), ALL, warn=pytest.fail)
    assert on_stream(list(reader.follow(is_alive, lambda: pytest.fail("waits")))) == "last\n"


def test_rotation_with_late_writes(path: Path) -> None:
    old = path.with_name("0.log.1")
    path.write_bytes(lines("a"))

    def both() -> None:
        append(old, lines("later"))()
        append(path, lines("new"))()

    chunks = follow(
        path,
        lambda: path.rename(old),
        append(old, lines("late")),
        path.touch,
        both,
        append(path, lines("newer")),
    )
    assert on_stream(chunks) == "a\nlate\nlater\nnew\nnewer\n"


def test_removed_log(path: Path) -> None:
    path.write_bytes(lines("a"))
    assert on_stream(follow(path, path.unlink, lambda: None)) == "a\n"


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (Selection(tail_lines=1), "b\nc\n"),
        (Selection(tail_lines=0), "c\n"),
        (Selection(tail_lines=1, only="stdout"), "b\nc\n"),
        (Selection(limit_bytes=5), "a\nb\nc"),
        (Selection(since_ns=2**62), ""),
    ],
)
def test_follow_a_selection(path: Path, wanted: Selection, text: str) -> None:
    path.write_bytes(lines("a", "b"))
    assert on_stream(follow(path, append(path, lines("c")), selection=wanted)) == text


def test_tail_of_nothing_begins_with_a_whole_line(path: Path) -> None:
    path.write_bytes(lines("a", "b")[:-4])
    chunks = follow(path, append(path, lines("b")[-4:]), selection=Selection(tail_lines=0))
    assert on_stream(chunks) == "b\n"


def test_a_log_that_is_just_rotated(path: Path) -> None:
    steps = [lambda: None, append(path, lines("a")), append(path, lines("b"))]
    assert on_stream(follow(path, *steps)) == "a\nb\n"


def test_a_log_that_stays_away(path: Path) -> None:
    waits: list[int] = []
    reader = LogReader(str(path), ALL, warn=pytest.fail, patience_s=0.1)
    for chunks in (reader.follow(lambda: True, lambda: waits.append(1)), reader.read()):
        with pytest.raises(PycrictlError, match="there is no log"):
            next(chunks)
    assert waits


def test_a_writer_that_never_pauses(path: Path) -> None:
    """Rotating the log of a busy writer loses, splits and repeats no line."""
    total = 20_000
    path.touch()
    is_done = threading.Event()

    def write() -> None:
        file = path.open("ab", buffering=0)
        try:
            for number in range(total):
                if number and number % 500 == 0:
                    path.rename(path.with_name(f"0.log.20240102-{number:06}"))
                    file.close()
                    file = path.open("ab", buffering=0)
                file.write(line(str(number)))
        finally:
            file.close()
            is_done.set()

    writer = threading.Thread(target=write)
    writer.start()
    reader = LogReader(str(path), ALL, warn=pytest.fail)
    chunks = list(reader.follow(lambda: not is_done.is_set(), lambda: time.sleep(0.001)))
    writer.join()
    assert on_stream(chunks).split() == [str(number) for number in range(total)]


def test_a_pause_ends_for_good_when_nobody_reads_any_more() -> None:
    reader, writer = os.pipe()
    pause = pause_for(writer, pause_s=0.1)
    began_s = time.monotonic()
    pause()
    assert time.monotonic() - began_s > 0.05
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        pause()
    os.close(writer)


def test_a_pause_with_output_into_a_file(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        pause = pause_for(file.fileno(), pause_s=0.1)
        pause()
        began_s = time.monotonic()
        pause()
    assert time.monotonic() - began_s > 0.05


def test_since_on_a_node_whose_clock_was_set_back(path: Path) -> None:
    times = [*range(1_000), *range(970, 2_000)]
    log = [
        f"{datetime.fromtimestamp(time, tz=UTC):%FT%TZ} stdout F {'x' * 1000}{time}\n"
        for time in times
    ]
    path.write_text("".join(log))
    wanted = Selection(since_ns=990 * 1_000_000_000)
    seen = b"".join(chunk.data for chunk in read(path, wanted)).split()
    assert [int(line[1000:]) for line in seen] == [time for time in times if time >= 990]
