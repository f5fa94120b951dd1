"""Writing into a file that cannot be replaced: it ends up with its old content or the new.

Space for the new content is asked for before anything is written, and the old content is kept in a
file without a name until it is no longer needed. Readers may see parts of both in the meantime, and
if this program is killed, that is what remains.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from ctypes import c_long
from typing import Final

from pycrictl.copy.tree.content import DEFAULT_FOLDER, segments, shrunk, write_all
from pycrictl.copy.tree.resolve import last_error, libc
from pycrictl.copy.tree.rootfs import to_error
from pycrictl.signals import undisturbed

# <linux/falloc.h>
_KEEP_SIZE: Final = 0x01
_PUNCH_HOLE: Final = 0x02

_PIECE_BYTES: Final = 1024 * 1024
_ZEROS: Final = bytes(_PIECE_BYTES)

_UNSUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM})


def overwrite(source: int, target: int, *, shown: bytes) -> None:
    """Give a file the content of another.

    Args:
        source: readable.
        target: readable and writable.
        shown: the target, for messages.

    Raises:
        OSError: it cannot be written; it has its old content, as after Ctrl-C.
        CopyError: there is no space to keep its old content.
    """
    kept = _set_aside(target)
    try:
        with undisturbed() as let_through:
            try:
                _reserve(source, target)
            except BaseException:
                _give_back(source, target)
                raise
            try:
                _write(source, target, shown=shown, on_piece=let_through)
            except BaseException:
                _put_back(kept, target, shown)
                _give_back(source, target)
                raise
    finally:
        os.close(kept)


def _set_aside(target: int) -> int:
    """Copy the content of a file to one without a name; return that."""
    folder = DEFAULT_FOLDER.encode()
    try:
        kept = os.open(folder, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
        try:
            _write(target, kept, shown=folder, on_piece=_go_on)
        except BaseException:
            os.close(kept)
            raise
    except OSError as exc:
        raise to_error(exc, "set the old content aside in", folder) from exc
    return kept


def _put_back(kept: int, target: int, shown: bytes) -> None:
    try:
        _write(kept, target, shown=shown, on_piece=_go_on)
    except OSError as exc:
        raise to_error(exc, "give its old content back to", shown) from exc


def _reserve(source: int, target: int) -> None:
    """Ask for the blocks that the content will need, if the file system supports that."""
    for start, end in segments(source, os.fstat(source).st_size):
        if (error := _allocate(target, _KEEP_SIZE, start, end)) is not None:
            if error.errno in _UNSUPPORTED:
                return
            raise error


def _give_back(source: int, target: int) -> None:
    """Give back the blocks behind the end of a file that were asked for."""
    start, end = (os.fstat(fd).st_size for fd in (target, source))
    if start < end:
        _allocate(target, _PUNCH_HOLE | _KEEP_SIZE, start, end)


def _allocate(target: int, mode: int, start: int, end: int) -> OSError | None:
    """Call fallocate(2); return what went wrong."""
    while libc.fallocate(target, mode, c_long(start), c_long(end - start)):
        if (error := last_error()).errno != errno.EINTR:
            return error
    return None


def _write(source: int, target: int, *, shown: bytes, on_piece: Callable[[], None]) -> None:
    """Write the content of one file to another; free blocks only once everything is written."""
    size_bytes = os.fstat(source).st_size
    parts = segments(source, size_bytes)
    for start, end in parts:
        for position in range(start, end, _PIECE_BYTES):
            data = os.pread(source, min(_PIECE_BYTES, end - position), position)
            if len(data) < min(_PIECE_BYTES, end - position):
                raise shrunk(shown)
            write_all(target, data, position)
            on_piece()
    for start, end in _gaps(parts, min(size_bytes, os.fstat(target).st_size)):
        _clear(target, start, end, on_piece)
    os.ftruncate(target, size_bytes)


def _gaps(parts: list[tuple[int, int]], size_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield what lies between the parts of a file, up to its size."""
    position = 0
    for start, end in [*parts, (size_bytes, size_bytes)]:
        if position < min(start, size_bytes):
            yield position, min(start, size_bytes)
        position = end


def _clear(target: int, start: int, end: int, on_piece: Callable[[], None]) -> None:
    if _allocate(target, _PUNCH_HOLE | _KEEP_SIZE, start, end) is None:
        return
    for position in range(start, end, _PIECE_BYTES):
        write_all(target, _ZEROS[: end - position], position)
        on_piece()


def _go_on() -> None:
    """Do nothing: nothing is to be let through."""
