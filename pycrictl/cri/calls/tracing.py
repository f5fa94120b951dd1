"""Traces of a command and its calls, for an OpenTelemetry collector (OTLP over gRPC).

One trace a run: a root span named after the command, and a span for each call to the runtime, which
gets the trace's context with the call (W3C ``traceparent``) and may add spans of its own.
"""

from __future__ import annotations

import secrets
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pycrictl._proto import otlp_pb2
from pycrictl.cri.calls.errmap import one_line
from pycrictl.cri.calls.obstacle import Obstacle
from pycrictl.cri.calls.transport import Connection
from pycrictl.errors import StreamError
from pycrictl.wire import codes

EXPORT_TIMEOUT_S: Final = 2.0
MILLION: Final = 1_000_000

_EXPORT: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_NANOS: Final = 1_000_000_000


@dataclass(slots=True)
class Span:
    """A piece of work that has begun. Times are in nanoseconds since 1970."""

    name: str
    span_id: bytes
    parent_id: bytes
    start_ns: int
    end_ns: int = 0
    error: str = ""

    @property
    def is_root(self) -> bool:
        """Whether it stands for the whole command."""
        return not self.parent_id


class Tracer:
    """Collects the spans of one run.

    Args:
        endpoint: ``HOST:PORT`` of the collector.
        service: the name that the program is called by.
        wall_clock: seconds since 1970.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        service: str = "pycrictl",
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._endpoint = endpoint
        self._service = service
        self._wall_clock = wall_clock
        self._trace_id = secrets.token_bytes(16)
        self._root: Span | None = None
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

        Args:
            name: the command; of a call the service and the method, with a slash between them.
        """
        parent_id = self._root.span_id if self._root is not None else b""
        span = Span(name, secrets.token_bytes(8), parent_id, self._now_ns())
        self._root = self._root or span
        self._spans.append(span)
        return span

    def end(self, span: Span, error: str = "") -> None:
        """End a span; ``error`` says why it failed."""
        span.end_ns = span.end_ns or self._now_ns()
        span.error = error

    def context(self, span: Span) -> tuple[str, str]:
        """Return the metadata that hands the trace on with a call."""
        return "traceparent", f"00-{self._trace_id.hex()}-{span.span_id.hex()}-01"

    def export(self) -> None:
        """Send what has ended.

        Raises:
            StreamError: the collector does not take it.
        """
        connection = Connection(
            self._connect, _EXPORT, self._request().SerializeToString(), timeout_s=EXPORT_TIMEOUT_S
        )
        deque(connection.messages(), maxlen=0)
        if connection.status is not None and connection.status.code != codes.OK:
            raise StreamError(
                f'the collector at "{self._endpoint}" does not take traces:'
                f" {one_line(connection.status.details)}"
            )

    def _connect(self, timeout_s: float) -> socket.socket | Obstacle:
        host, _, port = self._endpoint.rpartition(":")
        try:
            return socket.create_connection((host.strip("[]"), port), timeout_s)
        except OSError as exc:
            return Obstacle((exc.strerror or str(exc)).lower(), "")

    def _request(self) -> otlp_pb2.ExportTraceServiceRequest:
        request = otlp_pb2.ExportTraceServiceRequest()
        resource_spans = request.resource_spans.add()
        name = resource_spans.resource.attributes.add(key="service.name")
        name.value.string_value = self._service
        scope_spans = resource_spans.scope_spans.add()
        scope_spans.scope.name = "pycrictl"
        for span in self._spans:
            scope_spans.spans.append(self._message(span))
        return request

    def _message(self, span: Span) -> otlp_pb2.Span:
        kinds = otlp_pb2.Span.SpanKind
        outcomes = otlp_pb2.Status.StatusCode
        message = otlp_pb2.Span(
            trace_id=self._trace_id,
            span_id=span.span_id,
            parent_span_id=span.parent_id,
            name=span.name,
            kind=kinds.SPAN_KIND_INTERNAL if span.is_root else kinds.SPAN_KIND_CLIENT,
            start_time_unix_nano=span.start_ns,
            end_time_unix_nano=span.end_ns or self._now_ns(),
            status=otlp_pb2.Status(
                message=span.error,
                code=outcomes.STATUS_CODE_ERROR if span.error else outcomes.STATUS_CODE_UNSET,
            ),
        )
        if not span.is_root:  # as OpenTelemetry's conventions for RPC have it
            service, _, method = span.name.partition("/")
            attributes = (("rpc.system", "grpc"), ("rpc.service", service), ("rpc.method", method))
            for key, value in attributes:
                message.attributes.add(key=key).value.string_value = value
        return message

    def _now_ns(self) -> int:
        return int(self._wall_clock() * _NANOS)


def is_sampled(rate_per_million: int) -> bool:
    """Return whether this run is traced: always below 0, never at 0, else by chance."""
    if rate_per_million < 0:
        return True
    return secrets.randbelow(MILLION) < rate_per_million
