"""Copying the content of files, from another file or from a stream, and its holes.

The kernel does the copying. Holes of the source stay holes; in a stream, which has none, long runs
of zeros become holes again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from ctypes import c_long
from typing import Final

from pycrictl.base.errors import CopyError
from pycrictl.base.units import quote
from pycrictl.copy.tree.rootfs import libc

DEFAULT_FOLDER: Final = "/var/tmp"
"""The default folder for temporary files: on disk, which /tmp often is not."""

CHUNK_BYTES: Final = 128 * 1024
"""The size of copy buffers: it fits into the nearest cache of a processor; larger ones take twice
the time."""

STEP_BYTES: Final = 8 * 1024 * 1024
"""How much of a file is copied to another between two reports of progress."""

HOLE_BYTES: Final = 64 * 1024
"""The shortest run of zeros that becomes a hole."""

SMALL_BYTES: Final = 32 * 1024
"""Files up to this size are copied through a buffer, ignoring holes."""

_WRITE_BYTES: Final = 256 * 1024
"""The size of a page-aligned write: the kernel would cache a larger one in one large piece of
memory, which it often has to make room for first."""

_PAGE_BYTES: Final = 4096

_KEEP_SIZE: Final = 0x01  # FALLOC_FL_KEEP_SIZE of <linux/falloc.h>
_MAX_SEGMENTS: Final = 10_000
_ZEROS: Final = bytearray(HOLE_BYTES)
_UNSUPPORTED: Final = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM}
)

OnBytes = Callable[[int], None]
"""Called with the number of bytes processed since the last call."""


def segments(fd: int, size_bytes: int) -> list[tuple[int, int]]:
    """Return where a file holds data: (start, end) pairs below ``size_bytes``, holes between them.

    In a file with very many holes, the last part counts as data, even if it has holes.
    """
    if size_bytes < HOLE_BYTES:
        return [(0, size_bytes)] if size_bytes else []
    parts: list[tuple[int, int]] = []
    position = 0
    try:
        while position < size_bytes and len(parts) < _MAX_SEGMENTS:
            start = os.lseek(fd, position, os.SEEK_DATA)
            if start >= size_bytes:
                return parts
            position = min(os.lseek(fd, start, os.SEEK_HOLE), size_bytes)
            parts.append((start, position))
    except OSError as exc:
        if exc.errno == errno.ENXIO:  # no data after the position
            return parts
        if exc.errno != errno.EINVAL:  # a file system without holes
            raise
    if position < size_bytes:
        parts.append((position, size_bytes))
    return parts


def copy_content(
    source: int, target: int, size_bytes: int, *, shown: bytes, on_bytes: OnBytes
) -> None:
    """Copy a regular file's content into an empty file.

    Args:
        size_bytes: the size of the source; data appended to it meanwhile is left out.
        shown: the source, for messages.
        on_bytes: counts holes too.
    """
    if size_bytes <= SMALL_BYTES:  # the system calls are most of the work
        if _by_buffer(source, target, 0, size_bytes) < size_bytes:
            raise shrunk(shown)
        on_bytes(size_bytes)
        return
    os.ftruncate(target, size_bytes)
    ways = list(_WAYS)
    reported = 0
    for start, end in segments(source, size_bytes):
        if end - start >= _WRITE_BYTES:
            _reserve(target, start, end - start)
        position = start
        while position < end:
            try:
                done = ways[0](source, target, position, min(end - position, STEP_BYTES))
            except OSError as exc:
                if exc.errno not in _UNSUPPORTED or len(ways) == 1:
                    raise
                del ways[0]
                continue
            if not done:
                raise shrunk(shown)
            position += done
            on_bytes(position - reported)
            reported = position
    on_bytes(size_bytes - reported)
    # Truncation within a hole is not detected by the copying.
    if os.fstat(source).st_size < size_bytes:
        raise shrunk(shown)


def _by_pages(source: int, target: int, position: int, count: int) -> int:
    os.lseek(target, position, os.SEEK_SET)
    return os.sendfile(target, source, position, count)


def _by_buffer(source: int, target: int, position: int, count: int) -> int:
    buffer = memoryview(bytearray(min(count, CHUNK_BYTES)))
    done = 0
    while done < count and (read := os.preadv(source, [buffer[: count - done]], position + done)):
        write_all(target, buffer[:read], position + done)
        done += read
    return done


_WAYS: Final = (_by_pages, _by_buffer)
"""The kernel passes pages from one file to another in two thirds of the time that a buffer takes.
The buffer is for file systems that do not support that."""


def write_all(target: int, data: bytes | memoryview, position: int) -> None:
    """Write all of ``data`` at ``position``."""
    view = memoryview(data)
    while view:
        count = len(view) if position % _PAGE_BYTES else _WRITE_BYTES
        done = os.pwrite(target, view[:count], position)
        position += done
        view = view[done:]


def _reserve(target: int, position: int, count: int) -> bool:
    """Reserve blocks that will be written; return whether there are enough.

    A large file takes three quarters of the time when its blocks are allocated at once. If there
    are not enough, the write reports the reason.
    """
    return not libc.fallocate(target, _KEEP_SIZE, c_long(position), c_long(count))


class SparseWriter:
    """Writes content from a stream to an empty file; runs of zeros become holes."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._position = self._written = 0
        self._can_reserve = True

    def write(self, data: memoryview) -> None:
        """Write the next bytes."""
        start = 0  # of the data not yet written
        for offset in range(0, len(data), HOLE_BYTES):
            # bytearrays compare by memcmp, and most data differs at its first byte.
            if _ZEROS == data[offset : offset + HOLE_BYTES]:
                self._write_run(data[start:offset], self._position + start)
                start = offset + HOLE_BYTES
        self._write_run(data[start:], self._position + start)
        self._position += len(data)

    def finish(self) -> None:
        """Give the file its length: it may end in a hole."""
        if self._written < self._position:
            os.ftruncate(self._target, self._position)

    def _write_run(self, data: memoryview, position: int) -> None:
        if len(data) >= _WRITE_BYTES and self._can_reserve:
            self._can_reserve = _reserve(self._target, position, len(data))
        if data:
            write_all(self._target, data, position)
            self._written = position + len(data)


def shrunk(shown: bytes | None = None) -> CopyError:
    """Return the error for a source that lost content while it was copied."""
    name = "a file" if shown is None else quote(os.fsdecode(shown))
    return CopyError(f"{name} became shorter while it was copied")
