"""``ImagePullProgress`` (KEP-5334), answered by the proxy.

Each watcher remembers what it was sent and is sent what is different, so that a slow one gets fewer
and newer reports and costs no more than a fast one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError

from pycrictl._proto import cri_pb2
from pycrictl.errors import Exhausted
from pycrictl.proxy.calls import Answer, CallRequest
from pycrictl.proxy.pulls.book import ATTEMPT_GAP_S, Book
from pycrictl.proxy.pulls.layer_poller import LayerPoller
from pycrictl.proxy.pulls.reports import Reporter
from pycrictl.proxy.runtime_lookup import CallFailed, PullTarget, RuntimeLookup
from pycrictl.proxy.serve.tokens import Tokens
from pycrictl.wire.codes import INVALID_ARGUMENT, RESOURCE_EXHAUSTED
from pycrictl.wire.progress import Report

IMAGE_PULL_PROGRESS: Final = "/runtime.v1.RuntimeService/ImagePullProgress"

HEARTBEAT_S: Final = 10.0
"""The longest silence of a stream: then it repeats its last report."""

PACE_S: Final = 0.2
"""The shortest time between two batches of reports."""

_SETTLE_S: Final = ATTEMPT_GAP_S
"""How long a new stream waits for a first pull, since the next one of a pod may be on its way."""


class Notifier:
    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()


@dataclass(eq=False)
class PullProgress:
    lookup: RuntimeLookup
    book: Book
    layers: LayerPoller
    notifier: Notifier
    tokens: Tokens[Any]
    url: Callable[[str], str]

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        offset_s = time.time() - self._loop.time()
        self._reporter = Reporter(self.book, self.layers.seen, self.layers.others, offset_s)

    async def handle(self, request: CallRequest) -> Answer:
        try:
            message = cri_pb2.ImagePullProgressRequest.FromString(request.message)
        except DecodeError:
            return Answer(INVALID_ARGUMENT, "pycrictl proxy: the request cannot be read")
        try:
            target = await self.lookup.target(message.pod_sandbox_id, message.container_id)
            token = self.tokens.issue(str(target.pod or "node"), target, now=self._loop.time())
        except CallFailed as failure:
            return failure.answer
        except Exhausted as exc:
            return Answer(RESOURCE_EXHAUSTED, f"pycrictl proxy: {exc.message}")
        response = cri_pb2.ImagePullProgressResponse(url=self.url(token))
        return Answer(response=response.SerializeToString())

    def redeem(self, token: str) -> PullTarget | None:
        found = self.tokens.redeem(token, now=self._loop.time())
        return found if isinstance(found, PullTarget) else None

    async def follow(self, target: PullTarget) -> AsyncGenerator[list[Report], None]:
        """Report in batches until nothing is left to pull; the first holds all that is known."""
        sent: dict[tuple[str, str], Report] = {}
        last: list[Report] = []
        opened_at = sent_at = self._loop.time()
        async with self.layers.watching(whole_node=target.pod is None):
            while True:
                now = self._loop.time()
                until = self._reporter.busy_until(target.pod, now=now)
                batch = []
                for report in self._reporter.reports(target, now=now, since=opened_at):
                    key = report.image, report.layer
                    if sent.get(key) != (news := report.news):
                        sent[key] = news
                        batch.append(report)
                if not batch and last and now - sent_at >= HEARTBEAT_S:
                    batch = last
                if batch:
                    yield batch
                    last, sent_at = batch[-1:], self._loop.time()
                if until is not None and max(until, opened_at + _SETTLE_S) <= now:
                    return
                await asyncio.sleep(PACE_S)
                await self.notifier.wait(1.0)
