from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.base.errors import PycrictlError
from pycrictl.node.logs.file import LogFile
from pycrictl.node.logs.logline import line_starts

SECOND_NS = 10**9


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "0.log"


def rest(log: LogFile) -> bytes:
    return b"".join(log.blocks())


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
    with LogFile(str(path), block_bytes=block_bytes) as log:
        log.seek_tail(lines, line_starts(None))
        assert rest(log) == b"".join(pieces[-lines:])


@given(st.lists(st.integers(0, 9), max_size=200), st.integers(0, 10))
def test_the_first_line_since_a_time(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], since: int
) -> None:
    lines = [b"1970-01-01T00:00:0%dZ stdout F %b\n" % (time, b"x" * time) for time in sorted(times)]
    path = tmp_path_factory.getbasetemp() / "since.log"
    path.write_bytes(b"".join(lines))
    with LogFile(str(path), block_bytes=100) as log:
        log.seek_time(since * SECOND_NS)
        shown = rest(log).splitlines(keepends=True)
    first = len(lines) - len(shown)
    assert shown == lines[first:]
    assert all(int(line[18:19]) < since for line in lines[:first])
    early = [line for line in shown if int(line[18:19]) < since]
    assert len(b"".join(early)) <= 2 * 100


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
