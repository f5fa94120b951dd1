"""PullImage under the limit: the asyncio shell around ``queue``.

1. ``proxy.server`` has a handler for ``PullImage``; other methods pass through ``proxy.upstream``.
2. The limiter parses the request for its image and pod; ``proxy.runtime_lookup`` asks the runtime
   whether the image is present. If so, the pull takes no slot.
3. ``queue``, which is pure, decides: start, wait for a slot, or wait for an equal pull. It alone
   writes ``book``, which keeps each call once, from its arrival to its end; status, failures and
   pod streams are read from there. What happens to calls is emitted as events.
4. When a call's turn comes, ``proxy.upstream`` makes it with the client's own bytes and deadline.
   A client that disconnects leaves the queue, or cancels its call.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from dataclasses import replace
from typing import Any, Final

from google.protobuf.message import DecodeError

from pycrictl._proto import cri_pb2
from pycrictl.proxy.events import Emit
from pycrictl.proxy.pulls.layer_poller import LayerPoller
from pycrictl.proxy.pulls.pull_calls import CallState, PullCall, PullKey, QueuedPull
from pycrictl.proxy.pulls.queue import PullQueue
from pycrictl.proxy.runtime_lookup import RuntimeLookup, pod_key
from pycrictl.proxy.settings import ProxySettings
from pycrictl.proxy.upstream import Answer, CallRequest, Upstream
from pycrictl.pulls.reference import canonical
from pycrictl.pulls.registries.credentials import credentials_of
from pycrictl.pulls.sources.pull_names import Expected
from pycrictl.runtime.cri.calls.redact import redact_text
from pycrictl.streams.wire.codes import ABORTED, OK, UNAVAILABLE, name_of

PULL_PATH: Final = "/runtime.v1.ImageService/PullImage"

CLOSED: Final = Answer(
    UNAVAILABLE, "pycrictl proxy: the proxy is stopping and takes no new pulls; try again soon"
)

CANCELLED: Final = "pycrictl proxy: the pull was cancelled by 'pycrictl pull-limiter cancel'"

_ASKED: Final = "pycrictl-asked"
"""Metadata key of a forwarded call: when it arrived at the first process, in seconds of the clock
that all processes of a node share (CLOCK_MONOTONIC)."""


class PullLimiter:
    """Answers PullImage calls."""

    def __init__(
        self,
        settings: ProxySettings,
        upstream: Upstream,
        lookup: RuntimeLookup,
        layers: LayerPoller,
        emit: Emit,
    ) -> None:
        self.upstream = upstream
        self.lookup = lookup
        self.layers = layers
        self.queue = PullQueue(
            settings.limit,
            settings.policy,
            retry_interval_s=settings.retry_interval_s,
            retries=settings.retries,
            emit=emit,
            on_retry=self._retry_later,
        )
        self._loop = asyncio.get_running_loop()
        self._tickets = itertools.count(1)
        self._heir: Upstream | None = None
        self._is_closed = False
        self.is_stopping = False  # running calls are about to be cancelled

    async def handle(self, request: CallRequest) -> Answer:
        """Answer one call. gRPC cancels it at its deadline, and when the client disconnects."""
        if self._is_closed:
            return CLOSED
        try:
            message = cri_pb2.PullImageRequest.FromString(request.message)
        except DecodeError:
            return await self.upstream.pass_on(request)  # the runtime decides
        came, request = _arrival(request)
        is_present = await self.lookup.is_present(message.image)
        if self._heir is not None:
            return await self._moved(request, came, self._heir)
        call = self.queue.submit(
            next(self._tickets),
            PullKey(canonical(message.image.image), message.image.runtime_handler),
            now=self._loop.time(),
            pod=pod_key(message.sandbox_config.metadata),
            reference=message.image.image,
            is_present=is_present,
            asked=came,
        )
        try:
            await call.decided.wait()
            if self._heir is not None and call.is_elsewhere:
                return await self._moved(request, came, self._heir)
            if call.refusal is not None:
                return Answer(call.refusal, call.error)
            answer = await self._pull(request, message.auth, call)
            call.code, call.image_id = name_of(answer.code), _image_id(answer)
            self.end(call, "" if answer.code == OK else redact_text(answer.message) or call.code)
            return answer
        finally:
            error = None
            if self.is_stopping and call.end is None:
                call.code, error = name_of(CLOSED.code), CLOSED.message
            self.end(call, error)

    async def _pull(self, request: CallRequest, auth: cri_pb2.AuthConfig, call: PullCall) -> Answer:
        expected = Expected(call.reference, time.time(), credentials_of(auth))
        self.layers.begin(call.ticket, expected, is_joined=call.is_joined)
        try:
            return await self.upstream.pass_on(request)
        finally:
            self.layers.end(call.ticket)

    def count(self, reference: str, runtime_handler: str, **pull: Any) -> PullCall:
        """Count a pull of another process (see ``PullQueue.submit``), until ``uncount``."""
        # The wall clock is read first: a delay between the two makes the pull look older. If it
        # looked younger than its lease, its layers would not be found.
        wall_s, now, ticket = time.time(), self._loop.time(), next(self._tickets)
        key = PullKey(canonical(reference), runtime_handler)
        call = self.queue.submit(ticket, key, now=now, reference=reference, **pull)
        self.layers.begin(ticket, Expected(reference, wall_s - (now - pull["started"])))
        return call

    def uncount(self, call: PullCall, error: str | None) -> None:
        self.layers.end(call.ticket)
        self.end(call, error)

    def end(self, call: PullCall, error: str | None) -> None:
        """End a call unless it is over; the error is empty on success, None if it was cancelled."""
        how = CallState.LEFT if error is None else CallState.FAILED if error else CallState.DONE
        self.queue.end(call.ticket, how, now=self._loop.time(), error=error or "")

    def cancel(self, target: str) -> list[PullCall]:
        """Refuse the waiting calls for an image, or of a pod as ``NAME`` or ``NAMESPACE/NAME``."""
        calls = [
            call
            for pull in self.queue.book.line
            for call in pull.calls.values()
            if canonical(target) == call.image
            or (call.pod is not None and target in (call.pod.name, str(call.pod)))
        ]
        for call in calls:
            self.queue.refuse(call, ABORTED, CANCELLED, now=self._loop.time())
        return calls

    def close(self) -> None:
        """Refuse new calls from now on."""
        self._is_closed = True

    def move_to(self, heir: Upstream) -> None:
        """Repeat waiting calls as a client of another process, with their times of arrival."""
        self._heir = heir
        self.queue.move_away(now=self._loop.time())

    async def _moved(self, request: CallRequest, came: float, heir: Upstream) -> Answer:
        metadata = (*request.metadata, (_ASKED, repr(came)))
        return await heir.pass_on(replace(request, metadata=metadata))

    def _retry_later(self, pull: QueuedPull) -> None:
        self._loop.call_at(
            pull.next_try or 0.0, lambda: self.queue.retry(pull, now=self._loop.time())
        )


def _arrival(request: CallRequest) -> tuple[float, CallRequest]:
    """Return when a call first arrived at a process of the proxy, and the call without that key."""
    came, metadata = request.came, []
    for key, value in request.metadata:
        if key != _ASKED:
            metadata.append((key, value))
            continue
        with contextlib.suppress(ValueError):
            given = float(value)
            came = given if 0.0 <= given <= request.came else came
    return came, replace(request, metadata=tuple(metadata))


def _image_id(answer: Answer) -> str:
    with contextlib.suppress(DecodeError):
        return str(cri_pb2.PullImageResponse.FromString(answer.response or b"").image_ref)
    return ""
