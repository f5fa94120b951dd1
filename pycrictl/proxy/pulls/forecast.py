"""When waiting pulls will start, guessed from those before them. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from typing import Final

from pycrictl.proxy.pulls.book import Call, State

_RECENT: Final = 50


def typical_s(ended: Iterable[Call], unfinished_s: Iterable[float]) -> float | None:
    """Return how long a pull takes: the median of the last ones.

    Args:
        ended: calls, the oldest first.
        unfinished_s: how long the running pulls will have taken; counts while none has ended.

    Returns:
        Seconds; None if nothing is known.
    """
    took = [
        call.ended - call.pull.started
        for call in ended
        if call.end is State.DONE
        and call.pull.takes_slot
        and call.pull.started is not None
        and not call.is_joined
    ]
    known = took[-_RECENT:] or list(unfinished_s)
    known.sort()
    middle = len(known) // 2
    return (known[middle] + known[~middle]) / 2 if known else None


def starts(
    left_s: Sequence[float | None], *, limit: int, waiting: int, typical_s: float | None
) -> list[float | None]:
    """Return in how many seconds each waiting pull gets its slot.

    Args:
        left_s: how long each of the pulls that hold a slot still takes; None if not known.
        limit: how many slots there are; 0 for no limit.
        waiting: how many pulls are in the line.
        typical_s: how long a pull takes that has not begun; None if not known.
    """
    if not limit:
        return [0.0] * waiting
    ends = sorted(math.inf if left is None else left for left in left_s)
    # Of more pulls than slots, as after the limit was lowered, the first ends free nothing.
    del ends[: max(len(ends) - limit, 0)]
    ends += [0.0] * (limit - len(ends))
    heapq.heapify(ends)
    found: list[float | None] = []
    for _ in range(waiting):
        at = ends[0]
        found.append(None if math.isinf(at) else at)
        heapq.heapreplace(ends, at + (math.inf if typical_s is None else typical_s))
    return found
