"""How much of the node's disk copies may take. Pure, and safe from any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from pycrictl.errors import Exhausted
from pycrictl.units import format_bytes

RESERVE_BYTES: Final = 64 * 1024 * 1024
"""What copies leave free on the disk."""


class SpoolSpace:
    """Counts the bytes that sessions hold, or will.

    Args:
        limit_bytes: of all sessions together; 0 for none.
        free_bytes: asks the disk.
    """

    def __init__(self, limit_bytes: int, free_bytes: Callable[[], int]) -> None:
        self._limit_bytes = limit_bytes
        self._free_bytes = free_bytes
        self._held: dict[str, int] = {}
        self._written: dict[str, int] = {}
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        """How much is held."""
        with self._lock:
            return sum(self._held.values())

    def hold(self, name: str, size_bytes: int) -> None:
        """Let a session have so much in all; what it had before is in that.

        Raises:
            Exhausted: that would be too much, and it has what it had.
        """
        with self._lock:
            others = sum(self._held.values()) - self._held.get(name, 0)
            if 0 < self._limit_bytes < others + size_bytes:
                raise _exhausted(
                    f"the copies on this node would take {format_bytes(others + size_bytes)} of its"
                    f" disk, and may take {format_bytes(self._limit_bytes)}"
                )
            growth = size_bytes - self._held.get(name, 0)
            missing = sum(self._held.values()) - sum(self._written.values())
            if growth > 0 and self._free_bytes() < missing + growth + RESERVE_BYTES:
                raise _exhausted("there is not enough space for the copy on the node's disk")
            self._held[name] = size_bytes

    def wrote(self, name: str, size_bytes: int) -> None:
        """Note how much of what a session holds is on the disk already."""
        with self._lock:
            if name in self._held:
                self._written[name] = min(size_bytes, self._held[name])

    def give(self, name: str) -> None:
        """Take back what a session holds."""
        with self._lock:
            self._held.pop(name, None)
            self._written.pop(name, None)


def _exhausted(reason: str) -> Exhausted:
    message = f"{reason}; try again later"
    return Exhausted(message, code="ResourceExhausted", details=message)
