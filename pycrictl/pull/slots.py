"""Slots for pulling, shared by all pycrictl processes on a node. No daemon: the kernel keeps them.

They are locks on single bytes of one file (open file description locks, ``fcntl(2)``). The kernel
drops them when the process ends, however it ends, so nothing is ever left behind; and nobody reads
or writes the file, so nothing in it can be broken. A child process does not inherit the descriptor.

::

    bytes SLOTS         one is held by each process that pulls
    bytes LINE          one is held by each process that waits; the lowest is the first in line

A process with limit N pulls when it is the first in line and fewer than N slots are held, no matter
by whom: processes may have different limits. Waiting processes poll, since the kernel can wait for
one lock only and not in order. Processes of different users do not see each other unless they name
the same directory, and a directory is only trusted if its owner alone may write to it.
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
from typing import Final, NamedTuple

from pycrictl import noderoot
from pycrictl.errors import DeadlineExceeded, Exhausted, PycrictlError
from pycrictl.units import format_duration, plural, quote

DIRECTORY_VARIABLE: Final = "PYCRICTL_SLOTS_DIR"
MAX_LIMIT: Final = 10_000

_SLOTS: Final = range(2**16, 2**16 + MAX_LIMIT)
_LINE: Final = range(2**32, 2**62)

# The first in line looks often, the others only to report their place.
_FIRST_POLL_S: Final = 0.05
_POLL_S: Final = 0.2

# struct flock: l_type, l_whence, l_start, l_len, l_pid
_FLOCK: Final = struct.Struct("@hhqqi0q")

Pause = Callable[[float], None]


class Retry(NamedTuple):
    """Look again at fixed times instead of waiting in line, then give up."""

    interval_s: float = 10.0
    retries: int = 3


def default_directory(environ: Mapping[str, str], uid: int) -> Path:
    """Return where this user's processes share their slots.

    Below ``/run`` only root can create anything, so nobody can plant something there; the proxy's
    own directory is not used, since it goes with the proxy.
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
    retry: Retry | None = None,
    on_wait: Callable[[int], None] = lambda place: None,
    sleep: Pause = time.sleep,
) -> Iterator[None]:
    """Hold a slot while the block runs; a limit of 0 takes none.

    ``timeout_s`` 0 takes a free slot only. ``on_wait`` is called when the place in the line
    changes, from 1; once with 0 if there is none, because of ``retry``.
    """
    if limit == 0:
        yield
        return
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    hint = f"the limit is {limit}, and other processes on this node hold as many slots"

    def pause(seconds: float) -> None:
        left_s = seconds if deadline is None else deadline - time.monotonic()
        if left_s <= 0:
            message = f"no slot for pulling {quote(image)} became free in time"
            raise DeadlineExceeded(message, code="DeadlineExceeded", hint=hint)
        sleep(min(seconds, left_s))

    with _opened(directory) as fd:
        if not _take_slot(fd, limit):
            if retry is None:
                _wait_in_line(fd, limit, on_wait, pause)
            else:
                on_wait(0)
                for _ in range(retry.retries):
                    pause(retry.interval_s)
                    if _take_slot(fd, limit):
                        break
                else:
                    message = (
                        f"TooManyPullingInParallelErr: no slot for pulling {quote(image)} was free "
                        f"at {plural(retry.retries, 'retry', 'retries')} every "
                        f"{format_duration(retry.interval_s)}"
                    )
                    code = "ResourceExhausted"
                    raise Exhausted(message, code=code, details=message, hint=hint)
        yield


def _take_slot(fd: int, limit: int, ticket: int = _LINE.stop) -> bool:
    """Take a slot if one is free and nobody is in line before ``ticket``."""
    if any(_held(fd, _LINE.start, ticket)):
        return False
    for byte in _SLOTS[:limit]:
        if _try_lock(fd, byte):
            # Those with other limits may hold bytes beyond; of two that come at once, none may see
            # fewer than there are: then both get in line, where one after the other tries.
            if sum(1 for _ in _held(fd, _SLOTS.start, _SLOTS.stop)) < limit:
                return True
            _unlock(fd, byte)
            return False
    return False


def _wait_in_line(fd: int, limit: int, on_wait: Callable[[int], None], pause: Pause) -> None:
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
    """Open the file with the locks; at the end give up all that are held through it."""
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
        # Not only closed: a forked child may have a copy of the descriptor.
        _unlock(fd, 0, 0)
        os.close(fd)


def _open(directory: Path) -> int:
    """Open the file, but nothing that another user could have planted or could replace."""
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


# Locks on bytes of the file; those of one descriptor do not hinder each other.


def _try_lock(fd: int, byte: int) -> bool:
    """Lock a byte, if no other descriptor has."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, byte, 1))
    except (BlockingIOError, PermissionError):
        return False
    return True


def _unlock(fd: int, start: int, length: int = 1) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, start, length))


def _held(fd: int, start: int, end: int) -> Iterator[int]:
    """Yield the bytes that are locked through other descriptors, in no order."""
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
