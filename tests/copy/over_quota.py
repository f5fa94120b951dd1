"""A disk quota that is exceeded half way through a file, on any file system.

Kernels that can be relied on to have quotas are few, so a filter for system calls (seccomp(2))
answers as one would: for the thread that it is set for, and nobody else.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# From <linux/prctl.h>, <linux/seccomp.h> and <linux/filter.h>.
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
MODE_FILTER = 2
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
LOAD, IF_EQUAL, IF_AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
NUMBER, FOURTH_ARGUMENT = 0, 16 + 3 * 8

# By machine: the numbers of pwrite64 and copy_file_range.
CALLS = {"x86_64": (18, 326), "aarch64": (68, 285)}


def exceeding_quota(act: Callable[[], T], limit_bytes: int) -> T:
    """Do something in a thread that may write only so far into any file.

    What the kernel copies by itself fails from the beginning.
    """
    outcome: list[T | BaseException] = []

    def run() -> None:
        try:
            _refuse(limit_bytes)
            outcome.append(act())
        except BaseException as exc:
            outcome.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    [result] = outcome
    if isinstance(result, BaseException):
        raise result
    return result


def _refuse(limit_bytes: int) -> None:
    write, copy = CALLS[platform.machine()]
    refuse = (RETURN, 0, 0, ERRNO | errno.EDQUOT)
    steps = (
        (LOAD, 0, 0, NUMBER),
        (IF_EQUAL, 4, 0, copy),
        (IF_EQUAL, 0, 2, write),
        (LOAD, 0, 0, FOURTH_ARGUMENT),  # where pwrite64 writes to
        (IF_AT_LEAST, 1, 0, limit_bytes),
        (RETURN, 0, 0, ALLOW),
        refuse,
    )
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    program = ctypes.create_string_buffer(code)
    # struct sock_fprog
    header = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (PR_SET_SECCOMP, MODE_FILTER, ctypes.c_void_p(ctypes.addressof(header)), 0, 0),
    ):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "prctl")
