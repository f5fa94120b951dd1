"""Traces for an OpenTelemetry collector (OTLP over gRPC): spans, their context, their export."""

from __future__ import annotations

import re
import secrets
import socket
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from pycrictl._proto import otlp_pb2
from pycrictl.base.errors import StreamError
from pycrictl.runtime.cri.calls.channel import GrpcCall, GrpcChannel
from pycrictl.runtime.cri.calls.errmap import one_line

EXPORT_TIMEOUT_S: Final = 2.0
TRACEPARENT: Final = "traceparent"
"""The metadata key of a trace's context."""

_EXPORT: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_TRACEPARENT: Final = re.compile(
    r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})"
)

Span = otlp_pb2.Span


class Context(NamedTuple):
    """A position in a trace, as propagated with calls (W3C Trace Context)."""

    trace_id: bytes
    span_id: bytes
    is_sampled: bool = True

    @classmethod
    def parse(cls, traceparent: str) -> Context | None:
        """Parse a ``traceparent`` header; None if it is not of version 00."""
        match = _TRACEPARENT.fullmatch(traceparent)
        if match is None:
            return None
        trace_id, span_id = bytes.fromhex(match[1]), bytes.fromhex(match[2])
        return cls(trace_id, span_id, bool(int(match[3], 16) & 1))


def traceparent(span: Span) -> str:
    """Return the header that propagates a span with its calls."""
    return f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01"


def begin_span(name: str, parent: Context | Span | None, *, is_call: bool = False) -> Span:
    """Begin a child span, or a new trace; ``is_call`` marks a call to another program."""
    kind = Span.SpanKind.SPAN_KIND_CLIENT if is_call else Span.SpanKind.SPAN_KIND_INTERNAL
    return Span(
        name=name,
        trace_id=secrets.token_bytes(16) if parent is None else parent.trace_id,
        span_id=secrets.token_bytes(8),
        parent_span_id=b"" if parent is None else parent.span_id,
        kind=kind,
        start_time_unix_nano=time.time_ns(),
    )


def end_span(span: Span, *, error: str = "", attributes: Mapping[str, str] | None = None) -> None:
    """End a span; ``error`` says why it failed."""
    span.end_time_unix_nano = time.time_ns()
    if error:
        span.status.message = error
        span.status.code = otlp_pb2.Status.StatusCode.STATUS_CODE_ERROR
    for key, text in (attributes or {}).items():
        span.attributes.add(key=key).value.string_value = text


def send(endpoint: str, service: str, spans: Iterable[Span]) -> None:
    """Send spans that have ended; raise StreamError if the collector does not accept them."""
    host, _, port = endpoint.rpartition(":")
    refusal = f'the collector at "{endpoint}" does not take traces:'
    if not (port.isdecimal() and len(port) < 6 and int(port) < 65536):
        raise StreamError(f"{refusal} its address is not HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), EXPORT_TIMEOUT_S).close()
    except OSError as exc:
        raise StreamError(f"{refusal} {(exc.strerror or str(exc)).lower()}") from None
    request = otlp_pb2.ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    resource_spans.resource.attributes.add(key="service.name").value.string_value = service
    scope_spans = resource_spans.scope_spans.add(spans=spans)
    scope_spans.scope.name = "pycrictl"
    with GrpcChannel(f"dns:///{endpoint}") as channel:
        message = request.SerializeToString()
        call = GrpcCall(channel, _EXPORT, message, timeout_s=EXPORT_TIMEOUT_S)
        deque(call.messages(), maxlen=0)
    if call.failure is not None:
        raise StreamError(f"{refusal} {one_line(call.failure.details)}")
