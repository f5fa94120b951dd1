"""``ImagePullProgress`` (KEP-5334), answered by the proxy.

A stream remembers the last message about each layer, and sends only changes. So a slow client gets
fewer and newer messages, and costs no more than a fast one.

The book (``pull_calls``) has calls, but a stream reports pulls of images: kubelet tries one
credential after the other, so successive calls are one pull, and a failure that another attempt
closely follows is not reported. On containerd and CRI-O, the layers of an image are reported, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from google.protobuf.message import DecodeError

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import PycrictlError
from pycrictl.proxy.events import Event, PullEnded, PullQueued, PullStarted
from pycrictl.proxy.pulls.layer_poller import LayerPoller
from pycrictl.proxy.pulls.pull_calls import ATTEMPT_GAP_S, Book, CallState, PullCall
from pycrictl.proxy.pulls.queue import PullQueue, expected_starts
from pycrictl.proxy.runtime_lookup import PodKey, PullTarget, RuntimeLookup, refusal
from pycrictl.proxy.serve.stream_server import PROGRESS_PATH, Tokens
from pycrictl.proxy.upstream import Answer, CallRequest
from pycrictl.pulls.messages import NOTHING, MessageWriter, ended, sums_at_end
from pycrictl.pulls.reference import canonical
from pycrictl.pulls.state import LayerState, Phase, PullState, Sums
from pycrictl.streams.loop import Changes

IMAGE_PULL_PROGRESS: Final = "/runtime.v1.RuntimeService/ImagePullProgress"

LINGER_S: Final = ATTEMPT_GAP_S + 1.0
"""How long after its end a pull is still reported to a new client."""

ABANDONED: Final = "the client cancelled the pull"


class Notifier(Changes):
    """Wakes up those who report pulls: at their events, and when their layers were polled."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, PullQueued | PullStarted | PullEnded):
            self.notify()


@dataclass(eq=False)
class PullProgress:
    """The call, and the streams behind its URLs."""

    lookup: RuntimeLookup
    queue: PullQueue
    layers: LayerPoller
    notifier: Notifier
    tokens: Tokens
    pace_s: float = 0.2  # The shortest time between two batches of reports
    settle_s: float = ATTEMPT_GAP_S  # How long a new stream waits for a pull that may still begin

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def handle(self, request: CallRequest) -> Answer:
        try:
            message = cri_pb2.ImagePullProgressRequest.FromString(request.message)
            target = await self.lookup.target(message.pod_sandbox_id, message.container_id)
            url = self.tokens.issue(PROGRESS_PATH, target, now=self._loop.time())
        except (PycrictlError, DecodeError) as exc:
            return refusal(exc)
        response = cri_pb2.ImagePullProgressResponse(url=url)
        return Answer(response=response.SerializeToString())

    async def follow(self, target: PullTarget) -> AsyncGenerator[list[str], None]:
        """Yield messages in batches until nothing is left to pull; the first has all pulls."""
        writer = MessageWriter()
        opened_at = self._loop.time()
        offset_s = time.time() - opened_at
        layers, queue = self.layers, self.queue
        starts = partial(expected_starts, queue, layers.seen)
        reporter = Reporter(queue.book, layers.seen, layers.others, starts, offset_s)
        async with self.layers.watching(whole_node=target.pod is None):
            while True:
                now = self._loop.time()
                until = reporter.busy_until(target.pod, now=now)
                batch = writer.changes(reporter.pulls(target, now=now, since=opened_at))
                if not batch and not writer.last:
                    batch = [NOTHING]  # at once, so that a reader need not wait for the end
                    writer.last = NOTHING
                if batch:
                    yield batch
                if until is not None and max(until, opened_at + self.settle_s) <= now:
                    return
                await asyncio.sleep(self.pace_s)
                await self.notifier.wait(1.0)


# The pulls of a stream; pure


@dataclass(frozen=True, slots=True)
class Reporter:
    """Finds the pulls of a stream; ``now`` plus ``wall_offset_s`` is the wall time.

    ``starts`` returns in how many seconds each pull in line is expected to start, if known.
    """

    book: Book
    seen: Callable[[str], PullState]
    others: Callable[[], Mapping[str, PullState]] = dict
    starts: Callable[[float], Sequence[float | None]] = lambda now: ()
    wall_offset_s: float = 0.0

    def pulls(self, target: PullTarget, *, now: float, since: float) -> list[PullState]:
        """Return the pulls of ``target`` in order of arrival.

        Pulls that ended more than ``LINGER_S`` before ``since`` are left out.
        """
        images = self.book.images(target.pod, since - LINGER_S)
        pulls = [
            self._of_image(calls, now, () if target.pod else _pods(calls))
            for calls in images
            if not target.image or canonical(target.image) == canonical(calls[0].name)
        ]
        known = {calls[0].pull.reference for calls in images}
        if target.pod is None:
            pulls += [
                pull if pull.is_running else replace(pull, sums=Sums())
                for image, pull in self.others().items()
                if image not in known
            ]
        return pulls

    def busy_until(self, pod: PodKey | None, *, now: float) -> float | None:
        """Return when nothing is left to pull for a pod or the node; None while a pull is open."""
        if pod is None and any(pull.is_running for pull in self.others().values()):
            return None
        latest = now - ATTEMPT_GAP_S
        for call, *_ in self.book.images(pod, latest):
            if call.end is None:
                return None
            latest = max(latest, call.ended)
        return latest + ATTEMPT_GAP_S

    def _of_image(self, calls: list[PullCall], now: float, pods: tuple[str, ...]) -> PullState:
        call = next(
            (candidate for candidate in calls if candidate.pull.started is not None), calls[0]
        )
        state = call.state_at(now)
        seen = PullState() if state is CallState.WAITING else self.seen(call.pull.reference)
        started = call.pull.started
        pull = PullState(
            image=call.name,
            digest=seen.digest,
            pods=pods,
            error=call.error or ABANDONED if state is CallState.FAILED else "",
            began_s=0.0 if started is None else started + self.wall_offset_s,
        )
        if not seen.has_layers:
            return self._without_layers(pull, call, state, now)
        sums = seen.sums
        if state is not CallState.RUNNING:
            sums = sums_at_end(sums, is_done=state is CallState.DONE)
        return replace(pull, layers=_layers(seen.layers, state), sums=sums)

    def _without_layers(
        self, pull: PullState, call: PullCall, state: CallState, now: float
    ) -> PullState:
        if state is CallState.RUNNING:
            phase = Phase.DOWNLOADING
        elif state is CallState.FAILED:
            phase = Phase.FAILED
        elif state is CallState.DONE:
            phase = Phase.DONE if call.pull.takes_slot else Phase.PRESENT
        else:
            place = self.book.place(call.pull) if call.end is None else 0
            behind, phase = self._behind(call, place), Phase.WAITING
            starts_in_s = next(iter(self.starts(now)[place - 1 :]), None) if place else None
            pull = replace(pull, place=place, behind=behind, starts_in_s=starts_in_s)
        return replace(pull, layers=(LayerState(phase=phase),))

    def _behind(self, call: PullCall, place: int) -> str:
        if place > 1:
            ahead = self.book.line[place - 2]
        else:
            running = (pull for pull in self.book.running.values() if pull.takes_slot)
            ahead_of_it = next(running, None) if place else None
            if ahead_of_it is None:
                return ""
            ahead = ahead_of_it
        pod = ahead.leader.pod
        return ahead.reference if pod in (None, call.pod) else str(pod)


def _pods(calls: Sequence[PullCall]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(call.pod) for call in calls if call.pod is not None))


def _layers(layers: tuple[LayerState, ...], state: CallState) -> tuple[LayerState, ...]:
    """Return the layers of a pull; whether they have failed depends on the state of its call."""
    if state is CallState.DONE:
        return tuple(ended(layers, Phase.DONE))
    if state is CallState.FAILED:
        failed = tuple(ended(layers, Phase.FAILED))
        if any(layer.phase is Phase.FAILED for layer in failed):
            return failed
        # All layers have arrived, yet the pull failed.
        return (*failed[:-1], replace(failed[-1], phase=Phase.FAILED))
    return tuple(map(_revived, layers))


def _revived(layer: LayerState) -> LayerState:
    if layer.phase is not Phase.FAILED:
        return layer
    # Only this attempt has failed; another one may follow.
    begun = 0 < layer.progress < layer.total
    return replace(layer, phase=Phase.DOWNLOADING if begun else Phase.WAITING)
