"""Logs over rotations: what is on disk before the log, and rotations while it is followed."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pycrictl.base.errors import PycrictlError
from pycrictl.node.logs.log_reader import LogReader, Selection
from pycrictl.node.logs.logline import LogStream
from pycrictl.node.logs.logtime import timestamp_ns
from tests.support.logfiles import follow, line, on_stream, read

OLDEST, OLD, LOG = "0.log.20240102-030400.gz", "0.log.20240102-030410", "0.log"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of three files, with a line for every second from 0 to 8."""
    write(tmp_path / OLDEST, 0, 1, 2)
    write(tmp_path / OLD, 3, 4, 5)
    write(tmp_path / LOG, 6, 7, 8)
    for name in ("0.log.20240102-030405.tmp", "0.log.old", "0.logs", "1.log", "0.log.1.bak"):
        write(tmp_path / name, 59)
    return tmp_path / LOG


def content(*seconds: int) -> bytes:
    return b"".join(line(str(n), ("stdout", "stderr")[n % 2], second=n) for n in seconds)


def write(path: Path, *seconds: int) -> None:
    data = content(*seconds)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def numbers(path: Path, selection: Selection) -> list[int]:
    return [int(text) for chunk in read(path, selection) for text in chunk.data.split()]


@pytest.mark.parametrize("only", [None, "stdout", "stderr"])
def test_everything_on_disk_is_read_in_order(path: Path, only: LogStream | None) -> None:
    shown = [n for n in range(9) if only in (None, ("stdout", "stderr")[n % 2])]
    assert numbers(path, Selection(only=only)) == shown
    for lines in range(1, 10):
        assert numbers(path, Selection(only=only, tail_lines=lines)) == shown[-lines:]
    for second in range(9):
        since_ns = timestamp_ns(b"2024-01-02T03:04:%02dZ" % second)
        expected = [n for n in shown if n >= second]
        assert numbers(path, Selection(only=only, since_ns=since_ns)) == expected


def test_crictl_reads_the_newest_file_alone(path: Path) -> None:
    assert numbers(path, Selection(is_strict=True)) == [6, 7, 8]
    assert numbers(path, Selection(is_strict=True, tail_lines=9)) == [6, 7, 8]


def test_files_that_are_not_needed_are_not_read(path: Path) -> None:
    """The oldest one is damaged behind its first lines, which would be a warning."""
    damaged = path.with_name(OLDEST)
    lines = b"".join(line("x" * 50, second=n % 3) for n in range(9000))
    damaged.write_bytes(gzip.compress(lines)[:-100])
    late_ns = timestamp_ns(b"2024-01-02T03:06:00Z")
    os.utime(damaged, ns=(0, late_ns - 61 * 10**9))  # a minute, as the clock may be set back
    assert numbers(path, Selection(tail_lines=6)) == [3, 4, 5, 6, 7, 8]
    path.write_bytes(line("late", second=5).replace(b"03:04", b"03:06"))
    assert on_stream(read(path, Selection(since_ns=late_ns))) == "late\n"
    warnings: list[str] = []
    shown = list(LogReader(str(path), Selection(), warn=warnings.append).read())
    assert on_stream(shown).endswith("4\nlate\n")
    assert warnings[0] == f'the rotated log "{damaged}" is damaged'


@pytest.mark.parametrize("cut", [0, 5, -8, -1])
def test_a_damaged_file_hides_no_other(path: Path, cut: int) -> None:
    damaged = path.with_name(OLDEST)
    damaged.write_bytes(damaged.read_bytes()[:cut] + b"nonsense")
    warnings: list[str] = []
    for selection in (Selection(), Selection(tail_lines=9), Selection(since_ns=0)):
        shown = list(LogReader(str(path), selection, warn=warnings.append).read())
        assert on_stream(shown).endswith("4\n6\n8\n")
    assert len(warnings) == 3


def test_files_that_cannot_be_opened_hide_no_other(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.with_name("0.log.20240102-030411").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(path.with_name("none")))
    warnings: list[str] = []
    shown = list(LogReader(str(path), Selection(), warn=warnings.append).read())
    assert on_stream(shown) == "4\n6\n8\n"
    assert [text.partition('"')[2].partition('" ')[2] for text in warnings] == [
        "cannot be unpacked: no such file or directory",
        "is not a regular file",
    ]


def test_a_file_and_its_unfinished_compressed_copy(path: Path) -> None:
    whole = path.with_name(OLD)
    whole.with_name(f"{OLD}.gz").write_bytes(gzip.compress(whole.read_bytes())[:20])
    assert numbers(path, Selection()) == list(range(9))


def test_a_record_that_is_split_over_a_rotation(path: Path) -> None:
    path.with_name(OLD).write_bytes(line("a ", tag="P", second=3) + line("b ", tag="P", second=4))
    path.write_bytes(line("c", second=6))
    for selection in (Selection(tail_lines=3), Selection(tail_lines=3, has_timestamps=True)):
        assert on_stream(read(path, selection)).split("Z ")[-1] == "a b c\n"


def test_big_compressed_files(tmp_path: Path) -> None:
    """The tail starts in the middle of a block of the older of two files."""
    text = b"".join(line(f"{n:06}", second=n // 1000) for n in range(10_000))
    (tmp_path / OLDEST).write_bytes(gzip.compress(text))
    write(tmp_path / LOG, 11)
    for lines in (1, 2, 2000, 9_999, 10_000, 10_001, 10_002):
        shown = on_stream(read(tmp_path / LOG, Selection(tail_lines=lines))).split()
        whole = [*(f"{n:06}" for n in range(10_000))]
        assert shown == whole[max(10_001 - lines, 0) :]


# Following


class Writer:
    """A container that writes a number at a time, and a kubelet that rotates its log."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self.rotations = 0
        self.path.touch()

    def write(self, count: int = 1) -> None:
        with self.path.open("ab") as file:
            for number in range(self.count, self.count + count):
                file.write(line(str(number), second=number))
        self.count += count

    def rotate(self, *, compress: bool = False) -> Path:
        self.rotations += 1
        old = self.path.with_name(f"0.log.20240102-0304{self.rotations:02}")
        self.path.rename(old)
        if compress:
            old.with_name(f"{old.name}.gz").write_bytes(gzip.compress(old.read_bytes()))
            old.unlink()
        return old


Step = Callable[[Writer], object]


def rotate_twice(writer: Writer) -> None:
    for _ in range(2):
        writer.write(2)
        writer.rotate()
    writer.write()


def rotate_and_compress(writer: Writer) -> None:
    for _ in range(3):
        writer.write(2)
        writer.rotate(compress=True)
    writer.write()


def rotate_and_remove(writer: Writer) -> None:
    """Rotate so often that the file that was followed is removed."""
    writer.write()
    old = writer.rotate()
    rotate_twice(writer)
    old.unlink()


@pytest.mark.parametrize(
    "steps",
    [
        [rotate_twice],
        [rotate_twice, Writer.write, rotate_twice],
        [rotate_and_compress, rotate_twice],
        [rotate_and_remove, rotate_and_compress],
    ],
)
def test_rotations_while_following_lose_nothing(tmp_path: Path, steps: Sequence[Step]) -> None:
    writer = Writer(tmp_path / LOG)
    writer.write(2)
    writer.rotate()
    writer.write(3)
    todo = [lambda step=step: step(writer) for step in steps]
    shown = follow(writer.path, *todo)
    assert on_stream(shown).split() == [str(number) for number in range(writer.count)]


@pytest.mark.parametrize("lines", [1, 2, 5])
def test_a_truncated_log_that_grows_again(tmp_path: Path, lines: int) -> None:
    """To less than its size, to the same, or beyond."""
    writer = Writer(tmp_path / LOG)
    writer.write(2)

    def truncate() -> None:
        writer.path.write_bytes(b"")
        writer.write(lines)

    shown = on_stream(follow(writer.path, truncate, truncate))
    assert shown.split() == [str(number) for number in range(writer.count)]


def test_a_log_that_is_gone_with_rotated_ones_left(path: Path) -> None:
    path.unlink()
    with pytest.raises(PycrictlError, match="there is no log"):
        read(path)
