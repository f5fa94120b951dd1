"""A span for each pull and copy, in the trace of the call that requested it.

The runtime gets the span as the parent of its own. The event of the end of a pull or copy ends the
span and supplies its attributes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import replace
from typing import Final

from pycrictl.base.errors import StreamError
from pycrictl.base.servicelog import Log
from pycrictl.proxy.calls import Answer, CallRequest, Handler
from pycrictl.proxy.events import CopyEnded, Event, PullRecorded
from pycrictl.proxy.telemetry.tracing import (
    TRACEPARENT,
    Context,
    Span,
    begin_span,
    end_span,
    send,
    traceparent,
)
from pycrictl.streams.loop import end_tasks, in_thread

SEND_S: Final = 2.0
"""How long an ended span waits, so that others are sent with it."""

MAX_OPEN: Final = 4096
MAX_UNSENT: Final = 4096
"""Beyond these numbers, the oldest spans are dropped."""


class PullTracer:
    """Traces pulls and copies to a collector at ``HOST:PORT``, if any; a consumer of events."""

    def __init__(self, endpoint: str, *, log: Log) -> None:
        self._endpoint = endpoint
        self._log = log
        self._open: OrderedDict[str, Span] = OrderedDict()
        self._ended: deque[Span] = deque(maxlen=MAX_UNSENT)
        self._sending: asyncio.Task[None] | None = None
        self._has_complained = False

    def watched(self, handle: Handler) -> Handler:
        """Return a handler that begins a span for each call and then calls ``handle``."""
        if not self._endpoint:
            return handle

        async def begin(request: CallRequest) -> Answer:
            return await handle(self._begin(request))

        return begin

    def __call__(self, event: Event) -> None:
        match event:
            case PullRecorded(call, record):
                trace, error = call.trace, call.reason
                attributes: dict[str, object] = {
                    "container.image.name": record.image,
                    "pycrictl.pod": record.pod,
                    "pycrictl.outcome": record.code or record.outcome.value,
                    "pycrictl.waited_s": record.waited_s,
                    "pycrictl.pulled_s": record.pulled_s,
                    "pycrictl.bytes": record.got_bytes,
                    "pycrictl.reused": record.reused_bytes,
                    "pycrictl.attempt": record.attempts,
                }
            case CopyEnded():
                trace, error = event.trace, event.error
                attributes = {
                    "container.id": event.container,
                    "pycrictl.pod": event.pod,
                    "pycrictl.path": event.path,
                    "pycrictl.size_bytes": event.size_bytes,
                    "pycrictl.end": event.end,
                }
            case _:
                return
        if (span := self._open.pop(trace, None)) is None:
            return
        known = {key: str(value) for key, value in attributes.items() if value not in ("", None)}
        end_span(span, error=error, attributes=known)
        self._ended.append(span)
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send_all())

    async def stop(self) -> None:
        if self._sending is not None:
            await end_tasks([self._sending])
        if self._ended:
            await self._send()

    def _begin(self, request: CallRequest) -> CallRequest:
        parent = Context.parse(request.trace)
        if parent is not None and not parent.is_sampled:
            return request
        span = begin_span(request.path.rpartition("/")[2], parent)
        trace = traceparent(span)
        self._open[trace] = span
        if len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)
        others = [field for field in request.metadata if field[0] != TRACEPARENT]
        return replace(request, metadata=(*others, (TRACEPARENT, trace)))

    async def _send_all(self) -> None:
        while self._ended:
            await asyncio.sleep(SEND_S)
            await self._send()
        self._sending = None

    async def _send(self) -> None:
        spans = list(self._ended)
        self._ended.clear()
        try:
            await in_thread(lambda: send(self._endpoint, "pycrictl-proxy", spans))
        except StreamError as exc:
            if not self._has_complained:
                self._log.warning("no_traces", error=exc.message)
            self._has_complained = True
        else:
            self._has_complained = False
