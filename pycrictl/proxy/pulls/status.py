"""What the pull limiter is doing, as the document that ``pull-limiter status`` shows. Pure.

Times are RFC 3339 in UTC, durations are Go's. What is not known is null.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from pycrictl.containerd.settings import PullSettings
from pycrictl.proxy.pulls.book import Call, Pull
from pycrictl.proxy.pulls.decisions import Policy
from pycrictl.proxy.pulls.kubelet_config import KubeletPulls
from pycrictl.proxy.pulls.queue import PullQueue
from pycrictl.units import format_duration

CONTAINERD_DOWNLOADS: Final = 3
CONTAINERD_TIMEOUT_S: Final = 300.0
"""containerd's defaults, where its configuration says nothing."""

MAX_ERROR_CHARS: Final = 500


def status_document(
    queue: PullQueue[Any],
    *,
    now: float,
    wall_s: float,
    progress: Callable[[int], tuple[int, int] | None],
    limit_origin: str,
) -> dict[str, Any]:
    """Return the limiter's part of the document.

    Args:
        queue: what to show.
        now: the queue's time.
        wall_s: the same moment in wall time.
        progress: bytes and total bytes of a running pull; None where they are not known.
        limit_origin: where the limit came from.
    """
    book = queue.book

    def moment(at: float | None) -> str | None:
        if at is None:
            return None
        when = datetime.fromtimestamp(wall_s - (now - at), UTC)
        return when.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"

    def elapsed(at: float | None) -> str:
        return format_duration(round(max(now - (now if at is None else at), 0.0), 1))

    def running(pull: Pull) -> dict[str, Any]:
        leader = pull.leader
        known = progress(pull.number)
        return {
            "pull": pull.number,
            "image": pull.key.image,
            "pod": _pod(leader),
            "since": moment(pull.started),
            "elapsed": elapsed(pull.started),
            "asked": moment(pull.started if leader is None else leader.asked),
            "bytes": known[0] if known else None,
            "total": known[1] if known else None,
            "attempt": 1 if leader is None else leader.attempt,
            "joined": max(len(pull.calls) - 1, 0),
            "takesSlot": pull.takes_slot,
            "abandoned": leader is None,
        }

    def waiting(place: int, pull: Pull) -> dict[str, Any]:
        leader = pull.leader
        asked = None if leader is None else leader.asked
        return {
            "pull": pull.number,
            "place": place,
            "image": pull.key.image,
            "pod": _pod(leader),
            "since": moment(asked),
            "elapsed": elapsed(asked),
            "behind": book.line[place - 2].key.image if place > 1 else None,
            "joined": len(pull.calls) - 1,
            "nextTry": moment(pull.next_try),
            "triesLeft": queue.retries - pull.tries if queue.policy is Policy.RETRY else 0,
        }

    def joined(call: Call) -> dict[str, Any]:
        return {
            "pull": call.pull.number,
            "image": call.image,
            "pod": _pod(call),
            "since": moment(call.asked),
            "leader": _pod(call.pull.leader),
        }

    def failure(call: Call) -> dict[str, Any]:
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


def _pod(call: Call | None) -> str | None:
    return None if call is None or call.pod is None else str(call.pod)


def kubelet_document(pulls: KubeletPulls | None, problem: str) -> dict[str, Any]:
    """Return what kubelet itself limits.

    Args:
        pulls: its configuration; None if it cannot be read.
        problem: why not.
    """
    if pulls is None:
        return {"problem": problem}
    return {
        "config": pulls.path,
        "serializeImagePulls": pulls.serialize,
        "maxParallelImagePulls": pulls.max_parallel,
        "limit": pulls.own_limit,
    }


def containerd_document(settings: PullSettings) -> dict[str, Any]:
    """Return what containerd itself limits; its defaults where nothing is configured."""
    downloads, timeout_s = settings.max_concurrent_downloads, settings.progress_timeout_s
    return {
        "config": settings.origin or None,
        "maxConcurrentDownloads": CONTAINERD_DOWNLOADS if downloads is None else downloads,
        "imagePullProgressTimeout": format_duration(
            CONTAINERD_TIMEOUT_S if timeout_s is None else timeout_s
        ),
    }
