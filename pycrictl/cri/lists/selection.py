"""What the list commands select by: how many of the newest. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:

    class Created(Protocol):
        """Has a time of creation, in nanoseconds since 1970."""

        created_at: int

    C = TypeVar("C", bound=Created)


def newest_count(*, latest: bool, last: int) -> int | None:
    """Return how many of the newest are wanted, None for all; ``last`` beats ``latest``."""
    if last > 0:
        return last
    return 1 if latest else None


def newest_first(found: Iterable[C], count: int | None = None) -> list[C]:
    """Return the ``count`` newest; those of one moment stay in their order."""
    return sorted(found, key=lambda each: each.created_at, reverse=True)[:count]
