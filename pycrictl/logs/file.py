"""One log file, read in blocks from either end."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from typing import Final

from pycrictl.errors import PycrictlError
from pycrictl.units import quote

BLOCK_BYTES: Final = 64 << 10


class LogFile:
    """An open log file, which stays open when another file takes its path."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            # Non-blocking, so as not to wait for a writer if it is a pipe.
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except (OSError, ValueError) as exc:
            raise _failure(path, exc) from None
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            self.close()
            raise PycrictlError(f"the log {quote(path, 4096)} is not a regular file")

    def blocks(self) -> Iterator[bytes]:
        try:
            while block := os.read(self._fd, BLOCK_BYTES):
                yield block
        except OSError as exc:
            raise _failure(self.path, exc) from None

    def seek_tail(self, lines: int, *, is_strict: bool = False) -> None:
        """Seek to the beginning of the last ``lines`` lines.

        An unfinished last line counts as a line, unless ``is_strict``. For 0 lines, seek to the
        end, or to the beginning of an unfinished line.
        """
        end = os.fstat(self._fd).st_size
        ends_whole = is_strict or os.pread(self._fd, 1, max(end - 1, 0)) == b"\n"
        offset = self._behind_line_feed(max(lines + ends_whole, 1), end)
        os.lseek(self._fd, offset, os.SEEK_SET)

    def seek_time(self, is_early: Callable[[bytes], bool]) -> None:
        """Seek to a line before the first that is not early; lines must be ordered by time."""
        low, high = 0, os.fstat(self._fd).st_size
        while high - low > BLOCK_BYTES:
            middle = (low + high) // 2
            line = os.pread(self._fd, BLOCK_BYTES, middle).partition(b"\n")[2].partition(b"\n")[0]
            low, high = (middle, high) if is_early(line) else (low, middle)
        os.lseek(self._fd, self._behind_line_feed(1, low), os.SEEK_SET)

    def has_lines(self, number: int) -> bool:
        return self._behind_line_feed(number, os.fstat(self._fd).st_size) > 0

    def line_ahead(self) -> bytes:
        position = os.lseek(self._fd, 0, os.SEEK_CUR)
        return os.pread(self._fd, BLOCK_BYTES, position).partition(b"\n")[0]

    def _behind_line_feed(self, number: int, end: int) -> int:
        """Return the offset after the n-th line feed back from ``end``; 0 if there are fewer."""
        while end > 0:
            start = max(end - BLOCK_BYTES, 0)
            block = os.pread(self._fd, end - start, start)
            found = block.count(b"\n")
            if found >= number:
                position = len(block)
                for _ in range(number):
                    position = block.rfind(b"\n", 0, position)
                return start + position + 1
            number -= found
            end = start
        return 0

    def rewind_if_truncated(self) -> bool:
        if os.fstat(self._fd).st_size >= os.lseek(self._fd, 0, os.SEEK_CUR):
            return False
        os.lseek(self._fd, 0, os.SEEK_SET)
        return True

    def successor(self) -> LogFile | None:
        """Return the file that has replaced this one at its path, once it is not empty.

        Until then the runtime may still write to the old file.
        """
        try:
            there, here = os.stat(self.path), os.fstat(self._fd)  # noqa: PTH116 (by descriptor)
            if os.path.samestat(there, here) or not there.st_size:
                return None
            return LogFile(self.path)
        except (OSError, PycrictlError):
            return None  # it does not exist yet, or no longer

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> LogFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _failure(path: str, exc: OSError | ValueError) -> PycrictlError:
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
    return PycrictlError(f"the log {name} cannot be read: {(exc.strerror or str(exc)).lower()}")
