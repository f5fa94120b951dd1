"""Traces for an OpenTelemetry collector (OTLP over gRPC): spans, their context, the exporter.

A command makes one trace a run: a root span named after the command, and a span for each call to
the runtime, which gets the trace's context with the call (W3C ``traceparent``) and may add spans of
its own.
"""

from __future__ import annotations

import re
import secrets
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from pycrictl._proto import otlp_pb2
from pycrictl.cri.calls.channel import GrpcCall, GrpcChannel
from pycrictl.cri.calls.errmap import one_line
from pycrictl.errors import StreamError
from pycrictl.wire import codes

EXPORT_TIMEOUT_S: Final = 2.0
MILLION: Final = 1_000_000
TRACEPARENT: Final = "traceparent"
"""The metadata that carries a context."""

_EXPORT: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_NANOS: Final = 1_000_000_000
_TRACEPARENT: Final = re.compile(
    r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})"
)


class Context(NamedTuple):
    """A place in a trace, as calls carry it (W3C Trace Context)."""

    trace_id: bytes
    span_id: bytes
    is_sampled: bool = True

    @classmethod
    def parse(cls, traceparent: str) -> Context | None:
        """Read a header; None if it is not one of version 00."""
        match = _TRACEPARENT.fullmatch(traceparent)
        if match is None:
            return None
        trace_id, span_id = bytes.fromhex(match[1]), bytes.fromhex(match[2])
        return cls(trace_id, span_id, bool(int(match[3], 16) & 1))

    def __str__(self) -> str:
        """Return the header's value."""
        return f"00-{self.trace_id.hex()}-{self.span_id.hex()}-{int(self.is_sampled):02x}"


Span = otlp_pb2.Span


def begin_span(name: str, parent: Context | None, start_ns: int, *, is_call: bool = False) -> Span:
    """Begin a span below another one, or a trace of its own; ``is_call`` is to another program."""
    kind = Span.SpanKind.SPAN_KIND_CLIENT if is_call else Span.SpanKind.SPAN_KIND_INTERNAL
    return Span(
        name=name,
        trace_id=secrets.token_bytes(16) if parent is None else parent.trace_id,
        span_id=secrets.token_bytes(8),
        parent_span_id=b"" if parent is None else parent.span_id,
        kind=kind,
        start_time_unix_nano=start_ns,
    )


def end_span(
    span: Span, end_ns: int, *, error: str = "", attributes: Mapping[str, str] | None = None
) -> None:
    """End a span; ``error`` says why it failed."""
    span.end_time_unix_nano = end_ns
    if error:
        span.status.message = error
        span.status.code = otlp_pb2.Status.StatusCode.STATUS_CODE_ERROR
    for key, text in (attributes or {}).items():
        span.attributes.add(key=key).value.string_value = text


def context_of(span: Span) -> Context:
    """Return what is handed on with calls that belong to a span."""
    return Context(span.trace_id, span.span_id)


class Tracer:
    """Collects the spans of one run for a collector at ``HOST:PORT``."""

    def __init__(
        self,
        endpoint: str,
        *,
        service: str = "pycrictl",
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._exporter = Exporter(endpoint, service=service)
        self._wall_clock = wall_clock
        self._spans: list[Span] = []

    @contextmanager
    def recording(self, command: str, *, warn: Callable[[str], object]) -> Iterator[None]:
        """Record a run from its beginning to its end, and send it to the collector.

        A failure to send it is a warning: it must not cover the command's own error and status.
        """
        span = self.begin(command)
        try:
            yield
        finally:
            self.end(span, str(sys.exception() or ""))
            try:
                self.export()
            except StreamError as exc:
                warn(exc.message)

    def begin(self, name: str) -> Span:
        """Begin a span; the first one is the root, all others are its children.

        The name of a call is the service and the method, with a slash between them.
        """
        parent = context_of(self._spans[0]) if self._spans else None
        span = begin_span(name, parent, now_ns(self._wall_clock), is_call=parent is not None)
        self._spans.append(span)
        return span

    def end(self, span: Span, error: str = "") -> None:
        """End a span; ``error`` says why it failed."""
        attributes = {}
        if span.parent_span_id:  # as OpenTelemetry's conventions for RPC have it
            service, _, method = span.name.partition("/")
            attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}
        end_span(span, now_ns(self._wall_clock), error=error, attributes=attributes)

    def context(self, span: Span) -> tuple[str, str]:
        """Return the metadata that hands the trace on with a call."""
        return TRACEPARENT, str(context_of(span))

    def export(self) -> None:
        """Send what there is; raises as ``Exporter.send``."""
        for span in self._spans:
            if not span.end_time_unix_nano:
                self.end(span)
        self._exporter.send(self._spans)


class Exporter:
    """Sends spans to a collector at ``HOST:PORT``."""

    def __init__(self, endpoint: str, *, service: str = "pycrictl") -> None:
        self._endpoint = endpoint
        self._service = service

    def send(self, spans: Iterable[Span]) -> None:
        """Send spans that have ended; StreamError if the collector does not take them."""
        host, _, port = self._endpoint.rpartition(":")
        refusal = f'the collector at "{self._endpoint}" does not take traces:'
        try:
            socket.create_connection((host.strip("[]"), int(port)), EXPORT_TIMEOUT_S).close()
        except OSError as exc:
            raise StreamError(f"{refusal} {(exc.strerror or str(exc)).lower()}") from None
        with GrpcChannel(f"dns:///{self._endpoint}") as channel:
            call = GrpcCall(channel, _EXPORT, self._request(spans), timeout_s=EXPORT_TIMEOUT_S)
            deque(call.messages(), maxlen=0)
        if call.status is not None and call.status.code != codes.OK:
            raise StreamError(f"{refusal} {one_line(call.status.details)}")

    def _request(self, spans: Iterable[Span]) -> bytes:
        request = otlp_pb2.ExportTraceServiceRequest()
        resource_spans = request.resource_spans.add()
        name = resource_spans.resource.attributes.add(key="service.name")
        name.value.string_value = self._service
        scope_spans = resource_spans.scope_spans.add()
        scope_spans.scope.name = "pycrictl"
        scope_spans.spans.extend(spans)
        return request.SerializeToString()


def now_ns(wall_clock: Callable[[], float] = time.time) -> int:
    """Return the time as spans have it."""
    return int(wall_clock() * _NANOS)


def is_sampled(rate_per_million: int) -> bool:
    """Return whether this run is traced: always below 0, never at 0, else by chance."""
    if rate_per_million < 0:
        return True
    return secrets.randbelow(MILLION) < rate_per_million
