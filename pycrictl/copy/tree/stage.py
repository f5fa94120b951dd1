"""A directory beside the destination where a copy is assembled before it becomes visible.

It has a random name, and only this user may enter it. It is in the directory that the copy goes
into: on the same file system, where a rename completes the copy. Its location is noted, so that it
is removed if this program is killed (see ``commit``).
At the end its contents are moved to their final name, or merged with an existing directory.

If the stage is in a container, a process there with enough privileges may read and change it. The
process gains nothing by that: no link is followed, owners and modes are set through descriptors
of files made here, and a directory is identified by its inode when it is opened again.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from pycrictl.base.errors import CopyError
from pycrictl.base.signals import undisturbed
from pycrictl.base.units import quote
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import AcceptedEntry, Path
from pycrictl.copy.tree.commit import (
    COMMIT,
    TOP,
    Merge,
    forget,
    move_new,
    random_name,
    remove_stage,
    write_note,
)
from pycrictl.copy.tree.rootfs import Directory, descend, held, set_owner, to_error
from pycrictl.streams.wire.tar.header import EntryType

IMPLIED_MODE: Final = 0o755
"""The mode of a directory that is missing in an archive, but needed for its entries."""

_TIME_STEP_NS: Final = 2 * 10**9
"""The coarsest steps in which a file system stores times: those of FAT."""

Owner = tuple[int, int]
Fill = Callable[[int], None]
"""Writes the content of an entry to an empty file."""

HostOwner = Callable[[Owner | None], Owner | None]
"""Maps the owner of an item to a user and group of this machine; None: leave it unchanged."""


class _Made(NamedTuple):
    """A directory in the stage, whose mode and times are set last."""

    item: AcceptedEntry
    device: int
    inode: int
    is_implied: bool


class Stage:
    """Builds a tree from items, at ``TOP`` in the stage's directory.

    Args:
        place: the directory that the copy goes into; not closed here.
        container_id: empty for this machine.

    Attributes:
        summary: what it contains; at the end, what was copied.
        unkept: attributes (``time``, ``owner``, ``mode``) that some item could not keep, as the
            file system does not support them or this user may not set them.
    """

    def __init__(self, place: Directory, host_owner: HostOwner, container_id: str = "") -> None:
        self.summary = Summary()
        self.unkept: set[str] = set()
        self._place = place
        self._host_owner = host_owner
        # The open directories from the top down to the last one entered, and its path.
        self._chain: list[Directory] = []
        self._entered: Path = ()
        self._directories: dict[Path, _Made] = {}
        self._symlinks: dict[Path, AcceptedEntry] = {}
        self._name = random_name()
        self._is_over = False
        self._note = write_note(container_id, place.shown, self._name)
        try:
            self._stage = place.make(self._name)
        except BaseException:
            with suppress(OSError):  # a signal may have come just after the mkdir
                self._remove()
            raise

    def make(self, item: AcceptedEntry, fill: Fill) -> None:
        """Make an item; ``fill`` writes the content of a file."""
        self.summary.count(item)
        if item.kind is EntryType.DIRECTORY:
            self._enter(item.path)
            made = self._directories[item.path]
            self._directories[item.path] = made._replace(item=item, is_implied=False)
            return
        if item.kind is EntryType.SYMLINK:
            # Created last: no item can then be created through one.
            self._symlinks[item.path] = item
            return
        parent, name = self._parent(item)
        if item.kind is EntryType.HARDLINK:
            with descend(self._stage, (TOP, *item.original[:-1])) as source:
                parent.link(source, item.original[-1], name)
            return
        with held(parent.create(name)) as fd:
            fill(fd)
            self._finish(fd, item)

    def move(self, name: bytes, *, replaces: bool) -> None:
        """Move the top of the copy to an unused name, or onto a link or file."""
        late = self._finish_all()
        if replaces:
            # Something may have been mounted there since the copy began.
            self._place.refuse_mounted(name)
            self._stage.move(TOP, self._place, name)
        else:
            move_new(self._stage, TOP, self._place, name)
        if late:
            with self._place.enter(name) as top:
                self._finish_again(top, late)
        self.remove()

    def merge(self, *, archive: bool) -> None:
        """Merge the top with the directory that the copy goes into.

        Args:
            archive: give existing directories the owner, mode and times of those that are copied.
        """
        late = self._finish_all()
        staged = self._enter(())
        merge = Merge(staged, self._place, self._stage)
        merge.check()
        with undisturbed():
            # From now on a clean-up would finish the merge.
            self._stage.move(TOP, self._stage, COMMIT)
            try:
                merge.run()
            except (OSError, CopyError) as exc:
                if merge.is_halfway:
                    raise self._left_behind(exc) from exc
                raise
            # Removing the stage changes the time of its parent directory, which is set afterwards.
            self.remove()
            late = [path for path in late if path not in {(), *merge.merged}]
            if archive:
                late += [*reversed(merge.merged), ()]
            self._finish_again(self._place, late)

    def remove(self) -> None:
        """Remove the stage and its remaining contents, unless that has been done."""
        if not self._is_over:
            self._close()
            self._remove()

    def _close(self) -> None:
        self._is_over = True
        self._leave(0)
        self._stage.close()

    def _finish_all(self) -> list[Path]:
        """Make the links, then set owner, mode and times of every directory, deepest first.

        Returns:
            Directories whose mode is still too permissive: a user who is not root could not move
            them otherwise. Finish them again when they are in place.
        """
        for item in self._symlinks.values():
            parent, name = self._parent(item)
            parent.symlink(item.target, name)
            self._finish_link(parent, name, item)
        self._symlinks.clear()
        extra_mode = 0 if os.geteuid() == 0 else stat.S_IRWXU
        made = [*reversed(self._directories.items())]
        for path, directory in made:
            with held(self._enter(path).readable()) as fd:
                self._finish(fd, directory.item, extra_mode)
        self._leave(0)
        return [path for path, directory in made if extra_mode & ~directory.item.mode]

    def _finish_again(self, top: Directory, paths: list[Path]) -> None:
        """Set owner, mode and times of directories that are in place."""
        for path in paths:
            made = self._directories.get(path)
            if made is not None and not made.is_implied:
                with descend(top, path) as directory, held(directory.readable()) as fd:
                    self._finish(fd, made.item)

    def _left_behind(self, exc: OSError | CopyError) -> CopyError:
        """Keep the stage of a merge that could not be undone; return the error that says so."""
        self._close()
        self._let_go()
        if isinstance(exc, OSError):
            exc = to_error(exc, "copy to", self._place.shown)
        shown = quote(os.fsdecode(self._place.shown_path(self._name)))
        return CopyError(
            f"the copy failed halfway: {exc.message}",
            hint=f"the other files are in {shown}; the next copy there moves them into place",
        )

    def _remove(self) -> None:
        try:
            with suppress(FileNotFoundError):
                remove_stage(self._place, self._name)
            forget(self._name)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """Unlock the note: if it still exists, its stage may be cleaned up."""
        if self._note >= 0:
            os.close(self._note)

    def _parent(self, item: AcceptedEntry) -> tuple[Directory, bytes]:
        if not item.path:
            return self._stage, TOP
        return self._enter(item.path[:-1]), item.path[-1]

    def _enter(self, path: Path) -> Directory:
        """Return the directory ``path`` below the top, making it if it is missing."""
        if path == self._entered and self._chain:
            return self._chain[-1]
        common, most = 0, min(len(path), len(self._entered))
        while common < most and path[common] == self._entered[common]:
            common += 1
        self._leave(common + 1)
        for depth in range(len(self._chain), len(path) + 1):
            parent = self._chain[-1] if self._chain else self._stage
            name, inner = path[depth - 1] if depth else TOP, path[:depth]
            known = self._directories.get(inner)
            directory = parent.make(name) if known is None else parent.enter(name)
            self._chain.append(directory)
            self._entered = inner
            status = os.fstat(directory.fd)
            if known is None:
                item = AcceptedEntry(inner, EntryType.DIRECTORY, mode=IMPLIED_MODE)
                made = _Made(item, status.st_dev, status.st_ino, is_implied=True)
                self._directories[inner] = made
            elif (status.st_dev, status.st_ino) != (known.device, known.inode):
                raise _changed()
        return self._chain[-1]

    def _leave(self, depth: int) -> None:
        while len(self._chain) > depth:
            self._chain.pop().close()
        self._entered = self._entered[: max(depth - 1, 0)]

    def _finish_link(self, parent: Directory, name: bytes, item: AcceptedEntry) -> None:
        owner = self._host_owner(item.owner)
        if owner is None and item.mtime_ns is None:
            return
        with held(parent.pin(name)) as pinned:
            if not stat.S_ISLNK(os.fstat(pinned).st_mode):
                raise _changed()
            if owner is not None:
                set_owner(pinned, *owner)
            if item.mtime_ns is not None:
                times = (item.mtime_ns, item.mtime_ns)
                os.utime(name, ns=times, dir_fd=parent.fd, follow_symlinks=False)
            self._compare(pinned, item, None)

    def _finish(self, fd: int, item: AcceptedEntry, extra_mode: int = 0) -> None:
        """Set owner, then mode and times, of an open file: a new owner clears set-id bits."""
        owner = self._host_owner(item.owner)
        if owner is not None:
            os.fchown(fd, *owner)
        os.fchmod(fd, item.mode | extra_mode)
        if item.mtime_ns is not None:
            os.utime(fd, ns=(item.mtime_ns, item.mtime_ns))
        self._compare(fd, item, item.mode | extra_mode)

    def _compare(self, fd: int, item: AcceptedEntry, mode: int | None) -> None:
        """Note attributes that did not take effect: kernels clamp times without an error."""
        if item.owner is None:
            return
        status, owner = os.fstat(fd), self._host_owner(item.owner) or item.owner
        kept_ns = None if item.mtime_ns is None else abs(status.st_mtime_ns - item.mtime_ns)
        if kept_ns is None or kept_ns >= _TIME_STEP_NS:
            self.unkept.add("time")
        if (status.st_uid, status.st_gid) != owner:
            self.unkept.add("owner")
        if mode is not None and stat.S_IMODE(status.st_mode) != mode:
            self.unkept.add("mode")


def _changed() -> CopyError:
    return CopyError("another program changed the copy while it was being made")
