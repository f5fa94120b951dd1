"""The only code that accesses file systems for a copy.

A path is resolved once, inside a root, by ``openat2`` (Linux 5.6); where that is missing or
forbidden, the method ``node`` is not available. The result is a directory that is held open; all
further operations are on single names in an open directory, and no link is ever followed.
Concurrent renames do not matter: there is no gap between check and use.

Only regular files are opened for their content, and only after their type is known: opening a named
pipe blocks, and opening a device may have any effect. File systems that are interfaces of the
kernel are neither written nor read, whatever link or mount leads there.

These functions raise ``OSError`` for system errors, and ``CopyError`` where a rule forbids
something. ``to_error`` converts the first into the second.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import islice
from typing import Final

from pycrictl.base.errors import CopyError, Unimplemented
from pycrictl.base.units import quote
from pycrictl.copy.rules.spec import Existing

_MAX_TRIES: Final = 64
"""openat2 fails with EAGAIN when a concurrent rename makes ``..`` unreliable."""

PINNED: Final = os.O_PATH | os.O_CLOEXEC
"""Flags of a descriptor that only refers to a file, of any type."""

# <linux/openat2.h>; the number is the same on every architecture.
_OPENAT2: Final = 437
_RESOLVE_NO_MAGICLINKS: Final = 0x02
_RESOLVE_IN_ROOT: Final = 0x10
_NO_CALL: Final = frozenset({errno.ENOSYS, errno.EPERM})

PROC_MAGIC: Final = 0x9FA0
KERNEL_FILE_SYSTEMS: Final = {
    PROC_MAGIC: "procfs",
    0x62656572: "sysfs",
    0x0027E0EB: "cgroupfs",
    0x63677270: "cgroupfs",
    0x64626720: "debugfs",
    0x74726163: "tracefs",
    0x73636673: "securityfs",
    0xCAFE4A11: "bpf",
    0x62656570: "configfs",
    0xDE5E81E4: "efivarfs",
    0x6165676C: "pstore",
    0x00001CD1: "devpts",
    0x19800202: "mqueue",
    0x42494E4D: "binfmt_misc",
    0xF97CFF8C: "selinuxfs",
    0x6E736673: "nsfs",
    0x65735543: "fusectl",
    0x43415D53: "smackfs",
    0x67596969: "rpc_pipefs",
    0x6E667364: "nfsd",
    0x50494446: "pidfs",
}


class KernelFileSystem(CopyError):
    """A path is on a file system that is not storage but an interface of the kernel."""

    def __init__(self, shown: bytes, name: str) -> None:
        self.reason = f"it is on {name}"
        super().__init__(
            f"{quote(os.fsdecode(shown))} is on {name}, which is never copied",
            hint="exec with cat reads such a file, exec -i with tee writes one",
        )


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class _StatFs(ctypes.Structure):
    # Only the type is read. The rest differs between architectures; there is room for all.
    _fields_ = (
        ("type", ctypes.c_uint if platform.machine() == "s390x" else ctypes.c_long),
        ("rest", ctypes.c_char * 248),
    )


libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def held(fd: int) -> Iterator[int]:
    """Yield a descriptor, and close it at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)


def file_system_type(fd: int) -> int:
    """Return the magic number of the file system that ``fd`` is on; ``fd`` may be O_PATH."""
    result = _StatFs()
    if libc.fstatfs(fd, ctypes.byref(result)):
        raise last_error()
    return int(result.type) & 0xFFFFFFFF


def mount_number(fd: int) -> int:
    """Return the ID of the mount that ``fd`` is on; two mounts may show the same file system."""
    flags = os.O_RDONLY | os.O_CLOEXEC
    with held(os.open(b"../fdinfo/%d" % fd, flags, dir_fd=own_descriptors())) as info:
        return int(os.read(info, 4096).partition(b"mnt_id:")[2].split(None, 1)[0])


def refuse_kernel_file_system(fd: int, shown: bytes) -> None:
    """Refuse a file system that is not storage but an interface of the kernel."""
    if (name := KERNEL_FILE_SYSTEMS.get(file_system_type(fd))) is not None:
        raise KernelFileSystem(shown, name)


def resolve(root_fd: int, path: bytes, *, follow: bool = True) -> int:
    """Resolve ``path`` inside a root, as for a process with that root directory.

    Links are followed, absolute ones from the root, and ``..`` never leads above it. The magic
    links of procfs, such as those to open files, are refused.

    Args:
        follow: follow a link in the last component too (a final slash does so anyway).

    Returns:
        An O_PATH descriptor.

    Raises:
        Unimplemented: the system has no openat2.
    """
    flags = PINNED | (0 if follow else os.O_NOFOLLOW)
    how = _OpenHow(flags, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    for _ in range(_MAX_TRIES):
        fd: int = libc.syscall(
            ctypes.c_long(_OPENAT2),
            ctypes.c_long(root_fd),
            ctypes.c_char_p(path),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if fd >= 0:
            return fd
        error = last_error(path)
        if error.errno in _NO_CALL:
            raise Unimplemented(
                "paths in containers need the system call openat2, which came with Linux 5.6;"
                " a seccomp profile must not forbid it"
            )
        if error.errno != errno.EAGAIN:
            break
    raise error


def own_descriptors() -> int:
    """Return an open ``/proc/self/fd``, through which O_PATH descriptors can be opened fully."""
    return _own_descriptors(os.getpid())


@cache
def _own_descriptors(_pid: int) -> int:
    flags = PINNED | os.O_DIRECTORY
    with held(os.open("/proc", flags)) as proc:
        # A container that can replace /proc could redirect us anywhere.
        if file_system_type(proc) != PROC_MAGIC:
            raise CopyError("/proc of this machine is not procfs")
        return os.open("self/fd", flags, dir_fd=proc)


def last_error(path: bytes | None = None) -> OSError:
    """Return the error of the last call of ``libc``."""
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), path)


_MAX_REMOVED_DEPTH: Final = 600
"""Deeper than any tree made here; others may have nested more into it meanwhile."""

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# <linux/fs.h>, <linux/fcntl.h>
RENAME_NOREPLACE: Final = 1
_AT_EMPTY_PATH: Final = 0x1000

_MOUNTED: Final = "a mounted file can be written to, but not replaced: exec -i CONTAINER tee FILE"
_HINTS: Final = {
    errno.EROFS: "copy to a writable volume",
    errno.EBUSY: _MOUNTED,
    errno.EACCES: "run as root",
    errno.EPERM: "run as root",
    errno.EMFILE: "raise the limit of open files with ulimit -n",
    errno.EOVERFLOW: "this program's user has no equivalent in the file system",
}


def to_error(exc: OSError, action: str, shown: bytes) -> CopyError:
    """Return a system error as one line: ``cannot <action> "<shown>": <reason>``."""
    reason = os.strerror(exc.errno) if exc.errno else str(exc)
    hint = _HINTS.get(exc.errno or 0)
    return CopyError(
        f"cannot {action} {quote(os.fsdecode(shown))}: {reason[:1].lower()}{reason[1:]}", hint=hint
    )


def kind_of_mode(mode: int) -> Existing:
    """Return the kind for a mode; others may need special files, such as ``/dev/null``."""
    if stat.S_ISDIR(mode):
        return Existing.DIRECTORY
    return Existing.FILE if stat.S_ISREG(mode) or stat.S_ISLNK(mode) else Existing.SPECIAL


def existing_kind(status: os.stat_result | None) -> Existing:
    """Return the kind of a destination."""
    return Existing.NOTHING if status is None else kind_of_mode(status.st_mode)


def reopen_regular(pinned: int, status: os.stat_result, *, device: int | None, shown: bytes) -> int:
    """Open a pinned file for reading, if it is a regular one.

    Args:
        pinned: an O_PATH descriptor of anything; ``status`` is its status.
        device: a file system that is known to be storage; a file on any other is checked.
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

        Only within the same mount namespace does the kernel refuse to rename over a mount point or
        to remove it. From outside, both succeed, and the mount disappears from the container.
        """
        with held(self.pin(name)) as pinned:
            return mount_number(pinned) != mount_number(self.fd)

    def refuse_mounted(self, name: bytes) -> None:
        """Refuse to replace ``name`` if something is mounted there."""
        if self.is_mount_point(name):
            shown = quote(os.fsdecode(self.shown_path(name)))
            raise CopyError(f"{shown} is a mount point and cannot be replaced", hint=_MOUNTED)

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
