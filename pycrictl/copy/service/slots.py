"""Slots for the copies of a node, and space on its disk, shared by pods and users.

Excess requests are refused at once; none waits. A copy has its slot from the request that begins it
until it is over and its threads have ended. A user has at most half of the slots. If a slot or
space is missing, another copy that rests is ended.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from pycrictl.base.errors import ConfigError, Exhausted, reason_of
from pycrictl.base.units import format_bytes, plural, quote, short_id
from pycrictl.copy.archive.spool import open_unnamed
from pycrictl.copy.service.life import State

MAX_COPIES: Final = 64
"""Copies of all pods together. Each may have two threads and a few buffers of 1 MiB."""

IDLE_S: Final = 60.0
"""The timeout of each read from and write to a client."""

SLOWEST_BYTES_PER_S: Final = 64 * 1024
"""A slower client is disconnected; otherwise a few of them could hold all slots."""

REST_S: Final = 60.0
"""A copy whose bytes have not moved for this long gives way to another one."""

RESERVE_BYTES: Final = 64 * 1024 * 1024
"""Disk space that copies leave free."""


class Holder(Protocol):
    """A copy, as far as its slot is concerned; see ``copies.Copy``."""

    pod: str
    owner: object
    size_bytes: int
    state: State
    moved_s: float


H = TypeVar("H", bound=Holder)


def time_limit_s(size_bytes: int) -> float:
    """Return how long a copy of that size may take over one connection."""
    return IDLE_S + size_bytes / SLOWEST_BYTES_PER_S


class Slots(Generic[H]):
    """The slots and their use; all refusals are ``Exhausted``.

    Bytes that are only announced take no space, or one user could announce so many that all others
    were refused.

    Args:
        size_limit_bytes: the largest archive (``ContainerCopySizeLimit``); 0 for no limit.
        copies_per_pod: copies of a pod at once (``ContainerCopiesPerPod``); 0 for no limit.
        disk_limit_bytes: the space of all copies together; 0 for no limit.
        free_bytes: returns the free space of the disk; None if it is not reserved here.
        clock: monotonic, in seconds.

    Attributes:
        refused: number of refusals by ``copy_size``, ``copies_per_pod`` or ``copies``.
        expire: ends a copy to make room, with the reason; set by the service.
    """

    expire: Callable[[H, str], Awaitable[None]]

    def __init__(
        self,
        *,
        size_limit_bytes: int = 0,
        copies_per_pod: int = 0,
        disk_limit_bytes: int = 0,
        free_bytes: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.refused: Counter[str] = Counter()
        self.clock = clock
        self._size_limit_bytes = size_limit_bytes
        self._copies_per_pod = copies_per_pod
        self._disk_limit_bytes = disk_limit_bytes
        self._free_bytes = free_bytes
        self._held: dict[H, int] = {}  # the space of each copy that has a slot
        self._lock = threading.Lock()

    @property
    def taken(self) -> int:
        """The number of copies that have a slot."""
        return len(self._held)

    @property
    def held_bytes(self) -> int:
        with self._lock:
            return sum(self._held.values())

    def check_size(self, size_bytes: int) -> None:
        """Require that an archive is not too large."""
        if 0 < self._size_limit_bytes < size_bytes:
            self.refused["copy_size"] += 1
            raise _exhausted(
                f"the copy has more than {self._size_limit_bytes} bytes"
                f" ({format_bytes(self._size_limit_bytes)}),"
                " the quota ContainerCopySizeLimit; copy less, or"
            )

    async def take(self, copy: H) -> None:
        """Give a copy a slot, if need be by ending another copy that rests."""
        self._require_space(copy.size_bytes, copy.size_bytes - self.held_bytes)
        while True:
            in_pod, taken = sum(one.pod == copy.pod for one in self._held), self.taken
            owned = sum(one.owner == copy.owner for one in self._held)
            is_full = 0 < self._copies_per_pod <= in_pod
            has_many = copy.owner is not None and owned >= MAX_COPIES // 2
            # As with tokens: a pod may not use up all slots, so some are left for others.
            if not (is_full or has_many) and in_pod < MAX_COPIES - taken:
                copy.moved_s = self.clock()
                with self._lock:
                    self._held[copy] = 0
                return
            pod, owner = copy.pod if is_full else None, copy.owner if has_many else None
            if not await self._make_room(copy, pod=pod, owner=owner):
                break
        self.refused["copies_per_pod" if is_full else "copies"] += 1
        shown = quote(short_id(copy.pod))
        if is_full:
            raise _exhausted(
                f"pod {shown} has {plural(in_pod, 'copy', 'copies')} under way,"
                " the quota ContainerCopiesPerPod;"
            )
        if has_many:
            raise _exhausted(f"this user has {owned} copies under way, half of all;")
        raise _exhausted(
            f"{taken} copies are under way, {in_pod} of them of pod {shown};"
            " that is its share of all;"
        )

    async def hold(self, copy: H, size_bytes: int) -> None:
        """Reserve this much space in all for a copy, if need be by ending another that rests."""
        while True:
            try:
                self.hold_now(copy, size_bytes)
            except Exhausted:
                if not await self._make_room(copy):
                    raise
            else:
                return

    def hold_now(self, copy: H, size_bytes: int) -> None:
        with self._lock:
            growth_bytes = size_bytes - self._held.get(copy, 0)
            if growth_bytes > 0:
                self._require_space(sum(self._held.values()) + growth_bytes, growth_bytes)
            if copy in self._held:
                self._held[copy] = size_bytes
        copy.moved_s = self.clock()

    def give(self, copy: H) -> None:
        """Take back the slot and the space of a copy, unless that has been done."""
        with self._lock:
            self._held.pop(copy, None)

    def _require_space(self, whole_bytes: int, growth_bytes: int) -> None:
        if 0 < self._disk_limit_bytes < whole_bytes:
            raise _exhausted(
                f"the copies on this node would take {format_bytes(whole_bytes)} of its disk, and"
                f" may take {format_bytes(self._disk_limit_bytes)};"
            )
        if self._free_bytes is not None and self._free_bytes() < growth_bytes + RESERVE_BYTES:
            raise _exhausted("there is not enough space for the copy on the node's disk;")

    async def _make_room(
        self, copy: H, *, pod: str | None = None, owner: object | None = None
    ) -> bool:
        """End a resting copy, of this pod or owner if one is given; return whether there is one."""
        with self._lock:
            resting = [
                other
                for other in self._held
                if other is not copy
                and other.state in (State.WAITING, State.COPYING)
                and pod in (None, other.pod)
                and owner in (None, other.owner)
                and self.clock() - other.moved_s >= REST_S
            ]
        if not resting:
            return False
        oldest = min(resting, key=lambda other: other.moved_s)
        await self.expire(oldest, "another copy needs its place")
        return True


def check_folder(folder: str) -> None:
    """Make a folder for archives if it is missing; other files in it are left alone."""
    try:
        Path(folder).mkdir(0o700, parents=True, exist_ok=True)
        os.close(open_unnamed(folder))
    except OSError as exc:
        reason = reason_of(exc)
        raise ConfigError(f"cannot keep copies in {quote(folder)}: {reason}") from None


def free_bytes(folder: str) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _exhausted(reason: str) -> Exhausted:
    message = f"{reason} try again later"
    return Exhausted(message, code="ResourceExhausted", details=message)
