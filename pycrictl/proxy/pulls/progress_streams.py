"""``ImagePullProgress`` (KEP-5334), answered by the proxy.

A stream remembers the last report on each layer that it sent, and sends only changes. So a slow
client gets fewer and newer reports, and costs no more than a fast one.

The book has calls, whereas reports are about images: kubelet tries one credential after the other,
so successive calls are one pull, and a failure that another attempt closely follows is not
reported. On containerd and CRI-O, the layers of an image are reported, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from google.protobuf.message import DecodeError

from pycrictl._proto import cri_pb2
from pycrictl.errors import Exhausted
from pycrictl.progress.reference import is_same_image
from pycrictl.proxy.calls import Answer, CallRequest
from pycrictl.proxy.pulls.book import ATTEMPT_GAP_S, Book, CallState, PullCall
from pycrictl.proxy.pulls.layer_poller import LayerPoller
from pycrictl.proxy.runtime_lookup import CallFailed, PodKey, PullTarget, RuntimeLookup
from pycrictl.proxy.serve.tokens import Tokens
from pycrictl.pulls.documents import report_of, with_sums
from pycrictl.pulls.model import Phase, Pull, PullItem
from pycrictl.wire.codes import INVALID_ARGUMENT, RESOURCE_EXHAUSTED
from pycrictl.wire.progress import MAX_TEXT, Report

IMAGE_PULL_PROGRESS: Final = "/runtime.v1.RuntimeService/ImagePullProgress"

HEARTBEAT_S: Final = 10.0
"""The longest pause in a stream, which then repeats its last report."""

PACE_S: Final = 0.2
"""The shortest time between two batches of reports."""

_CLOCK_STEP_S: Final = 1.0
_SETTLE_S: Final = ATTEMPT_GAP_S
"""Minimum time that a new stream stays open, since the pod's next pull may be about to begin."""


LINGER_S: Final = ATTEMPT_GAP_S + 1.0
"""How long after its end a pull is still reported to a new client."""

ABANDONED: Final = "the pull was given up by its caller"

_UNSETTLED: Final = (Phase.WAITING, Phase.DOWNLOADING, Phase.EXTRACTING, Phase.FAILED)


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
        self._reporter = Reporter(self.book, self.layers.seen, self.layers.others)

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
        """Yield reports in batches until nothing is left to pull; the first is a full snapshot."""
        sent: dict[tuple[str, str], Report] = {}
        last: list[Report] = []
        opened_at = sent_at = self._loop.time()
        async with self.layers.watching(whole_node=target.pod is None):
            while True:
                now = self._loop.time()
                self._set_clock(time.time() - now)
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

    def _set_clock(self, offset_s: float) -> None:
        if abs(offset_s - self._reporter.wall_offset_s) > _CLOCK_STEP_S:
            self._reporter = replace(self._reporter, wall_offset_s=offset_s)


# The content of reports; pure


@dataclass(frozen=True, slots=True)
class Reporter:
    """Makes the reports; ``now`` plus ``wall_offset_s`` is the wall time."""

    book: Book
    seen: Callable[[str], Pull | None]
    others: Callable[[], Mapping[str, Pull]] = dict
    wall_offset_s: float = 0.0

    def reports(self, target: PullTarget, *, now: float, since: float) -> list[Report]:
        """Return reports on the pulls of ``target``, grouped by image in order of arrival.

        Pulls that ended more than ``LINGER_S`` before ``since`` are left out.
        """
        found: list[Report] = []
        images = self.book.images(target.pod, since - LINGER_S)
        for calls in images:
            if not target.image or is_same_image(target.image, calls[0].name):
                pods = "" if target.pod else _pods(calls)
                found += [report._replace(pod=pods) for report in self._of_image(calls, now)]
        known = {calls[0].pull.reference for calls in images}
        for image, pull in self.others().items() if target.pod is None else ():
            if image not in known:
                state = CallState.RUNNING if pull.is_running else None
                theirs = [_of_layer(item, state, image[:MAX_TEXT], "") for item in pull.items]
                found += with_sums(theirs, pull.totals if pull.is_running else None)
        return found

    def busy_until(self, pod: PodKey | None, *, now: float) -> float | None:
        """Return when nothing is left to pull for a pod or the node; None while a pull is open."""
        if pod is None and any(one.is_running for one in self.others().values()):
            return None
        latest = now - ATTEMPT_GAP_S
        for call, *_ in self.book.images(pod, latest):
            if call.end is None:
                return None
            latest = max(latest, call.ended)
        return latest + ATTEMPT_GAP_S

    def _of_image(self, calls: list[PullCall], now: float) -> list[Report]:
        call = next((one for one in calls if one.pull.started is not None), calls[0])
        state, error = call.state, call.error
        if state in (CallState.FAILED, CallState.LEFT):
            if now - call.ended >= ATTEMPT_GAP_S:
                state, error = CallState.FAILED, error or ABANDONED
            else:  # another attempt may follow
                state = CallState.WAITING if call.pull.started is None else CallState.RUNNING
        seen = None if state is CallState.WAITING else self.seen(call.pull.reference)
        layers = [item for item in seen.items if item.layer] if seen is not None else []
        image, error = call.name[:MAX_TEXT], error[:MAX_TEXT] if state is CallState.FAILED else ""
        started = call.pull.started
        since_s = 0.0 if started is None else round(started + self.wall_offset_s, 3)
        if seen is None or not layers:
            return [self._whole(call, state, image, error)._replace(started=since_s)]
        reports = [_of_layer(one, state, image, error)._replace(started=since_s) for one in layers]
        if error and not any(report.error for report in reports):
            # All layers have arrived, yet the pull failed: only an item can carry the error.
            reports[-1] = reports[-1]._replace(error=error, phase=Phase.FAILED)
        sums = seen.totals
        if sums is not None and state is not CallState.RUNNING:
            sums = sums.at_end(is_done=state is CallState.DONE)
        return with_sums(reports, sums)

    def _whole(self, call: PullCall, state: CallState, image: str, error: str) -> Report:
        position, behind = 0, ""
        if state is CallState.WAITING:
            phase = Phase.WAITING
            position = self.book.place(call.pull) if call.end is None else 0
            behind = self._behind(call, position)
        elif state is CallState.RUNNING:
            phase = Phase.DOWNLOADING
        elif state is CallState.FAILED:
            phase = Phase.FAILED
        else:
            phase = Phase.DONE if call.pull.takes_slot else Phase.PRESENT
        return Report(image, "", 0, 0, error, phase, position, behind=behind)

    def _behind(self, call: PullCall, place: int) -> str:
        if place > 1:
            ahead = self.book.line[place - 2]
        else:
            running = (pull for pull in self.book.running.values() if pull.takes_slot)
            found = next(running, None) if place else None
            if found is None:
                return ""
            ahead = found
        pod = None if ahead.leader is None else ahead.leader.pod
        return (ahead.reference if pod in (None, call.pod) else str(pod))[:MAX_TEXT]


def _pods(calls: Sequence[PullCall]) -> str:
    pods = dict.fromkeys(str(call.pod) for call in calls if call.pod is not None)
    first, *others = [*pods][:2] or [""]
    return f"{first} and {len(pods) - 1} more" if others else first


def _of_layer(item: PullItem, state: CallState | None, image: str, error: str) -> Report:
    """Return the report on a layer; if its pull has no state, a failed layer stays failed."""
    report = report_of(item, image, is_done=state is CallState.DONE)
    if report.phase == Phase.FAILED and state is None:
        return report
    if state is CallState.FAILED and item.phase in _UNSETTLED:
        return report._replace(phase=Phase.FAILED, error=error)
    if report.phase == Phase.FAILED:  # only this attempt; another one may follow
        begun = 0 < item.progress < item.total
        return report._replace(phase=Phase.DOWNLOADING if begun else Phase.WAITING, error="")
    return report
