"""PullImage under the limit: the asyncio shell around ``queue``.

1. ``proxy.server`` has a handler for ``PullImage``; other methods pass through ``proxy.upstream``.
2. The limiter parses the request for its image and pod; ``proxy.runtime_lookup`` asks the runtime
   whether the image is present. If so, the pull takes no slot.
3. ``queue``, which is pure, decides: start, wait for a slot, or wait for an equal pull. It alone
   writes ``book``, which keeps each call once, from its arrival to its end; status, failures and
   pod streams are read from there.
4. When a call's turn comes, ``proxy.upstream`` makes it with the client's own bytes and deadline.
   A client that disconnects leaves the queue, or cancels its call.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from pycrictl._proto import cri_pb2
from pycrictl.cri.calls.redact import redact_text
from pycrictl.progress.pull_names import Expected
from pycrictl.progress.reference import canonical
from pycrictl.proxy.calls import Answer, CallRequest
from pycrictl.proxy.pulls.book import CallState, Decision, PullCall, PullKey, Reason
from pycrictl.proxy.pulls.layer_poller import LayerPoller
from pycrictl.proxy.pulls.queue import PullQueue
from pycrictl.proxy.runtime_lookup import PodKey, RuntimeLookup, pod_key
from pycrictl.proxy.upstream import Upstream
from pycrictl.pulls.registries.credentials import credentials_of
from pycrictl.streaming.loop import end_tasks
from pycrictl.wire.codes import (
    ABORTED,
    DEADLINE_EXCEEDED,
    OK,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    name_of,
)

PULL_PATHS: Final = (
    "/runtime.v1.ImageService/PullImage",
    "/runtime.v1alpha2.ImageService/PullImage",
)
"""The call in both API versions, which are the same on the wire. kubelet used the older one up to
1.25, and containerd supports it up to 1.7."""

CLOSED: Final = Answer(
    UNAVAILABLE, "pycrictl proxy: the proxy is stopping and takes no new pulls; try again soon"
)

TOO_LATE: Final = "the deadline passed before the image was pulled"
WITHDRAWN: Final = "pycrictl proxy: the waiting pull was given up by 'pycrictl pull-limiter cancel'"

_CODES: Final = {
    Reason.FULL: RESOURCE_EXHAUSTED,
    Reason.DEADLINE: DEADLINE_EXCEEDED,
    Reason.WITHDRAWN: ABORTED,
}


@dataclass(eq=False)
class PullLimiter:
    """Answers PullImage calls.

    ``on_change`` is called after every event, ``on_end`` when a call is over, and ``on_over`` with
    the number of a finished pull and its error: empty if it succeeded, None if it was given up.
    """

    queue: PullQueue
    upstream: Upstream
    lookup: RuntimeLookup
    layers: LayerPoller
    on_change: Callable[[], None]
    on_end: Callable[[PullCall], None]
    on_over: Callable[[int, str | None], None] = lambda pull, error: None

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tickets = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Answer | None]] = {}
        self._elsewhere: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._latest = 0.0
        self._is_closed = self._is_draining = False
        self.is_stopping = False  # running calls are about to be cancelled

    async def handle(self, request: CallRequest, asked: float | None = None) -> Answer:
        """Answer one call; ``asked`` is its original time of arrival if it was forwarded.

        Cancelling it means that the client has disconnected.
        """
        if self._is_closed:
            return CLOSED
        try:
            message = cri_pb2.PullImageRequest.FromString(request.message)
        except DecodeError:
            return await self.upstream.pass_on(request)  # the runtime decides
        is_present = await self.lookup.is_present(message.image)
        if self._is_draining:
            return CLOSED
        ticket, now = next(self._tickets), self._now()
        turn = self._waiting[ticket] = self._loop.create_future()
        decisions = self.queue.submit(
            ticket,
            PullKey(canonical(message.image.image), message.image.runtime_handler),
            now=now,
            pod=pod_key(message.sandbox_config.metadata),
            reference=message.image.image,
            is_present=is_present,
            asked=request.came if asked is None else asked,
        )
        call = self.queue.book.latest
        assert call is not None
        call.trace = request.trace
        self._carry_out(decisions)
        deadline = None if request.timeout_s is None else request.came + request.timeout_s
        answer: Answer | None = None
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    answer = await turn
            except TimeoutError:
                late, now = Reason.DEADLINE, self._now()
                self._carry_out(self.queue.give_up(ticket, late, TOO_LATE, now=now))
                if call.end is not None:  # otherwise it has just started
                    answer = Answer(DEADLINE_EXCEEDED, TOO_LATE)
            if answer is None:
                answer = await self._pull(request, message.auth, call)
        finally:
            del self._waiting[ticket]
            error = None
            if answer is None and self.is_stopping:
                call.code, error = name_of(CLOSED.code), CLOSED.message
            elif answer is not None and answer is not CLOSED:
                call.code, call.image_id = name_of(answer.code), _image_id(answer)
                error = "" if answer.code == OK else redact_text(answer.message) or call.code
            self._end(call, error)
            if answer is not CLOSED:
                self.on_end(call)
        return answer

    async def _pull(self, request: CallRequest, auth: cri_pb2.AuthConfig, call: PullCall) -> Answer:
        expected = Expected(call.reference, time.time(), credentials_of(auth))
        self.layers.begin(call.pull.number, expected, is_joined=call.is_joined)
        try:
            return await self.upstream.pass_on(request)
        finally:
            self.layers.end(call.pull.number)

    def count(
        self,
        name: str,
        end: Awaitable[str | None],
        *,
        began_s: float,
        asked: float,
        pod: PodKey | None,
        runtime_handler: str,
        takes_slot: bool,
    ) -> None:
        """Count a pull of another process, begun ``began_s`` seconds ago, until it is over.

        ``end`` returns the error, as for ``on_over``.
        """
        ticket, now = next(self._tickets), self._now()
        decisions = self.queue.submit(
            ticket,
            PullKey(canonical(name), runtime_handler),
            now=now,
            pod=pod,
            reference=name,
            asked=asked,
            started=now - began_s,
            is_present=not takes_slot,
        )
        call = self.queue.book.latest
        assert call is not None
        self._carry_out(decisions)
        self.layers.begin(call.pull.number, Expected(name, time.time() - began_s))

        async def wait() -> None:
            error = None
            try:
                error = await end
            finally:
                self.layers.end(call.pull.number)
                self._end(call, error)

        task = self._loop.create_task(wait())
        self._elsewhere.add(task)
        task.add_done_callback(self._elsewhere.discard)

    def close(self, *, waiting: bool = False) -> None:
        """Refuse new calls from now on and, with ``waiting``, those in line."""
        self._is_draining |= waiting
        self._is_closed = True
        for call in self.in_line() if waiting else ():
            turn = self._waiting.get(call.ticket)
            if turn is not None and not turn.done():
                turn.set_result(CLOSED)

    def set_limit(self, limit: int) -> None:
        self._carry_out(self.queue.set_limit(limit, now=self._now()))

    def hold(self) -> None:
        self.queue.is_held = True

    def release(self) -> None:
        self._carry_out(self.queue.release(now=self._now()))

    def in_line(self) -> list[PullCall]:
        return [call for call in self.queue.book.calls.values() if call.started is None]

    def cancel(self, target: str) -> list[PullCall]:
        """Give up the waiting calls for an image, or of a pod as ``NAME`` or ``NAMESPACE/NAME``."""
        found = [
            call
            for pull in self.queue.book.line
            for call in pull.calls.values()
            if canonical(target) == call.image
            or (call.pod is not None and target in (call.pod.name, str(call.pod)))
        ]
        for call in found:
            now = self._now()
            self._carry_out(self.queue.give_up(call.ticket, Reason.WITHDRAWN, WITHDRAWN, now=now))
        return found

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await end_tasks(self._elsewhere)

    def _end(self, call: PullCall, error: str | None) -> None:
        if call.started is not None and call.end is None:
            self.on_over(call.pull.number, error)
        how = CallState.LEFT if error is None else CallState.FAILED if error else CallState.DONE
        self._carry_out(self.queue.end(call.ticket, how, now=self._now(), error=error or ""))

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            turn = self._waiting.get(decision.ticket)
            if turn is None or turn.done():
                continue
            reason, message = decision.reason, decision.message
            turn.set_result(None if reason is None else Answer(_CODES[reason], message))
        self._arm()
        self.on_change()

    def _arm(self) -> None:
        wakeup = self.queue.next_wakeup()
        if self._timer is not None:
            if self._timer.when() == wakeup and not self._timer.cancelled():
                return
            self._timer.cancel()
            self._timer = None
        if wakeup is not None:
            self._timer = self._loop.call_at(wakeup, self._tick)

    def _tick(self) -> None:
        self._timer = None
        # The loop's timers may fire a clock tick early.
        self._carry_out(self.queue.tick(self._now(self.queue.next_wakeup() or 0.0)))

    def _now(self, least: float = 0.0) -> float:
        """Return the loop's time, or ``least`` or the last result if that is later."""
        self._latest = max(self._latest, self._loop.time(), least)
        return self._latest


def _image_id(answer: Answer) -> str:
    with contextlib.suppress(DecodeError):
        return str(cri_pb2.PullImageResponse.FromString(answer.response or b"").image_ref)
    return ""
