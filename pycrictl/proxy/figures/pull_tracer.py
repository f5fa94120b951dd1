"""A span for each pull and copy, in the trace of the call that requested it.

The runtime gets the span as the parent of its own. The log line of the pull or copy ends the span
and supplies its attributes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from pycrictl.cri.calls.tracing import (
    TRACEPARENT,
    Context,
    Span,
    begin_span,
    end_span,
    send,
    traceparent,
)
from pycrictl.errors import StreamError
from pycrictl.proxy.calls import Answer, CallRequest, Handler
from pycrictl.servicelog import Log
from pycrictl.streaming.loop import in_thread

SEND_S: Final = 2.0
"""How long an ended span waits, so that others are sent with it."""

MAX_OPEN: Final = 4096
MAX_UNSENT: Final = 4096
"""Beyond these numbers, the oldest spans are dropped."""

_ATTRIBUTES: Final = {
    "image": "container.image.name",
    "container": "container.id",
    **{name: f"pycrictl.{name}" for name in ("pod", "outcome", "waited_s", "pulled_s", "attempt")},
    **{name: f"pycrictl.{name}" for name in ("bytes", "reused", "path", "size_bytes", "end")},
}
"""The attributes of a span, by the log fields that supply them."""


class PullTracer:
    """Traces pulls and copies to a collector at ``HOST:PORT``."""

    def __init__(self, endpoint: str, *, log: Log) -> None:
        self._endpoint = endpoint
        self._log = log
        self._open: OrderedDict[str, Span] = OrderedDict()
        self._ended: deque[Span] = deque(maxlen=MAX_UNSENT)
        self._sending: asyncio.Task[None] | None = None
        self._has_complained = False

    def watched(self, handle: Handler) -> Handler:
        """Return a handler that begins a span for each call and then calls ``handle``."""

        async def begin(request: CallRequest) -> Answer:
            return await handle(self._begin(request))

        return begin

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        span = self._open.pop(fields.get("trace", ""), None)
        if span is None:
            return
        attributes = {
            key: str(fields[field])
            for field, key in _ATTRIBUTES.items()
            if fields.get(field, "") not in ("", None)
        }
        error = str(fields.get("error", ""))
        end_span(span, error=error, attributes=attributes)
        self._ended.append(span)
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send(SEND_S))

    async def stop(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        if self._ended:
            await self._send(0.0)

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

    async def _send(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
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
        self._sending = None
        if self._ended and after_s:  # meanwhile
            self._sending = asyncio.get_running_loop().create_task(self._send(SEND_S))
