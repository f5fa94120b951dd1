"""Pull slots shared by all pycrictl processes on a node, kept by the kernel without a daemon.

Slots are locks on single bytes of one file (open file description locks, ``fcntl(2)``). The kernel
releases them when the process ends, however it ends, so none is ever stale. The file is neither
read nor written, so it cannot be corrupted. Executed programs do not inherit the descriptor.

::

    bytes SLOTS         each pulling process holds one
    bytes LINE          each waiting process holds one; the lowest is the first in line

A process with limit N pulls when it is the first in line and all processes together hold fewer than
N slots; their limits may differ. Waiting processes poll, since the kernel can wait for one lock
only, and not in order. Processes of different users never share slots: a directory is only trusted
if the process's own user owns it and nobody else may write to it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pycrictl.base import noderoot
from pycrictl.base.errors import DeadlineExceeded, PycrictlError
from pycrictl.base.units import quote

DIRECTORY_VARIABLE: Final = "PYCRICTL_SLOTS_DIR"
MAX_LIMIT: Final = 10_000

_SLOTS: Final = range(2**16, 2**16 + MAX_LIMIT)
_LINE: Final = range(2**32, 2**62)

# The first in line polls often; the others poll only to report their place.
_FIRST_POLL_S: Final = 0.05
_POLL_S: Final = 0.2

# struct flock: l_type, l_whence, l_start, l_len, l_pid
_FLOCK: Final = struct.Struct("@hhqqi0q")


def default_directory(environ: Mapping[str, str], uid: int) -> Path:
    """Return the directory in which this user's processes share slots.

    Only root can create files in ``/run``, so nobody else can plant one there. The proxy's own
    directory is not used, since it exists only with the proxy.
    """
    if named := environ.get(DIRECTORY_VARIABLE):
        return Path(named)
    if uid == 0:
        return Path(noderoot.locate("/run/pycrictl-slots"))
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "pycrictl-slots"
    return Path(f"/tmp/pycrictl-slots-{uid}")


@contextmanager
def pull_slot(
    limit: int,
    *,
    image: str,
    directory: Path,
    timeout_s: float | None = None,
    on_wait: Callable[[int], None] = lambda place: None,
) -> Iterator[None]:
    """Hold a slot while the block runs.

    A ``timeout_s`` of 0 means not to wait. While waiting, ``on_wait`` is called with each new
    place in line, counted from 1.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s

    def pause(seconds: float) -> None:
        left_s = seconds if deadline is None else deadline - time.monotonic()
        if left_s <= 0:
            message = f"no slot for pulling {quote(image)} became free in time"
            hint = f"the limit is {limit}, and other processes on this node hold as many slots"
            raise DeadlineExceeded(message, code="DeadlineExceeded", hint=hint)
        time.sleep(min(seconds, left_s))

    with _opened(directory) as fd:
        if not _take_slot(fd, limit):
            _wait_in_line(fd, limit, on_wait, pause)
        yield


def _take_slot(fd: int, limit: int, ticket: int = _LINE.stop) -> bool:
    """Take a slot if one is free and nobody is in line before ``ticket``."""
    if any(_held(fd, _LINE.start, ticket)):
        return False
    for byte in _SLOTS[:limit]:
        if _try_lock(fd, byte):
            # Processes with higher limits may hold bytes beyond these. Counting after locking, two
            # that compete for one slot may both fail, and retry in line, but never both succeed.
            if sum(1 for _ in _held(fd, _SLOTS.start, _SLOTS.stop)) < limit:
                return True
            _unlock(fd, byte)
            return False
    return False


def _wait_in_line(
    fd: int, limit: int, on_wait: Callable[[int], None], pause: Callable[[float], None]
) -> None:
    ticket = max(_held(fd, _LINE.start, _LINE.stop), default=_LINE.start - 1) + 1
    while not _try_lock(fd, ticket):
        ticket += 1
    try:
        reported = 0
        while True:
            place = sum(1 for _ in _held(fd, _LINE.start, ticket)) + 1
            if place == 1 and _take_slot(fd, limit, ticket):
                return
            if place != reported:
                on_wait(place)
                reported = place
            pause(_FIRST_POLL_S if place == 1 else _POLL_S)
    finally:
        _unlock(fd, ticket)


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    """Open the lock file; on exit release all locks held through it."""
    try:
        fd = _open(directory)
    except OSError as exc:
        raise PycrictlError(
            f"cannot use the directory {quote(str(directory))} for pull slots: {exc.strerror}",
            hint=f"{DIRECTORY_VARIABLE} names another one",
        ) from exc
    try:
        yield fd
    finally:
        # Closing is not enough: a forked child may have a copy of the descriptor.
        _unlock(fd, 0, 0)
        os.close(fd)


def _open(directory: Path) -> int:
    """Open the lock file, unless another user could have planted or could replace it."""
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        pass
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        facts = os.fstat(folder)
        if facts.st_uid != os.geteuid() or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(errno.EPERM, "another user owns it or may write to it")
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open("pulls", flags, 0o600, dir_fd=folder)
    finally:
        os.close(folder)


# Byte locks; those held through one descriptor do not conflict with each other.


def _try_lock(fd: int, byte: int) -> bool:
    """Lock a byte; return False if it is locked through another descriptor."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, byte, 1))
    except (BlockingIOError, PermissionError):
        return False
    return True


def _unlock(fd: int, start: int, length: int = 1) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, start, length))


def _held(fd: int, start: int, end: int) -> Iterator[int]:
    """Yield the bytes that are locked through other descriptors, in no particular order."""
    todo = [(start, end)]
    while todo:
        low, high = todo.pop()
        if low < high:
            query = _flock(fcntl.F_WRLCK, low, high - low)
            kind, _, byte, *_ = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, query))
            if kind != fcntl.F_UNLCK:
                yield byte
                todo += [(low, byte), (byte + 1, high)]


def _flock(kind: int, start: int, length: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, start, length, 0)
