"""Writing into a file that stays where it is, as something is mounted there.

It is not done in one step: who reads it meanwhile may see parts of both contents.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import Final

from pycrictl.copy.rules.policy import Item
from pycrictl.copy.tree.content import DEFAULT_FOLDER, write_all
from pycrictl.copy.tree.resolve import own_descriptors, refuse_kernel_file_system
from pycrictl.copy.tree.rootfs import Directory, to_error
from pycrictl.copy.tree.stage import Owner, finish
from pycrictl.errors import CopyError
from pycrictl.signals import undisturbed
from pycrictl.units import quote

_PIECE_BYTES: Final = 1024 * 1024


class MountedFile:
    """A file that is mounted where it is, and so cannot be replaced, on its way to new content.

    Args:
        directory: where it is; not closed here.
        archive: it gets mode, times and owner, too.
    """

    def __init__(self, directory: Directory, name: bytes, *, archive: bool) -> None:
        self._shown = directory.shown_path(name)
        self._archive = archive
        self._item: Item | None = None
        self._owner: Owner | None = None
        pinned = directory.pin(name)
        try:
            if not stat.S_ISREG(os.fstat(pinned).st_mode):
                raise CopyError(f"{quote(os.fsdecode(self._shown))} is not a regular file")
            refuse_kernel_file_system(pinned, self._shown)
            flags = os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            self._fd = os.open(b"%d" % pinned, flags, dir_fd=own_descriptors())
        finally:
            os.close(pinned)
        self._new = -1

    def create(self) -> int:
        """Return a descriptor for the new content, which is closed by ``close``."""
        self._new = _unnamed_here()
        return self._new

    def finish(self, item: Item, owner: Owner | None) -> None:
        """Take in what it shall have beside its content."""
        self._item, self._owner = item, owner

    def commit(self) -> None:
        """Write the new content over the old."""
        _overwrite(self._new, self._fd, shown=self._shown)
        if self._archive and self._item is not None:
            finish(self._fd, self._item, self._owner)

    def close(self) -> None:
        """Let go of both."""
        for fd in (self._new, self._fd):
            if fd >= 0:
                os.close(fd)
        self._new = self._fd = -1


def _unnamed_here() -> int:
    return os.open(DEFAULT_FOLDER, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)


def _overwrite(source: int, target: int, *, shown: bytes) -> None:
    """Give a file the content of another; after an error, or Ctrl-C, it has its old content.

    Readers may see parts of both meanwhile, and if this program is killed, that is what remains.

    Raises:
        OSError: it cannot be written.
        CopyError: there is no space to keep its old content, or it could not be given back.
    """
    folder = os.fsencode(DEFAULT_FOLDER)
    try:
        kept = _unnamed_here()
    except OSError as exc:
        raise to_error(exc, "set the old content aside in", folder) from exc
    try:
        try:
            _write(target, kept, lambda: None)
        except OSError as exc:
            raise to_error(exc, "set the old content aside in", folder) from exc
        with undisturbed() as let_through:
            try:
                _write(source, target, let_through)
            except BaseException:
                try:
                    _write(kept, target, lambda: None)
                except OSError as exc:
                    raise to_error(exc, "give its old content back to", shown) from exc
                raise
    finally:
        os.close(kept)


def _write(source: int, target: int, on_piece: Callable[[], None]) -> None:
    """Write the content of one file over another's, whose space is kept until all is written."""
    position = 0
    while data := os.pread(source, _PIECE_BYTES, position):
        write_all(target, data, position)
        position += len(data)
        on_piece()
    os.ftruncate(target, position)
