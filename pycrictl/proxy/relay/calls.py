"""What a call is to the proxy: caller, request, answer, record. Plain data, messages as bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from pycrictl.wire.grpc_http2 import Answer, Metadata

__all__ = [
    "Abandoned",
    "Answer",
    "CallRecord",
    "CallRequest",
    "Event",
    "Metadata",
    "Peer",
    "Requested",
    "RuntimeBroke",
]


class Peer(NamedTuple):
    """The process at the other end of a client's connection; -1 where the kernel does not say."""

    pid: int
    uid: int


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A call that the proxy answers itself, with its one message.

    Attributes:
        path: the method, ``/runtime.v1.ImageService/PullImage``.
        message: the request, still serialised; it may hold credentials.
        metadata: without the transport's own.
        timeout_s: the client's deadline, counted from the call's arrival; None without one.
    """

    path: str
    message: bytes = field(repr=False)
    metadata: Metadata = field(default=(), repr=False)
    timeout_s: float | None = None

    @property
    def trace(self) -> str:
        """The caller's place in a trace (W3C ``traceparent``); empty if it names none."""
        found = dict(self.metadata).get("traceparent", "")
        return found if isinstance(found, str) else ""


@dataclass(frozen=True, slots=True)
class CallRecord:
    """A call that is over, for the log. It holds nothing of its content.

    Attributes:
        code: of the gRPC status; None if the call ended without one, by a reset.
        request_bytes: data on the wire, with the few bytes that frame each message.
    """

    path: str
    code: int | None
    duration_s: float
    request_bytes: int
    response_bytes: int


@dataclass(frozen=True, slots=True)
class Requested:
    """An own call has all of its request; an answer is due."""

    stream_id: int
    request: CallRequest


@dataclass(frozen=True, slots=True)
class Abandoned:
    """An own call is over before its answer, which would be ignored."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class RuntimeBroke:
    """The runtime broke the protocol or a limit; its connection must be closed for that."""

    problem: str


Event: TypeAlias = Requested | Abandoned | RuntimeBroke | CallRecord
"""What happens on a client's connection."""
