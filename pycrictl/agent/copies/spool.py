"""How much of the node's disk copies may take. Safe from any thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Final

from pycrictl.copy.archive.spool import open_unnamed
from pycrictl.errors import ConfigError, Exhausted
from pycrictl.units import format_bytes, quote

RESERVE_BYTES: Final = 64 * 1024 * 1024
"""What copies leave free on the disk."""


def check_folder(folder: str) -> None:
    """Make a folder for archives if it is not there; other files in it are left alone.

    Raises:
        ConfigError: it cannot be used.
    """
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
        """Require that a copy of that size can fit, once all others are over.

        Raises:
            Exhausted: it cannot.
        """
        with self._lock:
            if 0 < self.limit_bytes < size_bytes:
                raise self._too_much(size_bytes)
            if self._free_bytes() + self._sum() < size_bytes + RESERVE_BYTES:
                raise _exhausted("there is not enough space for the copy on the node's disk")

    def hold(self, name: str, owner: Hashable, size_bytes: int) -> None:
        """Let a session have so much in all, which it is about to write.

        Args:
            name: of the session.
            owner: whose it is.
            size_bytes: what it had before is in that.

        Raises:
            Exhausted: that would be too much, and it has what it had.
        """
        with self._lock:
            _, before_bytes = self._held.get(name, (owner, 0))
            growth_bytes = size_bytes - before_bytes
            whole_bytes = self._sum() + growth_bytes
            if growth_bytes > 0 and 0 < self.limit_bytes < whole_bytes:
                raise self._too_much(whole_bytes)
            if growth_bytes > 0 and self._free_bytes() < growth_bytes + RESERVE_BYTES:
                raise _exhausted("there is not enough space for the copy on the node's disk")
            self._held[name] = owner, size_bytes

    def give(self, name: str) -> None:
        with self._lock:
            self._held.pop(name, None)

    def _sum(self) -> int:
        return sum(size_bytes for _, size_bytes in self._held.values())

    def _too_much(self, size_bytes: int) -> Exhausted:
        return _exhausted(
            f"the copies on this node would take {format_bytes(size_bytes)} of its disk, and may"
            f" take {format_bytes(self.limit_bytes)}"
        )


def _exhausted(reason: str) -> Exhausted:
    message = f"{reason}; try again later"
    return Exhausted(message, code="ResourceExhausted", details=message)
