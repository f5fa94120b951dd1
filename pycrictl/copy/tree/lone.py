"""A single file on its way to its place.

It has no name until it is complete, so that nothing of it remains if this program is killed.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from pycrictl.copy.rules.policy import Item
from pycrictl.copy.tree.commit import move_new
from pycrictl.copy.tree.content import DEFAULT_FOLDER
from pycrictl.copy.tree.in_place import overwrite
from pycrictl.copy.tree.janitor import lock, random_name
from pycrictl.copy.tree.notes import Note, Noted
from pycrictl.copy.tree.resolve import own_descriptors, refuse_kernel_file_system
from pycrictl.copy.tree.rootfs import Directory
from pycrictl.copy.tree.stage import Owner, finish
from pycrictl.errors import CopyError
from pycrictl.signals import undisturbed
from pycrictl.units import quote

# File systems without unnamed files answer one of these.
_NO_UNNAMED: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL})

_WRITE_INTO: Final = "--in-place writes into it, which others may see half written"


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
        self._temporary: bytes | None = None
        self._note: Note | None = None
        self._container_id = container_id
        self._fd = -1
        self._mounted = self._open_mounted(in_place=in_place) if replaces else -1
        self._item: Item | None = None
        self._owner: Owner | None = None

    def create(self) -> int:
        """Make the file; the descriptor is closed by ``close``."""
        if self._mounted >= 0:
            flags = os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC
            self._fd = os.open(DEFAULT_FOLDER, flags, 0o600)
            return self._fd
        try:
            self._fd = self._directory.create_unnamed()
        except OSError as exc:
            if exc.errno not in _NO_UNNAMED:
                raise
            self._fd = self._directory.create(self._new_name())
            lock(self._fd)
        return self._fd

    def _new_name(self) -> bytes:
        """Return a name for the file, known before it has it: a signal may come in between."""
        self._temporary = random_name()
        self._note = Note(Noted(self._container_id, self._directory.shown, self._temporary))
        return self._temporary

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
        if self._mounted >= 0:
            self._write_in_place(keep_metadata=keep_metadata)
            return
        with undisturbed():
            self._move()

    def _move(self) -> None:
        if not self._replaces and self._temporary is None:
            self._directory.give_name(self._fd, self._name)
            return
        if self._temporary is None:
            # Should this program be killed between here and the renaming, the next one finds it.
            lock(self._fd)
            self._directory.give_name(self._fd, self._new_name())
        assert self._temporary is not None
        if self._replaces:
            # It may have been mounted since the copy began.
            self._directory.refuse_mounted(self._name, hint=_WRITE_INTO)
            self._directory.move(self._temporary, self._directory, self._name)
        else:
            move_new(self._directory, self._temporary, self._directory, self._name)
        self._temporary = None

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

    def _remove_temporary(self) -> bool:
        """Remove the temporary name of the file, if it has one; return whether it has none now."""
        temporary, self._temporary = self._temporary, None
        if temporary is None:
            return True
        try:
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

    def _write_in_place(self, *, keep_metadata: bool) -> None:
        overwrite(self._fd, self._mounted, shown=self._directory.shown_path(self._name))
        if keep_metadata and self._item is not None:
            finish(self._mounted, self._item, self._owner)
