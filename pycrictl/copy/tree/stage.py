"""A place beside the destination where a copy is put together before it can be seen.

It is a directory of a random name that only this program may enter, in the directory that the copy
goes into: on the same file system, so that a rename is all that is left to do. It is noted and
locked, so that it is found and removed if this program is killed (see ``janitor``).

If the stage is in a container, a process there may look into it and change it, if it is privileged
enough. It gains nothing: no link is followed, owners and modes are set on descriptors of what was
made here, and a directory is recognised by its inode when it is opened again.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from pycrictl.copy.rules.policy import Item, Make, Path
from pycrictl.copy.tree.janitor import TOP, claim, random_name, remove_stage
from pycrictl.copy.tree.notes import Note, Noted
from pycrictl.copy.tree.rootfs import Directory, descend, set_link_time, set_owner
from pycrictl.errors import CopyError

IMPLIED_MODE: Final = 0o755
"""Of a directory that is missing in an archive, but needed for what is in it."""

Owner = tuple[int, int]
HostOwner = Callable[[Owner | None], Owner | None]
"""From the owner of an item to a user and group of this machine; None: leave it."""


@dataclass(slots=True)
class _Made:
    """A directory of the stage, whose mode and times come last."""

    item: Item
    device: int
    inode: int
    is_implied: bool = True


class Stage:
    """Items in, a tree out, at ``TOP`` in the stage's directory.

    Args:
        place: the directory that the copy goes into; not closed here.
        host_owner: gives the owner of things on this machine.
        container_id: of the container that the directory is in; empty for this machine.

    Attributes:
        directory: the stage itself.
    """

    def __init__(self, place: Directory, host_owner: HostOwner, container_id: str = "") -> None:
        self._place = place
        self._host_owner = host_owner
        self._name = random_name()
        self._lock = -1
        self._note = Note(Noted(container_id, place.shown, self._name))
        try:
            self.directory = place.make(self._name)
        except BaseException:
            with suppress(OSError):  # a signal may have come when it was just made
                self._remove()
            raise
        # The directories from the stage down to where the last item was made.
        self._chain: list[tuple[bytes, Directory]] = []
        self._directories: dict[Path, _Made] = {}
        self._symlinks: dict[Path, Item] = {}
        self._is_root = os.geteuid() == 0
        try:
            self._lock = claim(self.directory, self._name)
        except BaseException:
            self.remove()
            raise

    def make(self, item: Item) -> int | None:
        """Make one item.

        Returns:
            For a file, a writable descriptor, which the caller gives to ``finish`` and closes.
        """
        if item.make is Make.DIRECTORY:
            self._enter((TOP, *item.path))
            made = self._directories[(TOP, *item.path)]
            made.item, made.is_implied = item, False
        elif item.make is Make.SYMLINK:
            # Last of all: nothing that is made can be reached through one.
            self._symlinks[item.path] = item
        elif item.make is Make.HARDLINK:
            parent, name = self._parent(item)
            *folders, original = (TOP, *item.original)
            with self._descend(tuple(folders)) as source:
                parent.link(source, original, name)
        else:
            parent, name = self._parent(item)
            return parent.create(name)
        return None

    def drop(self, path: Path) -> Item | None:
        """Remove an item that was made, below the top; return its kind and size if it was there.

        Content that has another name as well counts as nothing.
        """
        if (link := self._symlinks.pop(path, None)) is not None:
            return link
        *folders, name = (TOP, *path)
        parent = self._enter(tuple(folders))
        status = parent.lstat(name)
        if status is None:
            return None
        parent.remove(name)
        if self._directories.pop((TOP, *path), None) is not None:
            return Item(path, Make.DIRECTORY)
        return Item(path, Make.FILE, status.st_size if status.st_nlink == 1 else 0)

    def finish(self) -> list[Path]:
        """Make the links, then give every directory its owner, mode and times, deepest first.

        Returns:
            Directories whose mode is still too generous: a user who is not root could not move
            them otherwise. Their mode is to be set when they are in place.
        """
        for item in self._symlinks.values():
            parent, name = self._parent(item)
            parent.symlink(item.target, name)
            self._finish_link(parent, name, item)
        self._symlinks.clear()
        late: list[Path] = []
        for path, made in reversed(self._directories.items()):
            item = made.item
            directory = self._enter(path)
            if not self._is_root and item.mode & stat.S_IRWXU != stat.S_IRWXU:
                late.append(item.path)
            self._finish_directory(directory, made)
        self._leave(0)
        return late

    def remove(self) -> None:
        """Remove the stage and all that is still in it."""
        self._leave(0)
        self.directory.close()
        self._remove()

    def leave(self) -> bytes:
        """Let go of the stage of a merge that is not finished: what was replaced is in it.

        Returns:
            Its path, for messages.
        """
        self._leave(0)
        self.directory.close()
        self._let_go(is_removed=False)
        return self._place.shown_path(self._name)

    def _remove(self) -> None:
        is_removed = False
        try:
            with suppress(FileNotFoundError):
                remove_stage(self._place, self._name)
            is_removed = True
        finally:
            self._let_go(is_removed=is_removed)

    def _let_go(self, *, is_removed: bool) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)
        self._note.close(is_removed=is_removed)

    def item_at(self, path: Path) -> Item | None:
        """Return the item that a directory was made from; None if it was only needed."""
        made = self._directories.get((TOP, *path))
        return None if made is None or made.is_implied else made.item

    def _parent(self, item: Item) -> tuple[Directory, bytes]:
        *folders, name = (TOP, *item.path)
        return self._enter(tuple(folders)), name

    def _enter(self, path: Path) -> Directory:
        """Return the directory ``path`` of the stage, which is made if it is missing."""
        common = 0
        for (name, _), wanted in zip(self._chain, path, strict=False):
            if name != wanted:
                break
            common += 1
        self._leave(common)
        for depth in range(common, len(path)):
            parent = self._chain[-1][1] if self._chain else self.directory
            known = self._directories.get(path[: depth + 1])
            if known is None:
                directory = parent.make(path[depth])
                status = os.fstat(directory.fd)
                item = Item(path[1 : depth + 1], Make.DIRECTORY, mode=IMPLIED_MODE)
                self._directories[path[: depth + 1]] = _Made(item, status.st_dev, status.st_ino)
            else:
                directory = parent.enter(path[depth])
                status = os.fstat(directory.fd)
                if (status.st_dev, status.st_ino) != (known.device, known.inode):
                    directory.close()
                    raise CopyError("something changed the copy while it was being made")
            self._chain.append((path[depth], directory))
        return self._chain[-1][1] if self._chain else self.directory

    def _leave(self, depth: int) -> None:
        while len(self._chain) > depth:
            self._chain.pop()[1].close()

    def _descend(self, path: Path) -> Directory:
        return descend(self.directory, path)

    def _finish_link(self, parent: Directory, name: bytes, item: Item) -> None:
        owner = self._host_owner(item.owner)
        if owner is None and item.mtime_ns is None:
            return
        pinned = parent.pin(name)
        try:
            if not stat.S_ISLNK(os.fstat(pinned).st_mode):
                raise CopyError("something changed the copy while it was being made")
            if owner is not None:
                set_owner(pinned, *owner)
            if item.mtime_ns is not None:
                set_link_time(pinned, item.mtime_ns)
        finally:
            os.close(pinned)

    def _finish_directory(self, directory: Directory, made: _Made) -> None:
        item = made.item
        extra = 0 if self._is_root else stat.S_IRWXU
        fd = directory.readable()
        try:
            finish(fd, item, self._host_owner(item.owner), extra_mode=extra)
        finally:
            os.close(fd)


def finish(fd: int, item: Item, owner: Owner | None, *, extra_mode: int = 0) -> None:
    """Set owner, mode and times of an open file, in this order: a new owner clears set-id bits."""
    if owner is not None:
        os.fchown(fd, *owner)
    os.fchmod(fd, item.mode | extra_mode)
    if item.mtime_ns is not None:
        os.utime(fd, ns=(item.mtime_ns, item.mtime_ns))
