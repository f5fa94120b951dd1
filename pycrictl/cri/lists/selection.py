"""What the list commands select by: states, patterns, and how many of the newest. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

from pycrictl.errors import UsageError
from pycrictl.units import quote

if TYPE_CHECKING:

    class Created(Protocol):
        """Has a time of creation, in nanoseconds since 1970."""

        created_at: int

    C = TypeVar("C", bound=Created)

S = TypeVar("S")


def parse_state(text: str, states: Mapping[str, S]) -> S | None:
    """Return the state of that name, upper or lower case; None for an empty text.

    Raises:
        UsageError: there is no such state.
    """
    if not text:
        return None
    state = states.get(text.lower())
    if state is None:
        raise UsageError(f"unknown state {quote(text)}", hint=f"states are {', '.join(states)}")
    return state


def newest_count(*, latest: bool, last: int) -> int | None:
    """Return how many of the newest are wanted, None for all; ``last`` beats ``latest``."""
    if last > 0:
        return last
    return 1 if latest else None


def newest_first(found: Iterable[C], count: int | None = None) -> list[C]:
    """Return the ``count`` newest; those of one moment stay in their order."""
    return sorted(found, key=lambda each: each.created_at, reverse=True)[:count]
