"""The limits of copies: their size, their number, and their minimum speed. Pure.

Excess requests are refused at once; none waits. A copy counts from the call that requests it until
it is over, so an unused URL counts until it expires.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from pycrictl.errors import Exhausted
from pycrictl.units import format_bytes, plural, quote

MAX_COPIES: Final = 64
"""Copies of all pods together. Each may have a thread and a few buffers of 1 MiB."""

IDLE_S: Final = 60.0
"""The timeout of each read from and write to a client."""

SLOWEST_BYTES_PER_S: Final = 64 * 1024
"""A slower client is disconnected; otherwise a few of them could hold all slots."""


def time_limit_s(size_bytes: int) -> float:
    """Return how long a copy of that size may take."""
    return IDLE_S + size_bytes / SLOWEST_BYTES_PER_S


class Quotas:
    """The quotas and their current usage.

    Args:
        size_limit_bytes: ``ContainerCopySizeLimit``, of the archive; 0 for none.
        copies_per_pod: 0 for none.

    Attributes:
        refused: number of refusals by ``copy_size``, ``copies_per_pod`` or ``copies``.
    """

    def __init__(self, *, size_limit_bytes: int = 0, copies_per_pod: int = 0) -> None:
        self._size_limit_bytes = size_limit_bytes
        self._copies_per_pod = copies_per_pod
        self._taken: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        """The number of current copies."""
        return self._taken.total()

    def is_full(self, pod: str) -> bool:
        """Return whether a pod has reached its limit of copies (``ContainerCopiesPerPod``)."""
        return 0 < self._copies_per_pod <= self._taken[pod]

    def check_size(self, size_bytes: int) -> None:
        """Require that a copy is not too large."""
        if 0 < self._size_limit_bytes < size_bytes:
            self.refused["copy_size"] += 1
            raise _exhausted(
                f"the copy has more than {self._size_limit_bytes} bytes"
                f" ({format_bytes(self._size_limit_bytes)}),"
                " the quota ContainerCopySizeLimit; copy less, or try again later"
            )

    def take(self, pod: str) -> None:
        """Count a copy of a sandbox, given by its ID, until ``give`` is called."""
        held = self._taken[pod]
        if self.is_full(pod):
            self.refused["copies_per_pod"] += 1
            raise _exhausted(
                f"pod {quote(pod)} has {plural(held, 'copy', 'copies')} under way,"
                " the quota ContainerCopiesPerPod; try again later"
            )
        # As with tokens: a pod may not use up all slots, so some are left for others.
        if held >= MAX_COPIES - self.taken:
            self.refused["copies"] += 1
            raise _exhausted(
                f"{self.taken} copies are under way, {held} of them of pod {quote(pod)};"
                " that is its share of all; try again later"
            )
        self._taken[pod] += 1

    def give(self, pod: str) -> None:
        """Stop counting a copy that is over."""
        self._taken[pod] -= 1
        if not self._taken[pod]:
            del self._taken[pod]


def _exhausted(message: str) -> Exhausted:
    return Exhausted(message, details=message)
