from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.base.errors import PycrictlError
from pycrictl.node.logs import file
from pycrictl.node.logs.file import LogFile
from pycrictl.node.logs.logline import line_starts

SECOND_NS = 10**9


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "0.log"


def rest(log: LogFile) -> bytes:
    return b"".join(log.blocks())


def test_blocks_go_on_where_they_ended(path: Path) -> None:
    path.write_bytes(b"a" * file.BLOCK_BYTES + b"b")
    with LogFile(str(path)) as log:
        assert [len(block) for block in log.blocks()] == [file.BLOCK_BYTES, 1]
        with path.open("ab") as writer:
            writer.write(b"more")
        assert rest(log) == b"more"
        assert rest(log) == b""


@pytest.mark.parametrize(
    ("content", "lines", "tail"),
    [
        (b"a\nb\nc\n", 0, b""),
        (b"a\nb\nc", 0, b"c"),
        (b"", 2, b""),
    ],
)
def test_tail(path: Path, content: bytes, lines: int, tail: bytes) -> None:
    path.write_bytes(content)
    with LogFile(str(path)) as log:
        log.seek_tail(lines, line_starts(None))
        assert rest(log) == tail


@given(st.lists(st.binary(max_size=9)), st.integers(1, 20), st.integers(1, 12))
def test_tail_over_many_blocks(
    tmp_path_factory: pytest.TempPathFactory, texts: list[bytes], lines: int, block_bytes: int
) -> None:
    content = b"\n".join(texts)
    pieces = re.findall(rb"[^\n]*\n|[^\n]+", content)
    path = tmp_path_factory.getbasetemp() / "tail.log"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file, "BLOCK_BYTES", block_bytes)
        with LogFile(str(path)) as log:
            log.seek_tail(lines, line_starts(None))
            assert rest(log) == b"".join(pieces[-lines:])


@given(st.lists(st.integers(0, 9), max_size=200), st.integers(0, 10))
def test_the_first_line_since_a_time(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], since: int
) -> None:
    lines = [b"1970-01-01T00:00:0%dZ stdout F %b\n" % (time, b"x" * time) for time in sorted(times)]
    path = tmp_path_factory.getbasetemp() / "since.log"
    path.write_bytes(b"".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file, "BLOCK_BYTES", 100)
        with LogFile(str(path)) as log:
            log.seek_time(since * SECOND_NS)
            shown = rest(log).splitlines(keepends=True)
    first = len(lines) - len(shown)
    assert shown == lines[first:]
    assert all(int(line[18:19]) < since for line in lines[:first])
    early = [line for line in shown if int(line[18:19]) < since]
    assert len(b"".join(early)) <= 2 * 100


def test_successor_comes_with_its_first_bytes(path: Path) -> None:
    path.write_bytes(b"old\n")
    with LogFile(str(path)) as log:
        assert log.successor() is None
        path.rename(path.with_name("0.log.1"))
        assert log.successor() is None
        path.touch()
        assert log.successor() is None
        path.write_bytes(b"new\n")
        new = log.successor()
        assert new is not None
        with new:
            assert rest(new) == b"new\n"
        assert rest(log) == b"old\n"


def test_successor_of_a_link(tmp_path: Path, path: Path) -> None:
    real = tmp_path / "real.log"
    real.write_bytes(b"old\n")
    path.symlink_to(real)
    with LogFile(str(path)) as log:
        real.rename(tmp_path / "real.log.1")
        real.write_bytes(b"new\n")
        new = log.successor()
        assert new is not None
        new.close()


def test_no_file(path: Path) -> None:
    with pytest.raises(PycrictlError, match="there is no log") as caught:
        LogFile(str(path))
    assert str(path) in caught.value.message
    assert caught.value.hint


def test_what_is_no_file(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(PycrictlError, match="is not a regular file"):
        LogFile(str(path))
    with pytest.raises(PycrictlError, match="is not a regular file"):
        LogFile(str(path.parent))


def test_a_path_of_nonsense() -> None:
    with pytest.raises(
        PycrictlError, match=r'the log "/a\\x00b" cannot be read: its path has a null byte'
    ):
        LogFile("/a\0b")
