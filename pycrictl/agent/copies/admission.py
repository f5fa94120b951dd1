"""Divides slots for copies, and space on the node's disk, among several users."""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from pycrictl.agent.copies.session import CopyOwner, CopyPhase, Session
from pycrictl.copy.archive.spool import open_unnamed
from pycrictl.copy.rules.quotas import MAX_COPIES, Quotas
from pycrictl.errors import ConfigError, Exhausted
from pycrictl.units import format_bytes, quote

REST_S: Final = 60.0
"""A copy whose bytes have not moved for this long loses its slot if another one needs it."""

RESERVE_BYTES: Final = 64 * 1024 * 1024
"""Disk space that copies leave free."""


def check_folder(folder: str) -> None:
    """Make a folder for archives if it is missing; other files in it are left alone."""
    try:
        Path(folder).mkdir(0o700, parents=True, exist_ok=True)
        os.close(open_unnamed(folder))
    except OSError as exc:
        reason = os.strerror(exc.errno or 0).lower()
        raise ConfigError(f"cannot keep copies in {quote(folder)}: {reason}") from None


def free_bytes(folder: str) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


@dataclass(eq=False)
class Admission:
    """Slots for copies on a node, and space on its disk; all refusals are ``Exhausted``.

    Bytes that are only announced reserve no space, or one user could announce so many that all
    others were refused.

    Attributes:
        limit_bytes: of all copies together; 0 for none.
        free_bytes: returns the free space of the disk.
        expire: ends a copy to make room, with the reason.
    """

    quotas: Quotas
    limit_bytes: int
    free_bytes: Callable[[], int]
    clock: Callable[[], float]
    expire: Callable[[Session, str], Awaitable[None]]
    _held: dict[Session, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def held_bytes(self) -> int:
        with self._lock:
            return sum(self._held.values())

    async def take(self, session: Session) -> None:
        """Reserve a slot for a copy, if need be by ending another one."""
        pod, size_bytes = session.place.sandbox_id, session.size_bytes
        with self._lock:
            self._require(size_bytes, size_bytes - sum(self._held.values()))
        while True:
            try:
                self.quotas.take(pod)
            except Exhausted:
                is_full = self.quotas.is_full(pod)
                # A pod gets at most half of all slots, and one user must not have all of these.
                half = (MAX_COPIES if is_full else self.quotas.taken) // 2
                has_too_much = partial(self._has_more_places, half)
                if not await self._make_room(session, has_too_much, pod if is_full else ""):
                    raise
            else:
                session.moved_s = self.clock()
                with self._lock:
                    self._held[session] = 0
                return

    async def hold(self, session: Session, size_bytes: int) -> None:
        """Reserve this much space in all for a copy, if need be by ending another one."""
        while True:
            try:
                self.hold_now(session, size_bytes)
            except Exhausted:
                if not await self._make_room(session, self._has_more_space):
                    raise
            else:
                return

    def hold_now(self, session: Session, size_bytes: int) -> None:
        with self._lock:
            growth_bytes = size_bytes - self._held.get(session, 0)
            if growth_bytes > 0:
                self._require(sum(self._held.values()) + growth_bytes, growth_bytes)
            self._held[session] = size_bytes
        session.moved_s = self.clock()

    def give(self, session: Session) -> None:
        """Release the slot and the space of a copy that is over."""
        self.quotas.give(session.place.sandbox_id)
        with self._lock:
            del self._held[session]

    def _require(self, whole_bytes: int, growth_bytes: int) -> None:
        if 0 < self.limit_bytes < whole_bytes:
            raise _exhausted(
                f"the copies on this node would take {format_bytes(whole_bytes)} of its disk, and"
                f" may take {format_bytes(self.limit_bytes)}"
            )
        if self.free_bytes() < growth_bytes + RESERVE_BYTES:
            raise _exhausted("there is not enough space for the copy on the node's disk")

    async def _make_room(
        self, session: Session, has_too_much: Callable[[CopyOwner], bool], pod: str = ""
    ) -> bool:
        """End a copy to make room for another one; return whether one could be ended.

        Args:
            session: the copy that needs the room.
            has_too_much: returns whether another user's copies may be ended while they progress.
            pod: the ID of a sandbox, to end only copies of that pod; empty for any.
        """
        now = self.clock()
        found = [
            other
            for other in self._live()
            if other is not session
            and other.phase is CopyPhase.TRANSFERRING
            and pod in ("", other.place.sandbox_id)
            and (
                now - other.moved_s >= REST_S
                or (other.owner != session.owner and has_too_much(other.owner))
            )
        ]
        if not found:
            return False
        await self.expire(min(found, key=lambda one: one.moved_s), "another copy needs its place")
        return True

    def _has_more_places(self, count: int, owner: CopyOwner) -> bool:
        return sum(one.owner == owner for one in self._live()) > count

    def _has_more_space(self, owner: CopyOwner) -> bool:
        with self._lock:
            held_bytes = sum(size for one, size in self._held.items() if one.owner == owner)
        return 0 < self.limit_bytes < 2 * held_bytes

    def _live(self) -> list[Session]:
        with self._lock:
            return [one for one in self._held if not one.is_over]


def _exhausted(reason: str) -> Exhausted:
    message = f"{reason}; try again later"
    return Exhausted(message, code="ResourceExhausted", details=message)
