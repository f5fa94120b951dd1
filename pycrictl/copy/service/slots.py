"""Slots for the copies of a node, and space on its disk.

Excess requests are refused at once; none waits. A copy has its slot from the request that begins it
until it is over and its threads have ended. No user (or pod, if users are not known) has more than
half of the slots.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pycrictl.base.errors import ConfigError, Exhausted, reason_of
from pycrictl.base.units import format_bytes, plural, quote, short_id
from pycrictl.copy.archive.archives import open_unnamed

MAX_COPIES: Final = 64
"""Copies of all pods together. Each may have two threads and a few buffers of 1 MiB."""

CLIENT_IDLE_S: Final = 60.0
"""How long a read from or a write to a client may wait, in the proxy and in the agent."""

SLOWEST_BYTES_PER_S: Final = 64 * 1024
"""A slower client is disconnected; otherwise a few of them could hold all slots."""

RESERVE_BYTES: Final = 64 * 1024 * 1024
"""Disk space that copies leave free."""


@dataclass(eq=False)
class Slot:
    """The slot of a copy, and the space that it holds."""

    pod: str
    user: object = None
    held_bytes: int = 0


def time_limit_s(size_bytes: int) -> float:
    """Return how long a copy of that size may take over one connection."""
    return CLIENT_IDLE_S + size_bytes / SLOWEST_BYTES_PER_S


class Slots:
    """The slots and their use; all refusals are ``Exhausted``. Any thread may call the methods.

    Bytes that are only announced take no space, or one user could announce so many that all others
    were refused.

    Args:
        size_limit_bytes: the largest archive (``ContainerCopySizeLimit``); 0 for no limit.
        copies_per_pod: the most copies of a pod at once (``ContainerCopiesPerPod``); 0: no limit.
        disk_limit_bytes: the most space for all copies together; 0 for no limit.
        free_bytes: returns the free space of the disk; None: free space is not checked.

    Attributes:
        refused: refusals by limit: ``copy_size``, ``copies_per_pod``, ``copies`` or ``disk``.
    """

    def __init__(
        self,
        *,
        size_limit_bytes: int = 0,
        copies_per_pod: int = 0,
        disk_limit_bytes: int = 0,
        free_bytes: Callable[[], int] | None = None,
    ) -> None:
        self.refused: Counter[str] = Counter()
        self._size_limit_bytes = size_limit_bytes
        self._copies_per_pod = copies_per_pod
        self._disk_limit_bytes = disk_limit_bytes
        self._free_bytes = free_bytes
        self._taken: set[Slot] = set()
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        with self._lock:
            return self._sum()

    def acquire(self, pod: str, size_bytes: int, user: object = None) -> Slot:
        """Return a slot for a copy, unless its size, as far as it is known, is too large.

        Args:
            user: whoever copies; None if that is not known.
        """
        self._require_size(size_bytes)
        with self._lock:
            self._require_space(size_bytes, size_bytes - self._sum())
            of_pod = sum(other.pod == pod for other in self._taken)
            of_user = of_pod if user is None else sum(other.user == user for other in self._taken)
            pod_name = f"pod {quote(short_id(pod))}"
            if 0 < self._copies_per_pod <= of_pod:
                count = plural(of_pod, "copy", "copies")
                why = f"{pod_name} has {count} under way, which is the quota ContainerCopiesPerPod"
                raise self._refusal("copies_per_pod", why)
            if of_user >= MAX_COPIES // 2:
                name = pod_name if user is None else "this user"
                raise self._refusal(
                    "copies", f"{name} has {of_user} copies under way, half of all slots"
                )
            if len(self._taken) >= MAX_COPIES:
                raise self._refusal("copies", f"{MAX_COPIES} copies are under way")
            slot = Slot(pod, user)
            self._taken.add(slot)
            return slot

    def hold(self, slot: Slot, size_bytes: int) -> None:
        """Set the total space that is reserved for a copy."""
        self._require_size(size_bytes)
        with self._lock:
            growth_bytes = size_bytes - slot.held_bytes
            if growth_bytes > 0:
                self._require_space(self._sum() + growth_bytes, growth_bytes)
            slot.held_bytes = size_bytes

    def release(self, slot: Slot) -> None:
        """Take back a slot and its space, unless that has been done."""
        with self._lock:
            self._taken.discard(slot)

    def _sum(self) -> int:
        return sum(slot.held_bytes for slot in self._taken)

    def _require_size(self, size_bytes: int) -> None:
        if 0 < self._size_limit_bytes < size_bytes:
            raise self._refusal(
                "copy_size",
                f"the copy has more than {self._size_limit_bytes} bytes"
                f" ({format_bytes(self._size_limit_bytes)}),"
                " which is the quota ContainerCopySizeLimit",
                advice="copy less",
            )

    def _require_space(self, whole_bytes: int, growth_bytes: int) -> None:
        if 0 < self._disk_limit_bytes < whole_bytes:
            raise self._refusal(
                "disk",
                f"the copies on this node would take {format_bytes(whole_bytes)} of its disk, but"
                f" the limit is {format_bytes(self._disk_limit_bytes)}",
            )
        if self._free_bytes is not None and self._free_bytes() < growth_bytes + RESERVE_BYTES:
            raise self._refusal("disk", "there is not enough space for the copy on the node's disk")

    def _refusal(self, limit: str, reason: str, advice: str = "try again later") -> Exhausted:
        self.refused[limit] += 1
        message = f"{reason}; {advice}"
        return Exhausted(message, code="ResourceExhausted", details=message)


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
