"""Who gets a place for a copy, and space on the node's disk, when several users want them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from pycrictl.agent.copies.session import CopyOwner, CopyPhase, Session
from pycrictl.copy.archive.spool import open_unnamed
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.quotas import MAX_COPIES, Quotas
from pycrictl.copy.transfer.serving import Download, Skips, Upload
from pycrictl.errors import ConfigError, Exhausted
from pycrictl.units import format_bytes, quote

REST_S: Final = 60.0
"""A copy of which no byte has moved for so long gives its place up if another one needs it; so long
it is remembered that somebody was refused for want of one."""

_MAX_ASKING: Final = 1000

RESERVE_BYTES: Final = 64 * 1024 * 1024
"""What copies leave free on the disk."""


def check_folder(folder: str) -> None:
    """Make a folder for archives if it is not there; other files in it are left alone."""
    try:
        Path(folder).mkdir(0o700, parents=True, exist_ok=True)
        os.close(open_unnamed(folder))
    except OSError as exc:
        reason = os.strerror(exc.errno or 0).lower()
        raise ConfigError(f"cannot keep copies in {quote(folder)}: {reason}") from None


def free_bytes(folder: str) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


class SpoolSpace:
    """Counts the bytes that sessions have on the disk.

    Nothing is kept free for bytes that are only announced, or whoever announces much keeps all
    others out.

    Args:
        limit_bytes: of all sessions together; 0 for none.
        free_bytes: asks the disk.
    """

    def __init__(self, limit_bytes: int, free_bytes: Callable[[], int]) -> None:
        self.limit_bytes = limit_bytes
        self._free_bytes = free_bytes
        self._held: dict[str, tuple[Hashable, int]] = {}
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        with self._lock:
            return self._sum()

    def held_by(self, owner: Hashable) -> int:
        with self._lock:
            return sum(size_bytes for whose, size_bytes in self._held.values() if whose == owner)

    def check(self, size_bytes: int) -> None:
        with self._lock:
            self._require(size_bytes, size_bytes - self._sum())

    def hold(self, name: str, owner: Hashable, size_bytes: int) -> None:
        """Let a session have so much in all, which it is about to write.

        Args:
            size_bytes: what it had before is in that.
        """
        with self._lock:
            _, before_bytes = self._held.get(name, (owner, 0))
            growth_bytes = size_bytes - before_bytes
            if growth_bytes > 0:
                self._require(self._sum() + growth_bytes, growth_bytes)
            self._held[name] = owner, size_bytes

    def give(self, name: str) -> None:
        with self._lock:
            self._held.pop(name, None)

    def _sum(self) -> int:
        return sum(size_bytes for _, size_bytes in self._held.values())

    def _require(self, whole_bytes: int, growth_bytes: int) -> None:
        if 0 < self.limit_bytes < whole_bytes:
            raise _exhausted(
                f"the copies on this node would take {format_bytes(whole_bytes)} of its disk, and"
                f" may take {format_bytes(self.limit_bytes)}"
            )
        if self._free_bytes() < growth_bytes + RESERVE_BYTES:
            raise _exhausted("there is not enough space for the copy on the node's disk")


def _exhausted(reason: str) -> Exhausted:
    message = f"{reason}; try again later"
    return Exhausted(message, code="ResourceExhausted", details=message)


@dataclass(slots=True, eq=False)
class Copy:
    """A session while the agent runs.

    Attributes:
        work: the thread that makes or takes its archive.
        sending: the thread that sends one, if there is a connection for that, or was.
        moved_s: when a byte of it has moved, on the service's clock.
        begun: is set when there is something of an archive, or never will be.
        is_unwanted: its threads were told to stop; whoever told them ends the session.
    """

    session: Session
    transfer: Upload | Download
    moved_s: float
    work: asyncio.Future[Summary] = field(init=False)
    sending: asyncio.Future[None] | None = None
    skips: Skips = field(default_factory=Skips)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    is_unwanted: bool = False
    is_freed: bool = False

    @property
    def is_working(self) -> bool:
        return self.session.phase in (CopyPhase.MEASURING, CopyPhase.COMMITTING)

    @property
    def has_bytes(self) -> int:
        if isinstance(self.transfer, Download):
            return self.transfer.spool.size_bytes
        return self.transfer.offset

    async def wait(self, limit_s: float) -> None:
        threads = [one for one in (self.work, self.sending) if one is not None]
        await asyncio.wait(threads, timeout=limit_s)


class Admission:
    """Places and space of a node.

    Args:
        copies: of the node, by name; all exceptions here are ``Exhausted``.
        expire: ends a copy that gives way, with the reason.
    """

    def __init__(
        self,
        quotas: Quotas,
        space: SpoolSpace,
        copies: dict[str, Copy],
        clock: Callable[[], float],
        expire: Callable[[Copy, str], Awaitable[None]],
    ) -> None:
        self._quotas = quotas
        self._space = space
        self._copies = copies
        self._clock = clock
        self._expire = expire
        self._asking: dict[CopyOwner, float] = {}  # who was refused for want of a place, and when

    async def hold(self, copy: Copy, size_bytes: int) -> None:
        while True:
            try:
                self.hold_now(copy, size_bytes)
            except Exhausted:
                if self._is_over_share(copy.session.owner, size_bytes - copy.has_bytes):
                    raise
                self._ask(copy.session.owner)
                if not await self._make_room(copy.session, lambda of: self._is_over_half(of, 0)):
                    raise
            else:
                return

    def hold_now(self, copy: Copy, size_bytes: int) -> None:
        session = copy.session
        if self._is_over_share(session.owner, size_bytes - copy.has_bytes):
            raise _more_than_half("of what copies may take of the disk", session.owner)
        self._space.hold(session.name, session.owner, size_bytes)
        copy.moved_s = self._clock()

    async def take(self, session: Session) -> None:
        """Take a place for a copy, if need be that of another one."""
        pod = session.place.sandbox_id
        while True:
            if self._others_ask(session.owner) and self._places(session.owner) >= MAX_COPIES // 2:
                raise _more_than_half("of the copies at once", session.owner)
            try:
                self._quotas.take(pod)
            except Exhausted:
                self._ask(session.owner)
                is_full = self._quotas.is_full(pod)
                # One pod has no more than half of all, which one user must not have whole.
                half = (MAX_COPIES if is_full else self._quotas.taken) // 2
                has_too_much = partial(self._has_more_places, half)
                if not await self._make_room(session, has_too_much, pod if is_full else ""):
                    raise
            else:
                return

    async def _make_room(
        self, session: Session, has_too_much: Callable[[CopyOwner], bool], pod: str = ""
    ) -> bool:
        """End a copy for the sake of another one; return whether there was one that gives way.

        Args:
            session: the other one.
            has_too_much: returns whether another user's copies give way although they move.
            pod: the ID of a sandbox: only copies of that pod; empty for all.
        """
        now = self._clock()
        found = [
            copy
            for copy in self._copies.values()
            if not (copy.session is session or copy.session.is_over or copy.is_working)
            and pod in ("", copy.session.place.sandbox_id)
            and (
                now - copy.moved_s >= REST_S
                or (copy.session.owner != session.owner and has_too_much(copy.session.owner))
            )
        ]
        if not found:
            return False
        await self._expire(min(found, key=lambda one: one.moved_s), "another copy needs its place")
        return True

    def _is_over_share(self, owner: CopyOwner, growth_bytes: int) -> bool:
        return self._others_ask(owner) and self._is_over_half(owner, growth_bytes)

    def _is_over_half(self, owner: CopyOwner, growth_bytes: int) -> bool:
        limit_bytes = self._space.limit_bytes
        return 0 < limit_bytes < 2 * (self._space.held_by(owner) + growth_bytes)

    def _places(self, owner: CopyOwner) -> int:
        return sum(
            copy.session.owner == owner and not copy.session.is_over
            for copy in list(self._copies.values())
        )

    def _has_more_places(self, count: int, owner: CopyOwner) -> bool:
        return self._places(owner) > count

    def _ask(self, owner: CopyOwner) -> None:
        self._asking.pop(owner, None)
        self._asking[owner] = self._clock()
        if len(self._asking) > _MAX_ASKING:
            del self._asking[next(iter(self._asking))]

    def _others_ask(self, owner: CopyOwner) -> bool:
        since_s = self._clock() - REST_S
        return any(at > since_s and one != owner for one, at in list(self._asking.items()))


def _more_than_half(of_what: str, owner: CopyOwner) -> Exhausted:
    message = (
        f"user {quote(owner.name)} has half {of_what} on this node, and others wait for a place;"
        " try again later"
    )
    return Exhausted(message, code="ResourceExhausted", details=message)
