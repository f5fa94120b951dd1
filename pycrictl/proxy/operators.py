"""The calls that operators make to a proxy's admin socket.

In documents, times are RFC 3339 in UTC, durations have Go's format, and unknown values are null.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pycrictl.base.errors import ConfigError
from pycrictl.base.foreign import text
from pycrictl.base.servicelog import Log
from pycrictl.base.units import format_duration, format_moment, quote
from pycrictl.node.kubelet import (
    KubeletConfig,
    find_kubelet,
    find_kubelet_config,
    read_kubelet_config,
)
from pycrictl.proxy.admin import Call
from pycrictl.proxy.copy_calls import CopyCalls
from pycrictl.proxy.handover import HandOver
from pycrictl.proxy.pulls.pull_calls import PullCall, QueuedPull
from pycrictl.proxy.pulls.pull_image import PullLimiter
from pycrictl.proxy.pulls.queue import PullQueue, expected_starts
from pycrictl.proxy.settings import ProxySettings
from pycrictl.pulls.messages import running_fields
from pycrictl.pulls.state import PullState

MAX_ERROR_CHARS: Final = 500


@dataclass
class Operators:
    """Answers the admin calls in ``calls``."""

    settings: ProxySettings
    limiter: PullLimiter
    copies: CopyCalls
    hand_over: HandOver
    log: Log

    def __post_init__(self) -> None:
        self._queue = self.limiter.queue
        self._limit_origin = self.settings.limit_origin

    @property
    def calls(self) -> dict[str, Call]:
        return {
            "status": self._status,
            "set-limit": self._set_limit,
            "cancel": self._cancel,
            "reload": self.hand_over.reload,
            "sockets": self._sockets,
        }

    async def _status(self, request: Mapping[str, Any]) -> dict[str, Any]:
        await self.limiter.layers.refresh()
        return {
            **status_document(
                self._queue,
                now=asyncio.get_running_loop().time(),
                wall_s=time.time(),
                seen=self.limiter.layers.seen,
                limit_origin=self._limit_origin,
            ),
            "predecessor": self.hand_over.status(),
            "copies": self.copies.snapshot(),
            "kubelet": await asyncio.to_thread(self._kubelet),
        }

    async def _set_limit(self, request: Mapping[str, Any]) -> dict[str, Any]:
        limit = request.get("limit")
        if type(limit) is not int or limit < 0:
            raise ValueError("the limit must be a number of 0 or more")
        before = self._queue.limit
        self._queue.set_limit(limit, now=asyncio.get_running_loop().time())
        self._limit_origin = "pull-limiter set"
        self.log.info("limit", limit=limit, before=before)
        return {"limit": limit, "before": before}

    async def _cancel(self, request: Mapping[str, Any]) -> dict[str, Any]:
        target = text(request.get("target"))
        calls = self.limiter.cancel(target) if target else []
        if not calls:
            raise ValueError(f"no pull of {quote(target)} waits for a slot")
        self.log.info("cancel", target=target, calls=len(calls))
        return {"cancelled": [{"image": call.image, "pod": _pod(call)} for call in calls]}

    async def _sockets(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return where the proxy listens, and the folder where clients can read its history."""
        settings = self.settings
        return {
            "listen": settings.listen,
            "upstream": settings.upstream,
            "history": settings.state_dir,
        }

    def _kubelet(self) -> dict[str, Any]:
        path = self.settings.kubelet_config
        try:
            config = read_kubelet_config(path) if path else find_kubelet_config(find_kubelet())
            return kubelet_document(config, "")
        except ConfigError as exc:
            return kubelet_document(None, exc.message)


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
            **running_fields(seen(pull.reference)),
            "attempt": pull.leader.attempt,
            "joined": len(pull.calls) - 1,
            "takesSlot": pull.takes_slot,
        }

    expected = expected_starts(queue, seen, now)

    def waiting(place: int, pull: QueuedPull) -> dict[str, Any]:
        ahead = book.line[place - 2] if place > 1 else None
        return {
            **row(pull, pull.leader.asked),
            "place": place,
            "behind": ahead.key.image if ahead else None,
            "behindPod": _pod(ahead.leader) if ahead else None,
            "startsIn": duration(expected[place - 1]),
            "joined": len(pull.calls) - 1,
            "nextTry": moment(pull.next_try),
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
