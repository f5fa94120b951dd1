"""One log file, read in blocks from either end."""

from __future__ import annotations

import gzip
import io
import os
import re
import stat
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Final

from pycrictl.base.errors import PycrictlError
from pycrictl.base.units import quote
from pycrictl.node.logs.logline import MAX_LINE_BYTES, time_ns_of

BLOCK_BYTES: Final = 64 << 10
HEAD_BYTES: Final = 256
_START_BYTES: Final = 64 << 10
"""Where the first time is searched for."""

_READ_ERRORS: Final = (OSError, EOFError, zlib.error)


class LogFile:
    """An open log file, which stays open when another file takes its path.

    Attributes:
        head: the start of its first line, which tells it from the other files of the log, as lines
            begin with a time in nanoseconds; empty while that line is unfinished.
        begin_ns: the first time in it, or when it was last written if there is none, in nanoseconds
            since 1970.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            # Non-blocking, so as not to wait for a writer if it is a pipe.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except (OSError, ValueError) as exc:
            raise _failure(path, exc) from None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise PycrictlError(f"the log {quote(path, 4096)} is not a regular file")
        self._raw = io.FileIO(fd)
        self._file: io.FileIO | gzip.GzipFile = self._contents()
        self._identify()

    def _contents(self) -> io.FileIO | gzip.GzipFile:
        return self._raw

    def blocks(self) -> Iterator[bytes]:
        """Read on, up to the end or a truncation."""
        try:
            while block := self._file.read(BLOCK_BYTES):
                # The file may have been truncated and have grown past this place again.
                if self.is_truncated():
                    self._file.seek(-len(block), os.SEEK_CUR)
                    return
                yield block
        except _READ_ERRORS as exc:
            raise _failure(self.path, exc) from None

    def is_truncated(self) -> bool:
        """Return whether the file was truncated since it was opened or rewound."""
        if not self.head:
            self._identify()
        return self._stat().st_size < self.position or self.head != _head(self._start(HEAD_BYTES))

    def is_same(self, other: LogFile) -> bool:
        """Return whether this is the other file, under another name or copied."""
        if not other.head:
            other._identify()
        has_same_head = bool(other.head) and self.head == other.head
        return has_same_head or os.path.samestat(self._stat(), other._stat())

    @property
    def position(self) -> int:
        """Where to read on."""
        return self._file.tell()

    def seek(self, position: int) -> None:
        try:
            self._file.seek(position)
        except _READ_ERRORS as exc:
            raise _failure(self.path, exc) from None

    def rewind(self) -> None:
        """Read on from the beginning of the file's new contents."""
        self.seek(0)
        self._identify()

    def seek_tail(self, lines: int, starts: re.Pattern[bytes], *, is_strict: bool = False) -> int:
        """Seek to the beginning of the last ``lines`` lines; return how many the file lacks.

        An unfinished last line counts as a line, unless ``is_strict``. For 0 lines, seek to the
        end, or to the beginning of an unfinished line.

        Args:
            starts: matches the line feed before each line that counts.
        """
        skips_unfinished = is_strict or not lines
        for offset, block in self._line_blocks_back():
            if skips_unfinished:
                block = block[: block.rfind(b"\n") + 1]
                skips_unfinished = False
            count = count_lines(block, starts)
            if count >= lines:
                self.seek(offset + start_of_line(count - lines, block, starts))
                return 0
            lines -= count
        self.seek(0)
        return lines

    def seek_time(self, time_ns: int) -> None:
        """Seek to a line before the first at or after a time; lines must be ordered by time."""
        low, high = 0, self._stat().st_size
        while high - low > BLOCK_BYTES:
            middle = (low + high) // 2
            line = self._read_at(middle).partition(b"\n")[2].partition(b"\n")[0]
            line_ns = time_ns_of(line)
            low, high = (
                (middle, high) if line_ns is not None and line_ns < time_ns else (low, middle)
            )
        offset, block = next(self._line_blocks_back(low), (0, b""))
        self.seek(offset + block.rfind(b"\n") + 1)

    def line_ahead(self) -> bytes | None:
        """Return the line at the position, or a long one's beginning; None at the end."""
        block = self._read_at(self.position)
        return block.partition(b"\n")[0] if block else None

    def successor(self) -> LogFile | None:
        """Return the file that has replaced this one at its path, once it is not empty.

        Until then the runtime may still write to the old file.
        """
        try:
            there = os.stat(self.path)  # noqa: PTH116 (by descriptor)
            if os.path.samestat(there, self._stat()) or not there.st_size:
                return None
            return LogFile(self.path)
        except (OSError, PycrictlError):
            return None  # it does not exist yet, or no longer

    def close(self) -> None:
        self._raw.close()

    def __enter__(self) -> LogFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _identify(self) -> None:
        start = self._start(_START_BYTES)
        self.head = _head(start)
        times = filter(None, map(time_ns_of, start.split(b"\n")))
        self.begin_ns = next(times, self._stat().st_mtime_ns)

    def _start(self, size: int) -> bytes:
        return os.pread(self._raw.fileno(), size, 0)

    def _read_at(self, offset: int) -> bytes:
        return os.pread(self._raw.fileno(), BLOCK_BYTES, offset)

    def _stat(self) -> os.stat_result:
        return os.fstat(self._raw.fileno())

    def _line_blocks_back(self, end: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield blocks of whole lines, the last first, each with its offset."""
        end = self._stat().st_size if end is None else end
        rest = b""
        while end > 0:
            start = max(end - BLOCK_BYTES, 0)
            block = os.pread(self._raw.fileno(), end - start, start) + rest
            cut = block.find(b"\n") + 1 or len(block)
            if start == 0 or len(block) > MAX_LINE_BYTES:
                cut = 0
            rest, block = block[:cut], block[cut:]
            if block:
                yield start + cut, block
            end = start


def _head(start: bytes) -> bytes:
    line, line_feed, _ = start[:HEAD_BYTES].partition(b"\n")
    return line if line_feed or len(line) == HEAD_BYTES else b""


def _line_starts(block: bytes) -> bytes:
    """Return whole lines, each with a line feed before it."""
    return b"\n" + block.removesuffix(b"\n") if block else b""


def count_lines(block: bytes, starts: re.Pattern[bytes]) -> int:
    lines = _line_starts(block)
    return lines.count(b"\n") if starts.pattern == b"\n" else len(starts.findall(lines))


def start_of_line(number: int, block: bytes, starts: re.Pattern[bytes]) -> int:
    """Return the offset of a line, which is counted from 0; that of the end if there is none."""
    match = next(islice(starts.finditer(_line_starts(block)), number, None), None)
    return len(block) if match is None else match.start()


def _failure(path: str, exc: Exception) -> PycrictlError:
    name = quote(path, 4096)
    match exc:
        case FileNotFoundError() | NotADirectoryError():
            return PycrictlError(
                f"there is no log {name}",
                hint="logs are files of the node: is it this one, and has the container started?",
            )
        case PermissionError():
            return PycrictlError(f"no permission to read the log {name}", hint="run it as root")
        case ValueError():
            return PycrictlError(f"the log {name} cannot be read: its path has a null byte")
        case gzip.BadGzipFile() | EOFError() | zlib.error():
            return PycrictlError(f"the rotated log {name} is damaged")
    reason = (isinstance(exc, OSError) and exc.strerror) or str(exc)
    return PycrictlError(f"the log {name} cannot be read: {reason.lower()}")
