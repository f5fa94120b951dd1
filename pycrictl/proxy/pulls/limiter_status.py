"""The state of the pull limiter, as the document that ``pull-limiter status`` shows. Pure.

Times are RFC 3339 in UTC, durations have Go's format. Unknown values are null.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from pycrictl.base.units import format_duration, format_moment
from pycrictl.node.kubelet_config import KubeletConfig
from pycrictl.proxy.pulls.book import CallState, Policy, PullCall, QueuedPull
from pycrictl.proxy.pulls.queue import PullQueue
from pycrictl.pulls.messages import running_fields
from pycrictl.pulls.state import PullState
from pycrictl.runtime.containerd.config_toml import PullSettings

CONTAINERD_DOWNLOADS: Final = 3
CONTAINERD_TIMEOUT_S: Final = 300.0
"""containerd's defaults, for settings that its configuration does not set."""

MAX_ERROR_CHARS: Final = 500


def status_document(
    queue: PullQueue,
    *,
    now: float,
    wall_s: float,
    seen: Callable[[str], PullState],
    limit_origin: str,
) -> dict[str, Any]:
    book = queue.book

    def moment(at: float | None) -> str | None:
        return None if at is None else format_moment(wall_s - (now - at), "milliseconds")

    def elapsed(at: float | None) -> str:
        return format_duration(round(max(now - (now if at is None else at), 0.0), 1))

    def duration(seconds: float | None) -> str | None:
        return None if seconds is None else format_duration(round(seconds, 1))

    def row(pull: QueuedPull, at: float | None) -> dict[str, Any]:
        return {
            "pull": pull.number,
            "image": pull.key.image,
            "pod": _pod(pull.leader),
            "since": moment(at),
            "elapsed": elapsed(at),
        }

    def running(pull: QueuedPull) -> dict[str, Any]:
        return {
            **row(pull, pull.started),
            "asked": moment(pull.leader.asked),
            **running_fields(seen(pull.reference)),
            "attempt": pull.leader.attempt,
            "joined": len(pull.calls) - 1,
            "takesSlot": pull.takes_slot,
        }

    expected = expected_starts(queue, seen, now)

    def waiting(place: int, pull: QueuedPull) -> dict[str, Any]:
        ahead = book.line[place - 2] if place > 1 else None
        starts_in = expected[place - 1]
        return {
            **row(pull, pull.leader.asked),
            "place": place,
            "behind": ahead.key.image if ahead else None,
            "behindPod": _pod(ahead.leader) if ahead else None,
            "startsIn": duration(starts_in),
            "expectedStart": None if starts_in is None else moment(now + starts_in),
            "joined": len(pull.calls) - 1,
            "nextTry": moment(pull.next_try),
            "triesLeft": queue.retries - pull.tries if queue.policy is Policy.RETRY else 0,
        }

    def joined(call: PullCall) -> dict[str, Any]:
        return {
            "pull": call.pull.number,
            "image": call.image,
            "pod": _pod(call),
            "since": moment(call.asked),
            "leader": _pod(call.pull.leader),
        }

    def failure(call: PullCall) -> dict[str, Any]:
        return {
            "image": call.image,
            "pod": _pod(call),
            "at": moment(call.ended),
            "ago": elapsed(call.ended),
            "attempts": call.attempt,
            "error": call.error[:MAX_ERROR_CHARS],
        }

    return {
        "limit": queue.limit,
        "limitOrigin": limit_origin,
        "policy": queue.policy.value,
        "retryInterval": format_duration(queue.retry_interval_s),
        "retries": queue.retries,
        "slotsTaken": queue.taken,
        "running": [running(pull) for pull in book.running.values()],
        "waiting": [waiting(place, pull) for place, pull in enumerate(book.line, 1)],
        "joined": [joined(call) for call in book.calls.values() if call is not call.pull.leader],
        "failures": [failure(call) for call in book.failures()],
    }


def _pod(call: PullCall) -> str | None:
    return None if call.pod is None else str(call.pod)


def kubelet_document(pulls: KubeletConfig | None, problem: str) -> dict[str, Any]:
    if pulls is None:
        return {"problem": problem}
    return {
        "config": pulls.path,
        "serializeImagePulls": pulls.serialize,
        "maxParallelImagePulls": pulls.max_parallel,
        "limit": pulls.own_limit,
    }


def containerd_document(settings: PullSettings) -> dict[str, Any]:
    downloads, timeout_s = settings.max_concurrent_downloads, settings.progress_timeout_s
    return {
        "config": settings.origin or None,
        "maxConcurrentDownloads": CONTAINERD_DOWNLOADS if downloads is None else downloads,
        "imagePullProgressTimeout": format_duration(
            CONTAINERD_TIMEOUT_S if timeout_s is None else timeout_s
        ),
    }


_RECENT: Final = 50


def expected_starts(
    queue: PullQueue, seen: Callable[[str], PullState], now: float
) -> list[float | None]:
    """Return in how many seconds each pull in line is expected to start; None if unknown."""
    book = queue.book
    taken = [pull for pull in book.running.values() if pull.takes_slot]
    left_s = [seen(pull.reference).sums.eta_s for pull in taken]
    unfinished_s = [
        now - pull.started + left
        for pull, left in zip(taken, left_s, strict=True)
        if pull.started is not None and left is not None
    ]
    typical = typical_s(book.ended, unfinished_s)
    found = starts(left_s, limit=queue.limit, waiting=len(book.line), typical_s=typical)
    return [
        None if at is None else max(at, 0.0 if pull.next_try is None else pull.next_try - now)
        for at, pull in zip(found, book.line, strict=True)
    ]


def typical_s(ended: Iterable[PullCall], unfinished_s: Iterable[float]) -> float | None:
    """Return how long a pull takes: the median of recent ones, or else of the running ones."""
    took = [
        call.ended - call.started
        for call in ended
        if call.end is CallState.DONE
        and call.pull.takes_slot
        and call.started is not None
        and not call.is_joined
    ]
    known = took[-_RECENT:] or list(unfinished_s)
    known.sort()
    middle = len(known) // 2
    return (known[middle] + known[~middle]) / 2 if known else None


def starts(
    left_s: Sequence[float | None], *, limit: int, waiting: int, typical_s: float | None
) -> list[float | None]:
    """Return in how many seconds each waiting pull starts; ``left_s``: time left for each slot."""
    if not limit:
        return [0.0] * waiting
    ends = sorted(math.inf if left is None else left for left in left_s)
    # With more pulls than slots, as after the limit was lowered, the first to end free no slot.
    del ends[: max(len(ends) - limit, 0)]
    ends += [0.0] * (limit - len(ends))
    heapq.heapify(ends)
    found: list[float | None] = []
    for _ in range(waiting):
        at = ends[0]
        found.append(None if math.isinf(at) else at)
        heapq.heapreplace(ends, at + (math.inf if typical_s is None else typical_s))
    return found
