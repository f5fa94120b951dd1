"""A span for each pull and copy, in the trace of the call that requested it.

The runtime gets the span as the parent of its own. The event of the end of a pull or copy ends the
span and supplies its attributes. Spans are sent to an OpenTelemetry collector (OTLP over gRPC).
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from pycrictl._proto import otlp_pb2
from pycrictl._proto.otlp_pb2 import Span
from pycrictl.base.servicelog import Log
from pycrictl.proxy.events import CopyEnded, Event, PullRecorded
from pycrictl.proxy.upstream import Answer, CallRequest, Handler
from pycrictl.runtime.cri.calls.channel import GrpcCall, GrpcChannel
from pycrictl.runtime.cri.calls.errmap import one_line
from pycrictl.streams.loop import end_tasks, in_thread

SEND_S: Final = 2.0
"""How long an ended span waits, so that others are sent with it."""

EXPORT_TIMEOUT_S: Final = 2.0

MAX_OPEN: Final = 4096
MAX_UNSENT: Final = 4096
"""Beyond these numbers, the oldest spans are dropped."""

TRACEPARENT: Final = "traceparent"
"""The metadata key of a trace's context."""

_EXPORT: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_CONTEXT: Final = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")


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
        span.end_time_unix_nano = time.time_ns()
        if error:
            span.status.message = error
            span.status.code = otlp_pb2.Status.StatusCode.STATUS_CODE_ERROR
        for key, value in attributes.items():
            if value not in ("", None):
                span.attributes.add(key=key).value.string_value = str(value)
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
        span = Span(
            name=request.path.rpartition("/")[2],
            trace_id=secrets.token_bytes(16) if parent is None else parent.trace_id,
            span_id=secrets.token_bytes(8),
            parent_span_id=b"" if parent is None else parent.span_id,
            kind=Span.SpanKind.SPAN_KIND_INTERNAL,
            start_time_unix_nano=time.time_ns(),
        )
        trace = f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01"
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
        problem = await in_thread(lambda: send(self._endpoint, spans))
        if problem and not self._has_complained:
            self._log.warning("no_traces", collector=self._endpoint, error=problem)
        self._has_complained = bool(problem)


class Context(NamedTuple):
    """A position in a trace, as propagated with calls (W3C Trace Context)."""

    trace_id: bytes
    span_id: bytes
    is_sampled: bool = True

    @classmethod
    def parse(cls, traceparent: str) -> Context | None:
        """Parse a ``traceparent`` header; None if it is not of version 00."""
        match = _CONTEXT.fullmatch(traceparent)
        if match is None:
            return None
        trace_id, span_id = bytes.fromhex(match[1]), bytes.fromhex(match[2])
        return cls(trace_id, span_id, bool(int(match[3], 16) & 1))


def send(endpoint: str, spans: Iterable[Span]) -> str:
    """Send spans that have ended; return why the collector does not accept them, or ""."""
    request = otlp_pb2.ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    resource_spans.resource.attributes.add(key="service.name").value.string_value = "pycrictl-proxy"
    scope_spans = resource_spans.scope_spans.add(spans=spans)
    scope_spans.scope.name = "pycrictl"
    with GrpcChannel(f"dns:///{endpoint}") as channel:
        message = request.SerializeToString()
        call = GrpcCall(channel, _EXPORT, message, timeout_s=EXPORT_TIMEOUT_S)
        deque(call.messages(), maxlen=0)
    return "" if call.failure is None else one_line(call.failure.details)
