"""Slots for pulling, shared by all pycrictl processes on a node. No daemon: the kernel keeps them.

They are locks on single bytes of one file (open file description locks, ``fcntl(2)``). The kernel
drops them when the process ends, however it ends, so nothing is ever left behind; and nobody reads
or writes the file, so nothing in it can be broken. A child process does not inherit the descriptor.

::

    byte 0              held for an instant by the process that checks whether it may pull
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
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from pycrictl import noderoot
from pycrictl.errors import DeadlineExceeded, Exhausted, PycrictlError
from pycrictl.units import format_duration, plural, quote

DIRECTORY_VARIABLE: Final = "PYCRICTL_SLOTS_DIR"
MAX_LIMIT: Final = 10_000

_ADMISSION: Final = 0
_SLOTS: Final = range(2**16, 2**16 + MAX_LIMIT)
_LINE: Final = range(2**32, 2**62)

# The first in line looks often, the others only to report their place.
_FIRST_POLL_S: Final = 0.05
_POLL_S: Final = 0.2
_ADMISSION_POLL_S: Final = 0.002
_ADMISSION_TRIES: Final = 100

# struct flock: l_type, l_whence, l_start, l_len, l_pid
_FLOCK: Final = struct.Struct("@hhqqi0q")


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
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Hold a slot while the block runs; a limit of 0 takes none.

    ``timeout_s`` 0 takes a free slot only. ``on_wait`` is called when the place in the line
    changes, from 1; once with 0 if there is none, because of ``retry``.
    """
    if limit == 0:
        yield
        return
    deadline = None if timeout_s is None else clock() + timeout_s
    with _opened(directory) as locks:
        waiter = _Waiter(locks, limit, image, deadline, clock, sleep)
        if not waiter.try_slot():
            if retry is not None:
                on_wait(0)
                waiter.retry(retry)
            else:
                waiter.wait(on_wait)
        yield


@dataclass(frozen=True, slots=True)
class _Locks:
    """Locks on bytes of an open file. Those of one descriptor do not hinder each other."""

    fd: int

    def try_lock(self, byte: int) -> bool:
        try:
            fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, byte, 1))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def unlock(self, byte: int) -> None:
        fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, byte, 1))

    def any_held(self, start: int, end: int) -> int | None:
        if start >= end:
            return None
        query = _flock(fcntl.F_WRLCK, start, end - start)
        kind, _, byte, _, _ = _FLOCK.unpack(fcntl.fcntl(self.fd, fcntl.F_OFD_GETLK, query))
        return None if kind == fcntl.F_UNLCK else int(byte)

    def held(self, start: int, end: int) -> list[int]:
        found: list[int] = []
        todo = [(start, end)]
        while todo:
            low, high = todo.pop()
            if (byte := self.any_held(low, high)) is not None:
                found.append(byte)
                todo += [(low, byte), (byte + 1, high)]
        return found


@dataclass(frozen=True, slots=True)
class _Waiter:
    locks: _Locks
    limit: int
    image: str
    deadline: float | None
    clock: Callable[[], float]
    sleep: Callable[[float], None]

    def try_slot(self, ticket: int = _LINE.stop) -> bool:
        """Take a slot if one is free and nobody is in line before ``ticket``."""
        with self._admission() as is_admitted:
            if not is_admitted or self.locks.any_held(_LINE.start, ticket) is not None:
                return False
            if len(self.locks.held(_SLOTS.start, _SLOTS.stop)) >= self.limit:
                return False
            return any(self.locks.try_lock(byte) for byte in _SLOTS[: self.limit])

    def wait(self, on_wait: Callable[[int], None]) -> None:
        ticket = self._draw_ticket()
        try:
            reported = 0
            while True:
                place = len(self.locks.held(_LINE.start, ticket)) + 1
                if place == 1 and self.try_slot(ticket):
                    return
                if place != reported:
                    on_wait(place)
                    reported = place
                self._pause(_FIRST_POLL_S if place == 1 else _POLL_S)
        finally:
            self.locks.unlock(ticket)

    def retry(self, how: Retry) -> None:
        for _ in range(how.retries):
            self._pause(how.interval_s)
            if self.try_slot():
                return
        message = (
            f"TooManyPullingInParallelErr: no slot for pulling {quote(self.image)} was free at "
            f"{plural(how.retries, 'retry', 'retries')} every {format_duration(how.interval_s)}"
        )
        raise Exhausted(
            message, code="ResourceExhausted", details=message, hint=self._explanation()
        )

    def _draw_ticket(self) -> int:
        with self._admission():
            ticket = max(self.locks.held(_LINE.start, _LINE.stop), default=_LINE.start - 1) + 1
            while not self.locks.try_lock(ticket):
                ticket += 1
        return ticket

    @contextmanager
    def _admission(self) -> Iterator[bool]:
        """Keep others from looking or drawing; yield whether that worked.

        It takes an instant, unless a process was stopped in that instant: then nobody gets a slot,
        but every process still notices its deadline.
        """
        is_admitted = self.locks.try_lock(_ADMISSION)
        for _ in range(_ADMISSION_TRIES):
            if is_admitted:
                break
            self.sleep(_ADMISSION_POLL_S)
            is_admitted = self.locks.try_lock(_ADMISSION)
        try:
            yield is_admitted
        finally:
            if is_admitted:
                self.locks.unlock(_ADMISSION)

    def _pause(self, seconds: float) -> None:
        if self.deadline is not None:
            left_s = self.deadline - self.clock()
            if left_s <= 0:
                raise DeadlineExceeded(
                    f"no slot for pulling {quote(self.image)} became free in time",
                    code="DeadlineExceeded",
                    hint=self._explanation(),
                )
            seconds = min(seconds, left_s)
        self.sleep(seconds)

    def _explanation(self) -> str:
        return f"the limit is {self.limit}, and other processes on this node hold as many slots"


@contextmanager
def _opened(directory: Path) -> Iterator[_Locks]:
    """Open the file with the locks; at the end give up all that are held through it."""
    try:
        fd = _open(directory)
    except OSError as exc:
        raise PycrictlError(
            f"cannot use the directory {quote(str(directory))} for pull slots: {exc.strerror}",
            hint=f"{DIRECTORY_VARIABLE} names another one",
        ) from exc
    try:
        yield _Locks(fd)
    finally:
        # Not only closed: a forked child may have a copy of the descriptor.
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, 0, 0))
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


def _flock(kind: int, start: int, length: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, start, length, 0)
