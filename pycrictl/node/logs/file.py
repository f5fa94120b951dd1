"""One log file, read in blocks from either end, and the rotated files beside it."""

from __future__ import annotations

import io
import os
import re
import shutil
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from pycrictl.base.errors import PycrictlError, reason_of
from pycrictl.base.units import quote_path
from pycrictl.node.logs.logline import MAX_LINE_BYTES, time_ns_of

_HEAD_BYTES: Final = 256
"""Enough to tell the files of a log apart, as lines begin with a time in nanoseconds."""


class LogMissing(PycrictlError):
    """There is no log; it is also missing briefly while it is rotated."""


class LogFile:
    """A log file, kept open when another takes its path; ``file`` is its content if unpacked."""

    def __init__(
        self, path: str, file: io.RawIOBase | None = None, *, block_bytes: int = 128 << 10
    ) -> None:
        self.path = path
        self._block_bytes = block_bytes
        self._file = file or _opened(path)
        self._head = self._start()

    def blocks(self) -> Iterator[bytes]:
        """Yield the blocks from the position on, up to the end or a truncation."""
        try:
            while block := self._file.read(self._block_bytes):
                # It may have been truncated and have grown past this place again.
                if self.is_truncated():
                    self.seek(self.position - len(block))
                    return
                yield block
        except OSError as exc:
            raise _failure(self.path, exc) from None

    def is_truncated(self) -> bool:
        """Return whether the file was truncated since it was opened or rewound."""
        start = self._start()
        if not start.startswith(self._head):
            return True
        self._head = start
        return self._stat().st_size < self.position

    def rewind(self) -> None:
        """Read on from the beginning of the file's new contents."""
        self.seek(0)
        self._head = self._start()

    def is_at(self, path: str) -> bool:
        """Return whether a path now leads to this file."""
        with suppress(OSError):
            return os.path.samestat(Path(path).stat(), self._stat())
        return False

    def is_same(self, other: LogFile) -> bool:
        """Return whether this is the other file, perhaps unpacked."""
        return self._start() == other._start()

    @property
    def position(self) -> int:
        """The offset of the next read."""
        return self._file.tell()

    def seek(self, position: int) -> None:
        self._file.seek(position)

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
        while high - low > self._block_bytes:
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
            if self.is_at(self.path) or not Path(self.path).stat().st_size:
                return None
            return LogFile(self.path)
        except (OSError, PycrictlError):
            return None  # it does not exist yet, or no longer

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> LogFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> bytes:
        return os.pread(self._file.fileno(), _HEAD_BYTES, 0)

    def _read_at(self, offset: int) -> bytes:
        return os.pread(self._file.fileno(), self._block_bytes, offset)

    def _stat(self) -> os.stat_result:
        return os.fstat(self._file.fileno())

    def _line_blocks_back(self, end: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield blocks of whole lines, the last first, each with its offset."""
        end = self._stat().st_size if end is None else end
        rest = b""
        while end > 0:
            start = max(end - self._block_bytes, 0)
            block = os.pread(self._file.fileno(), end - start, start) + rest
            cut = block.find(b"\n") + 1 or len(block)
            if start == 0 or len(block) > MAX_LINE_BYTES:
                cut = 0
            rest, block = block[:cut], block[cut:]
            if block:
                yield start + cut, block
            end = start


def _opened(path: str) -> io.FileIO:
    try:
        # Non-blocking, so as not to wait for a writer if it is a pipe.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError) as exc:
        raise _failure(path, exc) from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise PycrictlError(f"the log {quote_path(path)} is not a regular file")
    return io.FileIO(fd)


def rotated(path: str) -> list[str]:
    """Return the paths of the rotated files of a log, the oldest first, without ``.gz``."""
    log = os.path.realpath(path)
    # The kubelet appends the time to the name: 0.log.20261128-101112
    pattern = re.compile(rf"({re.escape(log)}[.][0-9]{{8}}-[0-9]{{6}})(?:[.]gz)?")
    matches = (pattern.fullmatch(str(file)) for file in Path(log).parent.glob("*"))
    return sorted({match[1] for match in matches if match})


def open_rotated(path: str, since_ns: int, warn: Callable[[str], None]) -> LogFile | None:
    """Open a rotated file; None if that fails, or it was last written before ``since_ns``.

    A compressed file is unpacked to a temporary file, up to any damage. While a file is being
    compressed, its original still exists and is read.
    """
    for name in (path, f"{path}.gz"):
        try:
            if Path(name).stat().st_mtime_ns < since_ns:
                return None
            return LogFile(path) if name == path else LogFile(name, _unpacked(name, warn))
        except FileNotFoundError:
            pass
        except PycrictlError as error:
            warn(error.message)
    return None


def _unpacked(path: str, warn: Callable[[str], None]) -> io.RawIOBase:
    import gzip  # noqa: PLC0415 - most logs have no compressed files
    import tempfile  # noqa: PLC0415

    try:
        file = tempfile.TemporaryFile(buffering=0)
    except OSError as exc:
        shown, reason = quote_path(path), reason_of(exc)
        raise PycrictlError(f"the rotated log {shown} cannot be unpacked: {reason}") from None
    try:
        with gzip.open(path) as compressed:
            shutil.copyfileobj(compressed, file)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        warn(f"the rotated log {quote_path(path)} is damaged")
    except OSError as exc:
        warn(_failure(path, exc).message)
    file.seek(0)
    return file


def _line_starts(block: bytes) -> bytes:
    """Return whole lines, each with a line feed before it."""
    return b"\n" + block.removesuffix(b"\n") if block else b""


def count_lines(block: bytes, starts: re.Pattern[bytes]) -> int:
    if starts.pattern != b"\n":
        return len(starts.findall(_line_starts(block)))
    # Twice as fast as bytes.count, which looks at byte after byte.
    return len(block) - len(block.replace(b"\n", b"")) + (block[-1:] not in (b"", b"\n"))


def start_of_line(number: int, block: bytes, starts: re.Pattern[bytes]) -> int:
    """Return the offset of a line, counted from 0; the end's offset if there is no such line."""
    match = next(islice(starts.finditer(_line_starts(block)), number, None), None)
    return len(block) if match is None else match.start()


def _failure(path: str, exc: Exception) -> PycrictlError:
    name = quote_path(path)
    match exc:
        case FileNotFoundError() | NotADirectoryError():
            return LogMissing(
                f"there is no log {name}",
                hint="logs are on the node: is this the container's node, and has it started?",
            )
        case PermissionError():
            return PycrictlError(f"no permission to read the log {name}", hint="run it as root")
    reason = (isinstance(exc, OSError) and exc.strerror) or str(exc)
    return PycrictlError(f"the log {name} cannot be read: {reason.lower()}")
