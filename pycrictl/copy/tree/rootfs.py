"""The only code that accesses file systems for a copy.

A path is resolved once, inside a root, by the kernel (``tree.resolve``). The result is a directory
that is held open; all further operations are on single names in an open directory, and no link is
ever followed. Concurrent renames do not matter: there is no gap between check and use.

Only regular files are opened for their content, and only after their type is known: opening a named
pipe blocks, and opening a device may have any effect. File systems that are interfaces of the
kernel are neither written nor read, whatever link or mount leads there.

These functions raise ``OSError`` for system errors, and ``CopyError`` where a rule forbids
something. ``to_error`` converts the first into the second.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from pycrictl.base.errors import CopyError
from pycrictl.base.units import quote
from pycrictl.copy.tree.resolve import (
    PINNED,
    held,
    last_error,
    libc,
    mount_number,
    own_descriptors,
    refuse_kernel_file_system,
)

_MAX_REMOVED_DEPTH: Final = 600
"""Deeper than any tree made here; others may have nested more into it meanwhile."""

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# <linux/fs.h>, <linux/fcntl.h>
RENAME_NOREPLACE: Final = 1
_AT_EMPTY_PATH: Final = 0x1000

_MOUNTED: Final = "what is mounted can only be written into: exec -i CONTAINER tee FILE"
_HINTS: Final = {
    errno.EROFS: "copy to a writable volume",
    errno.EBUSY: _MOUNTED,
    errno.EACCES: "run as root",
    errno.EPERM: "run as root",
    errno.EMFILE: "raise the limit of open files with ulimit -n",
    errno.EOVERFLOW: "the file system does not have this program's user",
}


def to_error(exc: OSError, action: str, shown: bytes) -> CopyError:
    """Return a system error as one line: ``cannot <action> "<shown>": <reason>``."""
    reason = os.strerror(exc.errno) if exc.errno else str(exc)
    hint = _HINTS.get(exc.errno or 0)
    return CopyError(
        f"cannot {action} {quote(os.fsdecode(shown))}: {reason[:1].lower()}{reason[1:]}", hint=hint
    )


def reopen_regular(pinned: int, status: os.stat_result, *, device: int | None, shown: bytes) -> int:
    """Open a pinned file for reading, if it is a regular one.

    Args:
        pinned: an O_PATH descriptor of anything; ``status`` is its status.
        device: a file system that is known to be storage; any other is checked.
    """
    if not stat.S_ISREG(status.st_mode):
        raise CopyError(f"{quote(os.fsdecode(shown))} is not a regular file")
    if status.st_dev != device:
        refuse_kernel_file_system(pinned, shown)
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    return os.open(b"%d" % pinned, flags, dir_fd=own_descriptors())


def set_owner(pinned: int, uid: int, gid: int) -> None:
    """Change the owner of a file, even a symbolic link, given its O_PATH descriptor."""
    if libc.fchownat(pinned, b"", uid, gid, _AT_EMPTY_PATH):
        raise last_error()


class Directory:
    """A directory that is held open. All names given to it are single components.

    Attributes:
        fd: an O_PATH descriptor.
        device: its file system, which is storage.
        shown: its path, for messages only.
    """

    __slots__ = ("device", "fd", "shown")

    def __init__(self, fd: int, shown: bytes, *, known_device: int | None = None) -> None:
        """Take over ``fd``, which is closed if the directory is not acceptable."""
        self.fd = fd
        self.shown = shown
        try:
            self.device = os.fstat(fd).st_dev
            if self.device != known_device:
                refuse_kernel_file_system(fd, shown)
        except BaseException:
            os.close(fd)
            raise

    def close(self) -> None:
        """Close its descriptor."""
        os.close(self.fd)

    def __enter__(self) -> Directory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def shown_path(self, name: bytes) -> bytes:
        """Return the path of ``name`` in this directory, for messages only."""
        return self.shown.rstrip(b"/") + b"/" + name if self.shown else name

    # Reading

    def lstat(self, name: bytes) -> os.stat_result | None:
        """Return the status of ``name``, or None if it does not exist."""
        try:
            return os.stat(_single(name), dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def enter(self, name: bytes) -> Directory:
        """Return the directory ``name``; anything else, even a link, raises ENOTDIR."""
        flags = PINNED | os.O_DIRECTORY | os.O_NOFOLLOW
        fd = os.open(_single(name), flags, dir_fd=self.fd)
        return Directory(fd, self.shown_path(name), known_device=self.device)

    def readable(self) -> int:
        """Return a descriptor of this directory that can be read; the caller closes it."""
        return os.open(b".", _DIRECTORY, dir_fd=self.fd)

    def scan(self) -> Generator[os.DirEntry[str], None, None]:
        """Yield the entries. Their names are ``str``; ``os.fsencode`` restores the bytes."""
        with held(self.readable()) as fd:
            scanned = os.scandir(fd)  # it has a descriptor of its own
        with scanned as entries:
            yield from entries

    def pin(self, name: bytes) -> int:
        """Return an O_PATH descriptor of ``name``, whatever its type."""
        return os.open(_single(name), PINNED | os.O_NOFOLLOW, dir_fd=self.fd)

    def is_mount_point(self, name: bytes) -> bool:
        """Return whether something is mounted at ``name``.

        Only in the same mount namespace does the kernel refuse to rename over it or to remove it:
        from outside, that silently removes the mount from the container.
        """
        with held(self.pin(name)) as pinned:
            return mount_number(pinned) != mount_number(self.fd)

    def refuse_mounted(self, name: bytes) -> None:
        """Refuse to replace ``name`` if something is mounted there."""
        if self.is_mount_point(name):
            shown = quote(os.fsdecode(self.shown_path(name)))
            raise CopyError(f"{shown} is mounted there and cannot be replaced", hint=_MOUNTED)

    def read_link(self, name: bytes) -> bytes:
        """Return the target of a symbolic link."""
        return os.readlink(_single(name), dir_fd=self.fd)

    # Creating

    def make(self, name: bytes) -> Directory:
        """Make a directory that only this user can access, and enter it."""
        os.mkdir(_single(name), 0o700, dir_fd=self.fd)
        return self.enter(name)

    def create(self, name: bytes) -> int:
        """Make a file that only this user can access, open for writing."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(_single(name), flags, 0o600, dir_fd=self.fd)

    def symlink(self, target: bytes, name: bytes) -> None:
        """Make a symbolic link."""
        os.symlink(target, _single(name), dir_fd=self.fd)

    def link(self, source: Directory, source_name: bytes, name: bytes) -> None:
        """Create a hard link to a file; a symbolic link is not followed."""
        os.link(
            _single(source_name),
            _single(name),
            src_dir_fd=source.fd,
            dst_dir_fd=self.fd,
            follow_symlinks=False,
        )

    # Moving and removing

    def move(self, name: bytes, to: Directory, to_name: bytes, *, flags: int = 0) -> None:
        """Rename; ``flags`` are those of renameat2."""
        if not flags:
            os.rename(_single(name), _single(to_name), src_dir_fd=self.fd, dst_dir_fd=to.fd)
            return
        try:
            renameat2 = libc.renameat2
        except AttributeError:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
        if renameat2(self.fd, _single(name), to.fd, _single(to_name), flags):
            raise last_error()

    def remove(self, name: bytes, *, depth: int = 0) -> None:
        """Remove a file or a whole tree; links in it are removed, not followed."""
        if depth > _MAX_REMOVED_DEPTH:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), name)
        with suppress(IsADirectoryError):
            os.unlink(_single(name), dir_fd=self.fd)
            return
        with self.enter(name) as inner:
            if inner.device != self.device:  # only those who mounted it may empty it
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), name)
            # In batches: there may be millions, and each level may hold only one descriptor.
            while names := [os.fsencode(entry.name) for entry in islice(inner.scan(), 1000)]:
                for inner_name in names:
                    inner.remove(inner_name, depth=depth + 1)
        os.rmdir(name, dir_fd=self.fd)


def descend(top: Directory, path: Sequence[bytes]) -> Directory:
    """Return the directory ``path`` below ``top``, following no links; the caller closes it."""
    directory = Directory(os.dup(top.fd), top.shown, known_device=top.device)
    for name in path:
        with directory:
            directory = directory.enter(name)
    return directory


def _single(name: bytes) -> bytes:
    # A safeguard: every path has been split into components before.
    if b"/" in name or name in (b"", b".", b".."):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), name)
    return name
