"""A single file on its way to its place.

It has no name until it is complete, so that nothing of it remains if this program is killed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import Final

from pycrictl.copy.rules.policy import Item
from pycrictl.copy.tree.commit import move_new
from pycrictl.copy.tree.content import DEFAULT_FOLDER, write_all
from pycrictl.copy.tree.janitor import Note, random_name
from pycrictl.copy.tree.resolve import own_descriptors, refuse_kernel_file_system
from pycrictl.copy.tree.rootfs import Directory, to_error
from pycrictl.copy.tree.stage import Owner, finish
from pycrictl.errors import CopyError
from pycrictl.signals import undisturbed
from pycrictl.units import quote

# File systems without unnamed files answer one of these.
_NO_UNNAMED: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL})

_WRITE_INTO: Final = "--in-place writes into it, which others may see half written"
_PIECE_BYTES: Final = 1024 * 1024


class LoneFile:
    """A file that is the whole copy.

    Args:
        directory: where it goes; not closed here.
        name: what it will be called.
        replaces: whether there is a file of that name, which it replaces.
        in_place: write into a file that cannot be replaced because it is mounted there.
        container_id: of the container that the directory is in; empty for this machine.
    """

    def __init__(
        self,
        directory: Directory,
        name: bytes,
        *,
        replaces: bool,
        in_place: bool,
        container_id: str = "",
    ) -> None:
        self._directory = directory
        self._name = name
        self._replaces = replaces
        self._container_id = container_id
        self._temporary: bytes | None = None
        self._note: Note | None = None
        self._fd = -1
        self._mounted = self._open_mounted(in_place=in_place) if replaces else -1
        self._item: Item | None = None
        self._owner: Owner | None = None

    def create(self) -> int:
        """Make the file; the descriptor is closed by ``close``."""
        if self._mounted >= 0:
            self._fd = _unnamed_here()
            return self._fd
        try:
            self._fd = self._directory.create_unnamed()
        except OSError as exc:
            if exc.errno not in _NO_UNNAMED:
                raise
            self._fd = self._directory.create(self._new_name())
        return self._fd

    def finish(self, item: Item, owner: Owner | None) -> None:
        """Give it its owner, mode and times."""
        self._item, self._owner = item, owner
        if self._mounted < 0:
            finish(self._fd, item, owner)

    def commit(self, *, keep_metadata: bool) -> None:
        """Put it into its place.

        Args:
            keep_metadata: a file that is written in place gets mode, times and owner too.
        """
        if self._mounted < 0:
            with undisturbed():
                self._move()
            return
        _overwrite(self._fd, self._mounted, shown=self._directory.shown_path(self._name))
        if keep_metadata and self._item is not None:
            finish(self._mounted, self._item, self._owner)

    def close(self) -> None:
        """Let go of it; if it was not committed, nothing of it remains."""
        with undisturbed():
            is_removed = self._remove_temporary()
            for fd in (self._fd, self._mounted):
                if fd >= 0:
                    os.close(fd)
            self._fd = self._mounted = -1
            note, self._note = self._note, None
            if note is not None:
                note.close(is_removed=is_removed)

    def _new_name(self) -> bytes:
        """Return a name for the file, noted before it has it: a signal may come in between."""
        self._temporary = random_name()
        self._note = Note(self._container_id, self._directory.shown, self._temporary)
        return self._temporary

    def _move(self) -> None:
        if not self._replaces and self._temporary is None:
            self._directory.give_name(self._fd, self._name)
            return
        temporary = self._temporary
        if temporary is None:
            temporary = self._new_name()
            self._directory.give_name(self._fd, temporary)
        if self._replaces:
            # It may have been mounted since the copy began.
            self._directory.refuse_mounted(self._name, hint=_WRITE_INTO)
            self._directory.move(temporary, self._directory, self._name)
        else:
            move_new(self._directory, temporary, self._directory, self._name)
        self._temporary = None

    def _remove_temporary(self) -> bool:
        """Remove the temporary name of the file, if it has one; return whether it has none now."""
        temporary, self._temporary = self._temporary, None
        try:
            if temporary is not None:
                self._directory.unlink(temporary)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def _open_mounted(self, *, in_place: bool) -> int:
        """Open the file that is there for reading and writing if it is mounted, else return -1."""
        if not in_place:
            self._directory.refuse_mounted(self._name, hint=_WRITE_INTO)
            return -1
        if not self._directory.is_mount_point(self._name):
            return -1
        shown = self._directory.shown_path(self._name)
        pinned = self._directory.pin(self._name)
        try:
            if not stat.S_ISREG(os.fstat(pinned).st_mode):
                raise CopyError(f"{quote(os.fsdecode(shown))} is not a regular file")
            refuse_kernel_file_system(pinned, shown)
            flags = os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            return os.open(b"%d" % pinned, flags, dir_fd=own_descriptors())
        finally:
            os.close(pinned)


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
