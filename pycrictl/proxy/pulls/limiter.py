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
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeVar

from google.protobuf.message import DecodeError

from pycrictl._proto import cri_pb2
from pycrictl.cri.calls.redact import redact_text
from pycrictl.progress.reference import canonical
from pycrictl.proxy.pulls.board import Board, PodKey
from pycrictl.proxy.pulls.decisions import (
    Decision,
    Finished,
    PullAbandoned,
    PullKey,
    PullStarted,
    Reason,
    Refused,
    Snapshot,
)
from pycrictl.proxy.pulls.lookup import Lookup, pod_key
from pycrictl.proxy.pulls.queue import PullQueue
from pycrictl.proxy.relay.calls import Answer, Request
from pycrictl.proxy.relay.server import Peer
from pycrictl.proxy.relay.upstream import Upstream
from pycrictl.proxy.serve.log import Log
from pycrictl.streaming.loop import end_tasks
from pycrictl.wire.codes import (
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

_CODES: Final = {Reason.FULL: RESOURCE_EXHAUSTED, Reason.DEADLINE: DEADLINE_EXCEEDED}


T = TypeVar("T")


class Layers(Protocol):
    """Who is told which pulls run, so that their layers can be found and named."""

    def begin(self, pull: int, reference: str, since_s: float) -> None:
        """A pull is about to be asked of the runtime, at that wall time."""

    def end(self, pull: int) -> None:
        """It is over."""


@dataclass(frozen=True, slots=True)
class _Caller:
    request: Request
    reference: str
    pod: PodKey | None
    peer: Peer
    asked: float
    answer: asyncio.Future[Answer]


class Pulls:
    """Answers PullImage calls.

    Args:
        queue: the limit.
        board: is told what becomes of the pulls.
        upstream: makes the pulls.
        lookup: asks whether an image is present.
        layers: is told which pulls run.
        log: gets a line for each call.
        on_change: called after every event.
    """

    def __init__(
        self,
        queue: PullQueue[Answer],
        board: Board,
        *,
        upstream: Upstream,
        lookup: Lookup,
        layers: Layers,
        log: Log,
        on_change: Callable[[], None],
    ) -> None:
        self._queue = queue
        self._board = board
        self._upstream = upstream
        self._lookup = lookup
        self._layers = layers
        self._log = log
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._salt = secrets.token_bytes(32)
        self._tickets = itertools.count(1)
        self._callers: dict[int, _Caller] = {}
        self._running: dict[int, asyncio.Task[Answer]] = {}
        self._earlier: dict[int, Coroutine[object, object, None]] = {}
        self._turn: asyncio.Future[None] = self._loop.create_future()
        self._turn.set_result(None)
        self._timer: asyncio.TimerHandle | None = None
        self._latest = 0.0

    async def handle(self, request: Request, peer: Peer) -> Answer:
        """Answers one call; its cancellation is the caller's hanging up."""
        asked = self._loop.time()
        try:
            message = cri_pb2.PullImageRequest.FromString(request.message)
        except DecodeError:
            return await self._forward(request, request.timeout_s)  # the runtime's to judge
        image = message.image.image
        pod = pod_key(message.sandbox_config.metadata)
        is_present = await self._in_turn(self._lookup.is_present(message.image))
        has_auth = message.HasField("auth")
        key = PullKey.of(
            canonical(image),
            credentials=message.auth.SerializeToString(deterministic=True) if has_auth else b"",
            salt=self._salt,
            runtime_handler=message.image.runtime_handler,
            namespace=pod.namespace if pod is not None else "",
        )
        ticket = next(self._tickets)
        caller = _Caller(request, image, pod, peer, asked, self._loop.create_future())
        self._callers[ticket] = caller
        now = self._now()
        deadline = None if request.timeout_s is None else asked + request.timeout_s
        self._board.ask(ticket, pod, image=key.image, reference=image, now=now)
        decisions = self._queue.submit(
            ticket,
            key,
            now=now,
            pod=str(pod) if pod is not None else "",
            deadline=deadline,
            is_present=is_present,
        )
        self._carry_out(decisions, now, present=is_present)
        try:
            answer = await caller.answer
        except asyncio.CancelledError:
            now = self._now()
            self._carry_out(self._queue.cancel(ticket, now=now), now)
            self._tell(caller, "gone", "the caller hung up")
            raise
        finally:
            del self._callers[ticket]
        self._tell(caller, name_of(answer.code), answer.message)
        return answer

    def snapshot(self) -> Snapshot:
        """What runs and waits."""
        return self._queue.snapshot()

    def place(self, ticket: int) -> int:
        """The place of a caller in the line, from 1; 0 if it does not wait."""
        return self._queue.place(ticket)

    def set_limit(self, limit: int) -> None:
        """Changes the limit at once.

        Raises:
            ValueError: it is negative.
        """
        now = self._now()
        self._carry_out(self._queue.set_limit(limit, now=now), now)

    def count_earlier(self, name: str, end: Coroutine[object, object, None]) -> None:
        """Lets a pull that began before the proxy did take a slot until ``end`` returns."""
        ticket = next(self._tickets)
        now = self._now()
        self._earlier[ticket] = end
        self._board.ask(ticket, None, image=name, reference=name, now=now)
        key = PullKey(name, credentials_hash=f"earlier {ticket}")
        self._carry_out(self._queue.submit(ticket, key, now=now), now)

    async def stop(self) -> None:
        """Cancels the upstream calls that still run."""
        if self._timer is not None:
            self._timer.cancel()
        await end_tasks(self._running.values())
        for end in self._earlier.values():
            end.close()

    def _carry_out(
        self,
        decisions: Iterable[Decision[Answer]],
        now: float,
        *,
        error: str = "",
        present: bool = False,
    ) -> None:
        decisions = list(decisions)
        self._board.take(decisions, error=error, present=present, now=now)
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
        if (end := self._earlier.pop(ticket, None)) is not None:
            work = self._wait_for(end)
        else:
            caller = self._callers[ticket]
            self._layers.begin(pull, caller.reference, time.time())
            # The queue keeps the deadlines: others may have joined who have more time.
            work = self._forward(caller.request, None)
        task = self._running[pull] = self._loop.create_task(work)
        task.add_done_callback(partial(self._finish, pull))

    async def _in_turn(self, work: Coroutine[object, object, T]) -> T:
        """The result of ``work``, not before those who came before have theirs.

        First come, first served: a question to the runtime must not change who came first.
        """
        before, mine = self._turn, self._loop.create_future()
        self._turn = mine

        def pass_on(_: asyncio.Future[None] | None = None) -> None:
            mine.set_result(None)

        try:
            result = await work
            await asyncio.shield(before)
            return result
        finally:
            if before.done():
                pass_on()
            else:
                before.add_done_callback(pass_on)

    async def _forward(self, request: Request, timeout_s: float | None) -> Answer:
        return await self._upstream.unary(
            request.path, request.message, metadata=request.metadata, timeout_s=timeout_s
        )

    async def _wait_for(self, end: Coroutine[object, object, None]) -> Answer:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EARLIER_LIMIT_S):
                await end
        return Answer()

    def _finish(self, pull: int, task: asyncio.Task[Answer]) -> None:
        """The task is over, even if it was cancelled before it began."""
        del self._running[pull]
        self._layers.end(pull)
        if task.cancelled():
            answer = Answer(UNAVAILABLE, "pycrictl proxy: the pull was cancelled")
        elif (exc := task.exception()) is not None:
            self._log.warning("pull_error", pull=pull, error=repr(exc))
            answer = Answer(INTERNAL, "pycrictl proxy: internal error")
        else:
            answer = task.result()
        now, error = self._now(), ""
        if answer.code:
            error = redact_text(answer.message) or name_of(answer.code)
        decisions = self._queue.finish(pull, answer, now=now, error=error)
        self._carry_out(decisions, now, error=error)
        self._board.forget_pull(pull)

    def _reply(self, ticket: int, answer: Answer) -> None:
        caller = self._callers.get(ticket)
        if caller is not None and not caller.answer.done():
            caller.answer.set_result(answer)

    def _arm(self) -> None:
        """Sets the timer to when the queue has something to do by itself."""
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
        now = self._now(self._queue.next_wakeup() or 0.0)
        self._carry_out(self._queue.tick(now), now)

    def _now(self, least: float = 0.0) -> float:
        """The loop's time, which here never goes back."""
        self._latest = max(self._latest, self._loop.time(), least)
        return self._latest

    def _tell(self, caller: _Caller, outcome: str, message: str) -> None:
        self._log.info(
            "pull",
            image=caller.reference,
            pod=str(caller.pod) if caller.pod is not None else "-",
            outcome=outcome,
            error=redact_text(message) if outcome != "OK" else "",
            duration_s=round(self._loop.time() - caller.asked, 3),
            pid=caller.peer.pid,
            uid=caller.peer.uid,
        )
