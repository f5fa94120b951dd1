"""The rotated files of a log, beside the file that is written to."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Final

from pycrictl.base.errors import PycrictlError
from pycrictl.node.logs.file import LogFile, count_lines, start_of_line
from pycrictl.node.logs.logline import MAX_LINE_BYTES

_SUFFIX: Final = re.compile(r"[.][0-9]+(?:-[0-9]+)?")
"""What rotation appends: ``.20261128-101112`` (the kubelet), or ``.1`` (Docker, logrotate)."""


class CompressedLogFile(LogFile):
    """A rotated file that was compressed by gzip."""

    def _contents(self) -> gzip.GzipFile:
        return gzip.GzipFile(fileobj=self._raw)

    def is_truncated(self) -> bool:
        return False

    def seek_tail(self, lines: int, starts: re.Pattern[bytes], *, is_strict: bool = False) -> int:
        total = 0
        with suppress(PycrictlError):  # damaged: that is found again when it is read
            for _, block in self._line_blocks():
                total += count_lines(block, starts)
        self.seek(0)
        left_out = total - lines
        for offset, block in self._line_blocks() if left_out > 0 else ():
            count = count_lines(block, starts)
            if count > left_out:
                self.seek(offset + start_of_line(left_out, block, starts))
                break
            left_out -= count
        return max(lines - total, 0)

    def seek_time(self, time_ns: int) -> None:
        """Do nothing: the decoder leaves out earlier lines."""

    def _start(self, size: int) -> bytes:
        with suppress(OSError, EOFError, zlib.error):
            start = self._file.read(size)
            self.seek(0)
            return start
        return b""

    def _line_blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yield blocks of whole lines, each with its offset."""
        offset, rest = self.position, b""
        for block in self.blocks():
            block = rest + block
            cut = block.rfind(b"\n") + 1
            if len(block) > MAX_LINE_BYTES:
                cut = len(block)
            if cut:
                yield offset, block[:cut]
            offset, rest = offset + cut, block[cut:]
        if rest:
            yield offset, rest


def open_earlier(log: LogFile) -> list[LogFile]:
    """Open the rotated files that come before a file of the log, the oldest first."""
    files = _open_all(log.path)
    return _kept(files, files[: _index(files, log)])


def open_later(log: LogFile, newer: LogFile | None) -> list[LogFile]:
    """Open the rotated files that continue ``log``, up to ``newer``, the oldest first.

    The first is ``log`` itself, or the copy that was made before it was truncated, at the position
    that was reached: it may have lines that were written after that.
    """
    files = _open_all(log.path)
    start, end = _index(files, log), _index(files, newer)
    if start == len(files):  # the file was removed meanwhile: those that were begun after it
        return _kept(files, [file for file in files[:end] if file.begin_ns > log.begin_ns])
    with suppress(PycrictlError):  # damaged: that is found again when it is read
        files[start].seek(log.position)
    return _kept(files, files[start:end])


def _open_all(path: str) -> list[LogFile]:
    """Open the rotated files of a log, the oldest first; leave out what cannot be opened.

    They are ordered by the times in them: names count backwards (Docker's), or follow the node's
    clock, which summer time sets back.
    """
    log = Path(os.path.realpath(path))
    with suppress(OSError):
        names = {entry.name.removesuffix(".gz") for entry in log.parent.iterdir()}
        files: list[LogFile] = []
        for name in sorted(names):
            if name.startswith(log.name) and _SUFFIX.fullmatch(name, len(log.name)):
                with suppress(PycrictlError):
                    files.append(_open(str(log.with_name(name))))
        return sorted(files, key=attrgetter("begin_ns"))
    return []


def _open(path: str) -> LogFile:
    """Open a file, or the one that it has been compressed to; at first there are both."""
    try:
        return LogFile(path)
    except PycrictlError:
        return CompressedLogFile(f"{path}.gz")


def _index(files: list[LogFile], wanted: LogFile | None) -> int:
    """Return the place of a file; behind all if it is not there."""
    if wanted is not None:
        for index, file in enumerate(files):
            if file.is_same(wanted):
                return index
    return len(files)


def _kept(files: list[LogFile], kept: list[LogFile]) -> list[LogFile]:
    for file in files:
        if file not in kept:
            file.close()
    return kept
