"""Walking a tree that others may be changing at the same time.

Every directory is opened by its name in its parent, which is still open; no link is followed, and
only regular files are opened for their content. Entries that vanish meanwhile are skipped.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pycrictl.base.errors import CopyError, reason_of
from pycrictl.base.units import quote
from pycrictl.copy.rules.policy import MAX_DEPTH, Skipped
from pycrictl.copy.tree.commit import STAGE_NAME
from pycrictl.copy.tree.content import OnBytes
from pycrictl.copy.tree.places import Root, Source, open_source
from pycrictl.copy.tree.rootfs import Directory, KernelFileSystem, held, reopen_regular
from pycrictl.streams.wire.tar.header import NS_PER_S, Entry, EntryType

OnSkip = Callable[[Skipped], None]

OnTotal = Callable[[int], None]
"""Called before the first ``OnBytes`` call with the sum that all of them will report; called again
if the sum turns out to be different."""

_MAX_OPEN_SCANS: Final = 32
"""Below this depth a directory's names are read all at once: a deep tree then needs only one
descriptor per level."""

_CHANGED: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL})
"""Errors about a name that has just changed."""

_SPECIAL: Final = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


class Watch(NamedTuple):
    """The callbacks of a running copy.

    Attributes:
        on_bytes: called with the number of bytes copied since the last call: of content or of an
            archive, whichever ``on_total`` counts.
        on_skip: called with each skipped entry.
        on_total: called with the total size, if that is known in advance. None: the size is not
            wanted, and nothing is measured.
        note: called with other messages for the user.
        on_archive: called with the size of the archive that is made, if known in advance.
    """

    on_bytes: OnBytes
    on_skip: OnSkip
    on_total: OnTotal | None = None
    note: Callable[[str], None] = lambda _: None
    on_archive: OnTotal | None = None


class WalkedEntry(NamedTuple):
    """An entry of the tree.

    Attributes:
        entry: its metadata, named from the top as in an archive.
        fd: a readable descriptor of a file, closed by the walk; -1 for anything else, or if the
            walk opens nothing.
    """

    entry: Entry
    fd: int


class _Level(NamedTuple):
    directory: Directory
    names: Generator[os.DirEntry[str], None, None]
    path: bytes


def walk(
    source: Source, *, on_skip: OnSkip, opens: bool = True
) -> Generator[WalkedEntry, None, None]:
    """Yield everything in a tree, directories before their contents.

    Args:
        on_skip: called with skipped entries: devices, pipes, sockets, kernel file systems, and
            entries that changed or vanished.
        opens: open the files; if not, a file mounted from a kernel file system is not detected.
    """
    walking = _Walk(source.root, on_skip, opens, source.whole_seconds)
    return walking.run_all(source) if source.paths else walking.run(source)


@dataclass(eq=False)
class _Walk:
    _root: Root
    _on_skip: OnSkip
    _opens: bool
    _whole_seconds: bool
    _linked: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """The first name of every file that has several."""

    def run_all(self, source: Source) -> Generator[WalkedEntry, None, None]:
        """Walk several sources; skip those that cannot be opened."""
        for path in source.paths:
            with ExitStack() as stack:
                try:
                    opened = stack.enter_context(
                        open_source(source.root, path, follow=source.follow)
                    )
                except CopyError as exc:
                    cause = exc.__cause__
                    reason = reason_of(cause) if isinstance(cause, OSError) else ""
                    self._on_skip(Skipped(path, "source", reason or exc.message))
                    continue
                yield from self.run(opened)

    def run(self, source: Source) -> Generator[WalkedEntry, None, None]:
        status = os.fstat(source.fd)
        shown = source.text.path
        if stat.S_ISLNK(status.st_mode):
            link = os.readlink(b"", dir_fd=source.fd)
            yield WalkedEntry(self._entry(source.top, EntryType.SYMLINK, status, link=link), -1)
        elif not self._opens and stat.S_ISREG(status.st_mode):
            yield WalkedEntry(self._entry(source.top, EntryType.FILE, status), -1)
        elif stat.S_ISREG(status.st_mode):
            with held(reopen_regular(source.fd, status, device=None, shown=shown)) as fd:
                yield WalkedEntry(self._entry(source.top, EntryType.FILE, status), fd)
        else:
            yield WalkedEntry(self._entry(source.top, EntryType.DIRECTORY, status), -1)
            yield from self._below(Directory(os.dup(source.fd), shown), source.top)

    def _below(self, top: Directory, path: bytes) -> Generator[WalkedEntry, None, None]:
        levels = [_Level(top, top.scan(), path)]
        try:
            while levels:
                level = levels[-1]
                entry = next(level.names, None)
                if entry is None:
                    levels.pop().directory.close()
                    continue
                name = os.fsencode(entry.name)
                if STAGE_NAME.fullmatch(name):  # perhaps this copy's own
                    continue
                inner_path = level.path + b"/" + name
                try:
                    if entry.is_dir(follow_symlinks=False):
                        inner = level.directory.enter(name)
                        levels.append(_Level(inner, inner.scan(), inner_path))
                        walked: WalkedEntry | None = self._directory(levels)
                    elif entry.is_symlink():
                        walked = self._link(level.directory, name, inner_path)
                    else:
                        walked = self._file(level.directory, name, inner_path)
                except OSError as exc:
                    if exc.errno not in _CHANGED:
                        raise
                    self._on_skip(Skipped(inner_path, "vanished", "it changed or vanished"))
                    continue
                except KernelFileSystem as exc:
                    self._on_skip(Skipped(inner_path, "kernel-file-system", exc.reason))
                    continue
                if walked is None:
                    continue
                try:
                    yield walked
                finally:
                    if walked.fd >= 0:
                        os.close(walked.fd)
        finally:
            for level in levels:
                level.names.close()
                level.directory.close()

    def _directory(self, levels: list[_Level]) -> WalkedEntry:
        directory, names, path = levels[-1]
        if len(levels) > MAX_DEPTH:
            raise CopyError(f"{quote(os.fsdecode(path))} is more than {MAX_DEPTH} directories deep")
        if len(levels) > _MAX_OPEN_SCANS:
            levels[-1] = _Level(directory, (entry for entry in list(names)), path)
        return WalkedEntry(self._entry(path, EntryType.DIRECTORY, os.fstat(directory.fd)), -1)

    def _link(self, directory: Directory, name: bytes, path: bytes) -> WalkedEntry:
        status = directory.lstat(name)
        if status is None or not stat.S_ISLNK(status.st_mode):
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        link = directory.read_link(name)
        return WalkedEntry(self._entry(path, EntryType.SYMLINK, status, link=link), -1)

    def _file(self, directory: Directory, name: bytes, path: bytes) -> WalkedEntry | None:
        if not self._opens:
            status = directory.lstat(name)
            return None if status is None else self._closed_file(status, path)
        pinned = directory.pin(name)
        try:  # a with statement would add a twentieth to the time of a small file
            status = os.fstat(pinned)
            closed = self._closed_file(status, path)
            if closed is None or closed.entry.kind is not EntryType.FILE:
                return closed
            fd = reopen_regular(pinned, status, device=directory.device, shown=path)
            return WalkedEntry(closed.entry, fd)
        finally:
            os.close(pinned)

    def _closed_file(self, status: os.stat_result, path: bytes) -> WalkedEntry | None:
        if not stat.S_ISREG(status.st_mode):
            kind = _SPECIAL.get(stat.S_IFMT(status.st_mode), "no longer a regular file")
            self._on_skip(Skipped(path, "special", f"it is {kind}"))
            return None
        key = (status.st_dev, status.st_ino)
        if status.st_nlink > 1 and (first := self._linked.setdefault(key, path)) != path:
            return WalkedEntry(self._entry(path, EntryType.HARDLINK, status, link=first), -1)
        return WalkedEntry(self._entry(path, EntryType.FILE, status), -1)

    def _entry(
        self, name: bytes, kind: EntryType, status: os.stat_result, *, link: bytes = b""
    ) -> Entry:
        mtime_ns = status.st_mtime_ns
        if self._whole_seconds:
            mtime_ns -= mtime_ns % NS_PER_S
        return Entry(
            name,
            kind,
            status.st_size if kind is EntryType.FILE else 0,
            stat.S_IMODE(status.st_mode),
            mtime_ns,
            self._root.uids.to_container(status.st_uid),
            self._root.gids.to_container(status.st_gid),
            link,
        )
