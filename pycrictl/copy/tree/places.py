"""The source and destination of a copy, on this machine or in a container, opened once."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from pycrictl.base.errors import CopyError
from pycrictl.base.units import quote
from pycrictl.copy.rules.spec import (
    Existing,
    PathText,
    SourceKind,
    check_names,
    has_wildcards,
    is_match,
    take_apart,
)
from pycrictl.copy.tree.rootfs import PINNED, Directory, existing_kind, held, kind_of_mode, to_error

NOBODY: Final = 65534
"""The ID that Linux shows for an ID without a counterpart in the user namespace."""


class IdMap(NamedTuple):
    """The user or group ID map of a user namespace: (inside, outside, count) ranges."""

    ranges: tuple[tuple[int, int, int], ...] = ((0, 0, 2**32 - 1),)

    @classmethod
    def parse(cls, text: str) -> IdMap:
        """Parse the text of ``/proc/PID/uid_map`` or ``gid_map``."""
        rows = [line.split() for line in text.splitlines()]
        return cls(tuple((int(row[0]), int(row[1]), int(row[2])) for row in rows if len(row) == 3))

    def to_host(self, inside: int) -> int:
        """Return the ID on the node for an ID inside."""
        for first_inside, first_outside, count in self.ranges:
            if first_inside <= inside < first_inside + count:
                return first_outside + inside - first_inside
        raise CopyError(f"the container has no user or group {inside}")

    def to_container(self, outside: int) -> int:
        """Return the ID inside for an ID on the node; ``NOBODY`` if there is none."""
        for first_inside, first_outside, count in self.ranges:
            if first_outside <= outside < first_outside + count:
                return first_inside + outside - first_outside
        return NOBODY


class Root:
    """The root of paths: the file systems of this machine, as the user of this program sees them.

    Attributes:
        container_id: the full ID of the container; empty for this machine.
        uids, gids: the maps between user and group IDs in the container and on the node.
        default_owner: user and group of new files, as IDs in the container; None: this program's.
    """

    container_id = ""
    uids = IdMap()
    gids = IdMap()
    default_owner: tuple[int, int] | None = None

    def find(self, path: bytes, *, follow: bool) -> int:
        """Return an O_PATH descriptor; ``follow`` applies to the last component of the path."""
        return os.open(path, PINNED | (0 if follow else os.O_NOFOLLOW))


THIS_MACHINE: Final = Root()


class Source(NamedTuple):
    """The source of a copy, or several: the tops of an archive.

    Attributes:
        fd: an O_PATH descriptor; of the root directory if there are several.
        kind: a symbolic link counts as a file; ``ARCHIVE`` if there are several.
        paths: the paths of several sources; empty for one.
        follow: copy the targets of symbolic links among several, instead of the links.
        whole_seconds: omit fractions of a second, as the receiver keeps no times. A fraction
            needs an extended header, which makes copying small files a quarter slower.
    """

    root: Root
    fd: int
    text: PathText
    kind: SourceKind
    paths: Sequence[bytes] = ()
    follow: bool = False
    whole_seconds: bool = False

    @property
    def top(self) -> bytes:
        """Its name in an archive; ``.`` if only its contents are copied."""
        return b"." if self.text.wants_contents else self.text.name


@contextmanager
def open_source(root: Root, path: bytes, *, follow: bool = False) -> Iterator[Source]:
    """Open the source of a copy, or several if the path has wildcards and is in a container.

    Without ``follow``, a link is copied as a link unless a slash follows its name.
    """
    text, matches = take_apart(path), list[bytes]()
    try:
        fd = root.find(text.path, follow=follow or text.wants_directory)
    except OSError as exc:
        if root.container_id and has_wildcards(path):
            matches = expand(root, path)
        if not matches:
            raise to_error(exc, "copy", path) from exc
    if matches:
        with open_sources(root, matches, follow=follow) as source:
            yield source
        return
    with held(fd):
        kind = kind_of_mode(os.fstat(fd).st_mode)
        shown = quote(os.fsdecode(path))
        if kind is not Existing.DIRECTORY and text.wants_directory:
            raise CopyError(f"{shown} is not a directory")
        if kind is Existing.SPECIAL:
            raise CopyError(f"{shown} is a device, pipe or socket, which is never copied")
        is_directory = kind is Existing.DIRECTORY
        yield Source(root, fd, text, SourceKind.DIRECTORY if is_directory else SourceKind.FILE)


@contextmanager
def open_sources(root: Root, paths: Sequence[bytes], *, follow: bool = False) -> Iterator[Source]:
    """Open one or more sources; several are opened one by one as they are copied."""
    if len(paths) == 1:
        with open_source(root, paths[0], follow=follow) as source:
            yield source
        return
    check_names(paths)
    top = take_apart(b"/")
    with held(root.find(b"/", follow=True)) as fd:
        yield Source(root, fd, top, SourceKind.ARCHIVE, paths, follow)


def expand(root: Root, path: bytes) -> list[bytes]:
    """Return the paths in a root that match a path with wildcards in its last name, in order."""
    parent, _, pattern = path.rstrip(b"/").rpartition(b"/")
    if (directory := _directory(root, parent or b"/", shown=path)) is None:
        return []
    with directory:
        entries = [
            entry
            for entry in directory.scan()
            if not path.endswith(b"/") or entry.is_dir(follow_symlinks=False)
        ]
    names = sorted(os.fsencode(entry.name) for entry in entries)
    return [parent + b"/" + name for name in names if is_match(name, pattern)]


class Destination(NamedTuple):
    """The destination of a copy.

    Attributes:
        existing: its kind; a link to a directory counts as the directory.
        directory: the destination if it is a directory, else its parent.
    """

    root: Root
    text: PathText
    existing: Existing
    directory: Directory


@contextmanager
def open_destination(root: Root, path: bytes) -> Iterator[Destination]:
    """Open the destination of a copy."""
    text = take_apart(path)
    if (directory := _directory(root, text.path, shown=path)) is not None:
        with directory:
            yield Destination(root, text, Existing.DIRECTORY, directory)
        return
    parent, slash, _ = text.path.rpartition(b"/")
    parent = parent or (b"/" if slash else b".")
    directory = _directory(root, parent, shown=path)
    if directory is None or not text.name:
        raise CopyError(f"there is no directory {quote(os.fsdecode(parent))}")
    with directory:
        try:
            existing = _existing(root, directory, text)
        except OSError as exc:
            raise to_error(exc, "copy to", path) from exc
        yield Destination(root, text, existing, directory)


def _existing(root: Root, directory: Directory, text: PathText) -> Existing:
    """Return the kind of a destination that was no directory a moment ago.

    A link to a device or pipe is special, too, as is one to an open descriptor, such as
    ``/dev/stdout``: they must stay.
    """
    status = directory.lstat(text.name)
    if status is not None and stat.S_ISLNK(status.st_mode):
        with suppress(OSError):  # it is dangling, or gone by now
            if directory.read_link(text.name).startswith(b"/proc/self/fd/"):
                return Existing.SPECIAL
            with held(root.find(text.path, follow=True)) as fd:
                status = os.fstat(fd)
    existing = existing_kind(status)
    if existing is Existing.DIRECTORY:
        shown = quote(os.fsdecode(text.path))
        raise CopyError(f"{shown} has just become a directory", hint="try again")
    return existing


def _directory(root: Root, path: bytes, *, shown: bytes) -> Directory | None:
    """Return the directory at ``path``, or None if there is no such directory."""
    try:
        with held(root.find(path, follow=True)) as fd:
            status = os.fstat(fd)
            if not stat.S_ISDIR(status.st_mode):
                return None
            if not status.st_nlink:  # a process may still be in it
                raise CopyError(f"the directory {quote(os.fsdecode(path))} has been removed")
            return Directory(os.dup(fd), path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise to_error(exc, "copy to", shown) from exc
