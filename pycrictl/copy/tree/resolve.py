"""Resolving paths inside a root, by the kernel.

``openat2`` (Linux 5.6) resolves a whole path inside a root atomically. Where it is missing or
forbidden, the method ``node`` is not available.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

from pycrictl.base.errors import CopyError, Unimplemented
from pycrictl.base.units import quote

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
                "paths in containers need the system call openat2: Linux 5.6 has it,"
                " and no seccomp profile may forbid it"
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
