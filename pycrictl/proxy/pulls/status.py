"""What the pull limiter is doing, as the document that ``pull-limiter status`` shows. Pure.

Times are RFC 3339 in UTC, durations are Go's. What is not known is null.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from pycrictl.containerd.settings import PullSettings
from pycrictl.proxy.pulls.decisions import Snapshot
from pycrictl.proxy.pulls.kubelet import KubeletPulls
from pycrictl.units import format_duration

CONTAINERD_DOWNLOADS: Final = 3
CONTAINERD_TIMEOUT_S: Final = 300.0
"""containerd's defaults, where its configuration says nothing."""


def status_document(
    snapshot: Snapshot,
    *,
    now: float,
    wall_s: float,
    progress: Callable[[int], tuple[int, int] | None],
    limit_origin: str,
    retry_interval_s: float,
    retries: int,
) -> dict[str, Any]:
    """The limiter's part of the document.

    Args:
        snapshot: of the queue.
        now: the queue's time.
        wall_s: the same moment in wall time.
        progress: bytes and total bytes of a running pull; None where they are not known.
        limit_origin: where the limit came from.
        retry_interval_s: of the policy ``retry``.
        retries: of the policy ``retry``.
    """

    def moment(at: float) -> str:
        when = datetime.fromtimestamp(wall_s - (now - at), UTC)
        return when.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"

    def elapsed(at: float) -> str:
        return format_duration(round(max(now - at, 0.0), 1))

    running = []
    for pull in snapshot.running:
        known = progress(pull.pull)
        running.append(
            {
                "pull": pull.pull,
                "image": pull.image,
                "pod": pull.pod or None,
                "since": moment(pull.started),
                "elapsed": elapsed(pull.started),
                "asked": moment(pull.asked),
                "bytes": known[0] if known else None,
                "total": known[1] if known else None,
                "attempt": pull.attempt,
                "joined": pull.joined,
                "takesSlot": pull.takes_slot,
                "abandoned": pull.is_abandoned,
            }
        )
    names = {pull.pull: pull.image for pull in snapshot.waiting}
    waiting = [
        {
            "pull": one.pull,
            "place": one.place,
            "image": one.image,
            "pod": one.pod or None,
            "since": moment(one.asked),
            "elapsed": elapsed(one.asked),
            "behind": None if one.behind is None else names.get(one.behind),
            "joined": one.joined,
            "nextTry": None if one.next_try is None else moment(one.next_try),
            "triesLeft": one.tries_left,
        }
        for one in snapshot.waiting
    ]
    joined = [
        {
            "pull": caller.pull,
            "image": caller.image,
            "pod": caller.pod or None,
            "since": moment(caller.asked),
            "leader": caller.leader_pod or None,
        }
        for caller in snapshot.joined
    ]
    failures = [
        {
            "image": failure.image,
            "pod": failure.pod or None,
            "at": moment(failure.at),
            "ago": elapsed(failure.at),
            "attempts": failure.attempts,
            "error": failure.error,
        }
        for failure in reversed(snapshot.failures)
    ]
    return {
        "limit": snapshot.limit,
        "limitOrigin": limit_origin,
        "policy": snapshot.policy.value,
        "retryInterval": format_duration(retry_interval_s),
        "retries": retries,
        "slotsTaken": snapshot.taken,
        "running": running,
        "waiting": waiting,
        "joined": joined,
        "failures": failures,
    }


def kubelet_document(pulls: KubeletPulls | None, problem: str) -> dict[str, Any]:
    """What kubelet itself limits.

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
    """What containerd itself limits; its defaults where nothing is configured."""
    downloads, timeout_s = settings.max_concurrent_downloads, settings.progress_timeout_s
    return {
        "config": settings.origin or None,
        "maxConcurrentDownloads": CONTAINERD_DOWNLOADS if downloads is None else downloads,
        "imagePullProgressTimeout": format_duration(
            CONTAINERD_TIMEOUT_S if timeout_s is None else timeout_s
        ),
    }
