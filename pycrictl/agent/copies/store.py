"""The archives of sessions, in files without names: nothing of one outlives its agent."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from pycrictl.copy.archive.checksum import Checksum
from pycrictl.copy.archive.forgetting import forget_behind
from pycrictl.copy.archive.spool import open_unnamed
from pycrictl.errors import ConfigError, CopyError, NoSpace
from pycrictl.units import quote

AHEAD_BYTES: Final = 32 * 1024 * 1024
"""What stays in memory for those who read an archive right behind its writer."""


class Store:
    """A folder for archives.

    Args:
        folder: is made if it is not there; other files in it are left alone.

    Raises:
        ConfigError: it cannot be used.
    """

    def __init__(self, folder: str) -> None:
        self._path = folder
        try:
            Path(folder).mkdir(0o700, parents=True, exist_ok=True)
            os.close(open_unnamed(folder))
        except OSError as exc:
            raise ConfigError(f"cannot keep copies in {_described(folder, exc)}") from None

    def open_archive(self) -> Archive:
        """Make the file of an archive.

        Raises:
            CopyError: it cannot be made.
        """
        try:
            return Archive(open_unnamed(self._path), self._path)
        except OSError as exc:
            raise CopyError(f"cannot keep a copy in {_described(self._path, exc)}") from exc

    @property
    def free_bytes(self) -> int:
        """How much space there is, without what the system reserves for root."""
        status = os.statvfs(self._path)
        return status.f_bavail * status.f_frsize


class Archive:
    """The archive of a session, in its file. One thread at a time writes.

    Args:
        fd: the file; closed by ``close``.
        folder: where it is, for messages.

    Attributes:
        fd: the file.
        size_bytes: how much there is of it.
    """

    def __init__(self, fd: int, folder: str) -> None:
        self.fd = fd
        self.size_bytes = 0
        self._folder = folder

    def close(self) -> None:
        """Close the file."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def append(self, data: memoryview) -> None:
        """Write the next bytes.

        Raises:
            NoSpace: there is no space for them.
            CopyError: they cannot be written.
        """
        begin = self.size_bytes
        try:
            while data:
                count = os.pwrite(self.fd, data, self.size_bytes)
                self.size_bytes += count
                data = data[count:]
        except OSError as exc:
            raise self._failure(exc) from exc
        end = max(self.size_bytes - AHEAD_BYTES, 0)
        forget_behind(self.fd, max(begin - AHEAD_BYTES, 0), end)

    def read(self, offset: int, buffer: memoryview) -> int:
        """Fill a buffer from some offset on; return how much there was. Another may append."""
        count = os.preadv(self.fd, [buffer[: self.size_bytes - offset]], offset)
        forget_behind(self.fd, offset, offset + count)
        return count

    def checksum(self) -> int:
        """Return the checksum of what there is."""
        with Checksum() as checksum:
            checksum.add_file(self.fd, 0, self.size_bytes)
            return checksum.value

    def _failure(self, exc: OSError) -> CopyError:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return NoSpace(
                f"there is not enough space for the copy in {quote(self._folder)} of the node",
                hint="try again later",
            )
        return CopyError(f"cannot keep a copy in {_described(self._folder, exc)}")


def _described(folder: str, exc: OSError) -> str:
    return f"{quote(folder)}: {os.strerror(exc.errno or 0).lower()}"
