"""PullImage under the limit: the asyncio shell around ``queue``.

A request is read to learn what is pulled, for whom and with whose credentials; what goes to the
runtime are its bytes, unchanged. Callers that share a pull share its answer, byte for byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from google.protobuf.message import DecodeError

from pycrictl._proto import cri_pb2
from pycrictl.cri.calls.redact import redact_text
from pycrictl.progress.reference import canonical
from pycrictl.progress.registry.question import credentials_of
from pycrictl.proxy.lookup import Lookup, pod_key
from pycrictl.proxy.pulls import handed
from pycrictl.proxy.pulls.book import Call, PullKey
from pycrictl.proxy.pulls.decisions import (
    Decision,
    Finished,
    PullAbandoned,
    PullStarted,
    Reason,
    Refused,
)
from pycrictl.proxy.pulls.layer_poller import LayerPoller
from pycrictl.proxy.pulls.queue import PullQueue
from pycrictl.proxy.pulls.turns import Turns
from pycrictl.proxy.relay.calls import Answer, CallRequest, Peer
from pycrictl.proxy.relay.upstream import Upstream
from pycrictl.servicelog import Log
from pycrictl.streaming.loop import end_tasks
from pycrictl.wire.codes import (
    ABORTED,
    DEADLINE_EXCEEDED,
    INTERNAL,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    name_of,
)

PULL_PATHS: Final = (
    "/runtime.v1.ImageService/PullImage",
    "/runtime.v1alpha2.ImageService/PullImage",
)
"""The call under its two names: on the wire the older API is the same. kubelet spoke it up to 1.25,
and containerd understands it up to 1.7."""

EARLIER_LIMIT_S: Final = 30.0
"""How long pulls from before the proxy's start may hold slots. The runtime ends those of a proxy
that died at once; a lease that stays longer may be a dead program's, which lasts for a day."""

CLOSED: Final = "pycrictl proxy: the proxy is stopping and takes no new pulls; try again soon"

WITHDRAWN: Final = "pycrictl proxy: the waiting pull was given up by 'pycrictl pull-limiter cancel'"

_CODES: Final = {
    Reason.FULL: RESOURCE_EXHAUSTED,
    Reason.DEADLINE: DEADLINE_EXCEEDED,
    Reason.WITHDRAWN: ABORTED,
}


@dataclass(frozen=True, slots=True)
class _Waiter:
    """A caller without an answer."""

    request: CallRequest
    answer: asyncio.Future[Answer | None]
    """None: another program has the line now."""


@dataclass(frozen=True, slots=True)
class PullEnd:
    """A call that is over.

    Attributes:
        call: as the book has it.
        code: the name of the gRPC status that it was answered with; empty if it was not.
        error: its message, without secrets.
        response: the message that it was answered with.
        peer: who asked.
        trace: the caller's place in a trace; empty if there is none.
    """

    call: Call
    code: str
    error: str
    response: bytes = field(repr=False)
    peer: Peer
    trace: str = ""


class PullLimiter:
    """Answers PullImage calls.

    Args:
        queue: the limit, and the book of all pulls.
        upstream: makes the pulls.
        lookup: asks whether an image is present.
        layers: follows the layers of running pulls.
        log: gets a line when something goes wrong.
        on_change: called after every event.
        on_end: called when a call is over.

    Attributes:
        salt: of the hashes of credentials; one for all programs that hand over to each other.
    """

    def __init__(
        self,
        queue: PullQueue[Answer],
        *,
        upstream: Upstream,
        lookup: Lookup,
        layers: LayerPoller,
        log: Log,
        on_change: Callable[[], None],
        on_end: Callable[[PullEnd], None],
    ) -> None:
        self._queue = queue
        self._upstream = upstream
        self._lookup = lookup
        self._layers = layers
        self._log = log
        self._on_change = on_change
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self.salt = secrets.token_bytes(32)
        self._tickets = itertools.count(1)
        self._waiters: dict[int, _Waiter] = {}
        self._running: dict[int, asyncio.Task[Answer]] = {}
        self._elsewhere: dict[int, Coroutine[object, object, Answer]] = {}
        self._adopted: dict[int, asyncio.Future[Answer | None]] = {}
        self._turns = Turns()
        self._timer: asyncio.TimerHandle | None = None
        self._latest = 0.0
        self._is_closed = False
        self._expected = 0
        self._successor: Upstream | None = None
        self._say_end: Callable[[int, Answer | None], None] = lambda pull, answer: None

    def close(self) -> None:
        """Refuse the calls that come from now on. Those that are there wait and run as before."""
        self._is_closed = True

    async def handle(self, request: CallRequest, peer: Peer) -> Answer:
        """Answer one call; its cancellation means that the caller hung up."""
        if self._is_closed:
            return Answer(UNAVAILABLE, CLOSED)
        came = self._loop.time()
        asked, request = handed.arrival(request, came)
        if self._successor is not None:
            return await self._pass_on(request, asked, came)
        try:
            message = cri_pb2.PullImageRequest.FromString(request.message)
        except DecodeError:
            return await self._forward(request, request.timeout_s)  # the runtime's to judge
        image = message.image.image
        pod = pod_key(message.sandbox_config.metadata)
        is_present = await self._turns.take(self._lookup.is_present(message.image))
        has_auth = message.HasField("auth")
        key = PullKey.of(
            canonical(image),
            credentials=message.auth.SerializeToString(deterministic=True) if has_auth else b"",
            salt=self.salt,
            runtime_handler=message.image.runtime_handler,
            namespace=pod.namespace if pod is not None else "",
        )
        if self._successor is not None:
            return await self._pass_on(request, asked, came)
        ticket = next(self._tickets)
        waiter = self._waiters[ticket] = _Waiter(request, self._loop.create_future())
        now = self._now()
        decisions = self._queue.submit(
            ticket,
            key,
            now=now,
            pod=pod,
            reference=image,
            deadline=None if request.timeout_s is None else came + request.timeout_s,
            is_present=is_present,
            asked=asked,
        )
        call = self._queue.book.latest
        assert call is not None
        self._carry_out(decisions)
        if asked is not None:
            self._expect_less()
        code, error, response = "", "the caller hung up", b""
        is_moved = False
        try:
            found = await waiter.answer
            if found is None:
                is_moved = True
                return await self._pass_on(request, asked, came)
            answer = found
            code, error, response = name_of(answer.code), answer.message, answer.response or b""
        except asyncio.CancelledError:
            self._carry_out(self._queue.cancel(ticket, now=self._now()))
            raise
        finally:
            del self._waiters[ticket]
            if not is_moved:  # else the other program has it
                error = "" if code == "OK" else redact_text(error)
                self._on_end(PullEnd(call, code, error, response, peer, request.trace))
        return answer

    def set_limit(self, limit: int) -> None:
        """Change the limit at once.

        Raises:
            ValueError: it is negative.
        """
        self._carry_out(self._queue.set_limit(limit, now=self._now()))

    def cancel(self, target: str) -> list[Call]:
        """Give up what waits for an image, or for a pod as ``NAME`` or ``NAMESPACE/NAME``.

        Returns:
            The calls that were refused for it; each is answered ABORTED.
        """
        found = [
            call
            for pull in self._queue.book.line
            for call in pull.calls.values()
            if canonical(target) == call.image
            or (call.pod is not None and target in (call.pod.name, str(call.pod)))
        ]
        for call in found:
            self._carry_out(self._queue.withdraw(call.ticket, WITHDRAWN, now=self._now()))
        return found

    def count_earlier(
        self, name: str, end: Coroutine[object, object, None]
    ) -> asyncio.Task[Answer]:
        """Let a pull that began before the proxy did take a slot until ``end`` returns.

        Returns:
            What ends when it gives its slot back.
        """
        ticket, now = next(self._tickets), self._now()
        self._elsewhere[ticket] = self._wait_for(end)
        key = PullKey(name, credentials_hash=f"earlier {ticket}")
        self._carry_out(self._queue.submit(ticket, key, now=now, started=now))
        return self._running[self._queue.book.calls[ticket].pull.number]

    async def stop(self) -> None:
        """Cancel the upstream calls that are still running."""
        if self._timer is not None:
            self._timer.cancel()
        await end_tasks(self._running.values())
        for work in self._elsewhere.values():
            work.close()

    # One program after another

    def hold(self, expected: int = 0) -> None:
        """Give no slots before ``release``, or the last of so many calls that are forwarded."""
        self._queue.is_held = True
        self._expected = expected

    def _expect_less(self) -> None:
        self._expected -= 1
        if not self._expected:
            self.release()

    def release(self) -> None:
        """Give slots again."""
        self._expected = 0
        self._carry_out(self._queue.release(now=self._now()))

    @property
    def adopted_count(self) -> int:
        """How many pulls the program before this one still makes."""
        return len(self._adopted)

    def hand_over(
        self, successor: Upstream, say_end: Callable[[int, Answer | None], None]
    ) -> dict[str, Any]:
        """Let another program give the slots.

        The calls in line, and those that still come, are made to that program for their callers.

        Args:
            successor: makes the calls.
            say_end: gets the number and the outcome of each pull that runs here now; None for one
                that was given up.

        Returns:
            What ``adopt`` takes.
        """
        book = self._queue.book
        running = [handed.document(pull) for pull in book.running.values() if pull.calls]
        waiting = [ticket for pull in book.line for ticket in pull.calls]
        self._successor, self._say_end = successor, say_end
        for ticket in waiting:
            if ticket in self._waiters:
                self._waiters[ticket].answer.set_result(None)
            self._carry_out(self._queue.cancel(ticket, now=self._now()))
        return {"running": running, "waiting": sum(ticket in self._waiters for ticket in waiting)}

    def take_back(self) -> None:
        """Give the slots again: the other program is gone."""
        self._successor, self._say_end = None, lambda pull, answer: None

    def adopt(self, state: Mapping[str, Any]) -> None:
        """Count the pulls that another program makes, whatever the limit is.

        ``end_adopted`` must say when each of them has ended. Calls for the same image join them.

        Args:
            state: what its ``hand_over`` returned.
        """
        for pull in state["running"]:
            number, key, calls = pull["pull"], handed.key_of(pull), pull["calls"]
            self._adopted[number] = self._loop.create_future()
            now = self._now()
            # What the runtime has already is pulled anew for each call.
            for call in calls if pull["takesSlot"] else calls[:1]:
                ticket = next(self._tickets)
                if call is calls[0]:
                    self._elsewhere[ticket] = self._until_ended(number, ticket)
                self._carry_out(
                    self._queue.submit(
                        ticket,
                        key,
                        now=now,
                        pod=handed.pod_of(call),
                        reference=call["reference"],
                        is_present=not pull["takesSlot"],
                        asked=call["asked"],
                        started=pull["started"],
                    )
                )
                if call is calls[0]:
                    since_s = time.time() - (now - pull["started"])
                    mine = self._queue.book.calls[ticket].pull.number
                    self._layers.begin(mine, call["reference"], since_s)

    def end_adopted(self, number: int, answer: Answer | None) -> None:
        """Take the end of a pull of another program; None if it is not made any more."""
        outcome = self._adopted.get(number)
        if outcome is not None and not outcome.done():
            outcome.set_result(answer)

    def end_all_adopted(self) -> None:
        """Take the end of the other program."""
        for number in list(self._adopted):
            self.end_adopted(number, None)

    async def _until_ended(self, number: int, ticket: int) -> Answer:
        """Return the outcome of an adopted pull; make it here if it ended and is still wanted."""
        try:
            answer = await asyncio.shield(self._adopted[number])
        finally:
            del self._adopted[number]
        if answer is not None:
            return answer
        calls = self._queue.book.calls[ticket].pull.calls
        for other in [one for one in calls if one not in self._waiters]:
            self._carry_out(self._queue.cancel(other, now=self._now()))
        for other in calls:
            return await self._forward(self._waiters[other].request, None)
        return Answer(UNAVAILABLE, "pycrictl proxy: the pull was given up")

    async def _pass_on(self, request: CallRequest, asked: float | None, came: float) -> Answer:
        """Make a call that came here at ``came`` to the program that gives the slots now."""
        assert self._successor is not None
        request = handed.forwarded(request, came if asked is None else asked)
        timeout_s = request.timeout_s
        if timeout_s is not None:
            timeout_s = max(came + timeout_s - self._loop.time(), 0.0)
        return await self._successor.unary(
            request.path, request.message, metadata=request.metadata, timeout_s=timeout_s
        )

    # Work

    def _carry_out(self, decisions: Iterable[Decision[Answer]]) -> None:
        for decision in decisions:
            if isinstance(decision, PullStarted):
                self._start(decision.pull, decision.ticket)
            elif isinstance(decision, PullAbandoned):
                self._running[decision.pull].cancel()
            elif isinstance(decision, Finished):
                self._reply(decision.ticket, decision.outcome)
            elif isinstance(decision, Refused):
                self._reply(decision.ticket, Answer(_CODES[decision.reason], decision.message))
        self._arm()
        self._on_change()

    def _start(self, pull: int, ticket: int) -> None:
        if (elsewhere := self._elsewhere.pop(ticket, None)) is not None:
            work = elsewhere
        else:
            request = self._waiters[ticket].request
            auth = cri_pb2.PullImageRequest.FromString(request.message).auth
            reference = self._queue.book.running[pull].reference
            self._layers.begin(pull, reference, time.time(), credentials_of(auth))
            # The queue keeps the deadlines: others may have joined who have more time.
            work = self._forward(request, None)
        task = self._running[pull] = self._loop.create_task(work)
        task.add_done_callback(partial(self._finish, pull))

    async def _forward(self, request: CallRequest, timeout_s: float | None) -> Answer:
        return await self._upstream.unary(
            request.path, request.message, metadata=request.metadata, timeout_s=timeout_s
        )

    async def _wait_for(self, end: Coroutine[object, object, None]) -> Answer:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EARLIER_LIMIT_S):
                await end
        return Answer()

    def _finish(self, pull: int, task: asyncio.Task[Answer]) -> None:
        """Take the end of a task, even if it was cancelled before it began."""
        del self._running[pull]
        self._layers.end(pull)
        self._say_end(pull, None if task.cancelled() or task.exception() else task.result())
        if task.cancelled():
            answer = Answer(UNAVAILABLE, "pycrictl proxy: the pull was cancelled")
        elif (exc := task.exception()) is not None:
            self._log.warning("pull_error", pull=pull, error=repr(exc))
            answer = Answer(INTERNAL, "pycrictl proxy: internal error")
        else:
            answer = task.result()
        error = ""
        if answer.code:
            error = redact_text(answer.message) or name_of(answer.code)
        self._carry_out(self._queue.finish(pull, answer, now=self._now(), error=error))

    def _reply(self, ticket: int, answer: Answer) -> None:
        waiter = self._waiters.get(ticket)
        if waiter is not None and not waiter.answer.done():
            waiter.answer.set_result(answer)

    def _arm(self) -> None:
        """Set the timer to when the queue has something to do on its own."""
        wakeup = self._queue.next_wakeup()
        if self._timer is not None:
            if self._timer.when() == wakeup and not self._timer.cancelled():
                return
            self._timer.cancel()
            self._timer = None
        if wakeup is not None:
            self._timer = self._loop.call_at(wakeup, self._tick)

    def _tick(self) -> None:
        self._timer = None
        # The loop's timers may come a clock tick early.
        self._carry_out(self._queue.tick(self._now(self._queue.next_wakeup() or 0.0)))

    def _now(self, least: float = 0.0) -> float:
        """Return the loop's time, which here never goes back."""
        self._latest = max(self._latest, self._loop.time(), least)
        return self._latest
