"""An unnamed temporary file that holds an archive.

Size and checksum of an archive are announced before its first byte is sent, so it has to be stored
first: on disk, as it may be larger than memory. Since the file has no name, nothing of it remains
however this program ends.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Generator, Iterable
from contextlib import suppress
from typing import Final

from pycrictl.base.errors import CopyError, NoSpace
from pycrictl.base.units import quote
from pycrictl.copy.archive.pack import crc32, file_pieces
from pycrictl.copy.tree.content import DEFAULT_FOLDER, SparseWriter

_WINDOW_BYTES: Final = 8 * 1024 * 1024
_KEPT_WINDOWS: Final = 4
_CHECK_BYTES: Final = 8 * 1024 * 1024
_NO_UNNAMED: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL})
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Spool:
    """Stores an archive until it is closed.

    Space reserved for root is not used: other programs on the node must not find the disk full.

    Raises:
        NoSpace: there is not enough space; ``write`` raises it, too.
        CopyError: no file can be created there.
    """

    def __init__(self, folder: str | None = None) -> None:
        self.size_bytes = self.crc32 = self._unchecked_bytes = 0
        self._folder = folder or _temporary()
        try:
            self.fd = open_unnamed(self._folder)
        except OSError as exc:
            raise self._failure(exc.errno) from exc
        self._writer = SparseWriter(self.fd)
        try:
            self._check_space(_CHECK_BYTES // 8)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        self._unchecked_bytes += len(view)
        if self._unchecked_bytes >= _CHECK_BYTES:
            self._unchecked_bytes = 0
            self._check_space(_CHECK_BYTES)
        try:
            self._writer.write(view)
        except OSError as exc:
            raise self._failure(exc.errno) from exc
        self.crc32 = crc32(view, self.crc32)
        self.size_bytes += len(view)

    def fill(self, pieces: Iterable[bytes | memoryview]) -> None:
        for piece in pieces:
            self.write(piece)
        self.finish()

    def finish(self) -> None:
        self._writer.finish()

    def pieces(self, offset: int = 0) -> Generator[memoryview, None, None]:
        """Yield its content from an offset, each piece valid until the next is requested."""
        return file_pieces(self.fd, offset, self.size_bytes)

    def read(self, offset: int, buffer: memoryview) -> memoryview:
        """Read its content from an offset into a buffer; more may still be written."""
        piece = buffer[: self.size_bytes - offset]
        count = os.preadv(self.fd, [piece], offset)
        forget_behind(self.fd, offset, offset + count)  # a resuming client reads from disk again
        piece[count:] = bytes(len(piece) - count)  # a hole at the end is not yet in the file
        return piece

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _check_space(self, wanted_bytes: int) -> None:
        status = os.fstatvfs(self.fd)
        if status.f_bavail * status.f_frsize < wanted_bytes:
            raise self._failure(errno.ENOSPC)

    def _failure(self, number: int | None) -> CopyError:
        if number in _FULL:
            return NoSpace(
                f"there is not enough space for the copy in {quote(self._folder)}",
                hint="copy less, or try again later",
            )
        reason = os.strerror(number or 0).lower()
        return CopyError(f"cannot spool in {quote(self._folder)}: {reason}")


def _temporary() -> str:
    """Return the folder that ``TMPDIR`` names if it is writable, else the default."""
    folder = os.environ.get("TMPDIR", "")
    is_good = os.access(f"{folder}/.", os.W_OK | os.X_OK)  # fails for a file
    return folder if folder and is_good else DEFAULT_FOLDER


def open_unnamed(folder: str) -> int:
    """Create a file without a name: nothing of it remains however this program ends."""
    try:
        return os.open(folder, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        if exc.errno not in _NO_UNNAMED:
            raise
    name = f"{folder}/.pycrictl-{os.urandom(8).hex()}"
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.unlink(name)  # noqa: PTH108 (pathlib would be imported for this alone)
    return fd


def forget_behind(fd: int, begin: int, end: int) -> None:
    """Write the file's older cached pages to disk, and drop them from memory.

    Call it after each piece that was written or read. The next pieces then reuse that memory: fresh
    memory costs more than the copying, above all in a virtual machine. Also, the memory counted
    against a container's limit does not grow.
    """
    edge = end - end % _WINDOW_BYTES
    if edge > begin:
        kept_bytes = _KEPT_WINDOWS * _WINDOW_BYTES
        with suppress(OSError):  # not a file on disk
            os.posix_fadvise(fd, max(edge - kept_bytes, 0), kept_bytes, os.POSIX_FADV_DONTNEED)
