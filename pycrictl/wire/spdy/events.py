"""What happens on a SPDY/3.1 connection, as ``pycrictl.wire.spdy.connection`` tells it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pycrictl.errors import RemoteProtocolError
from pycrictl.wire.spdy.headers import HeaderFields

__all__ = [
    "DataReceived",
    "Event",
    "GoAwayReceived",
    "HeadersReceived",
    "PingAnswered",
    "StreamAccepted",
    "StreamEnded",
    "StreamOffered",
    "StreamReset",
]


@dataclass(frozen=True, slots=True)
class StreamOffered:
    """The peer opened a stream; accept or reset it. Data may come before that."""

    stream_id: int
    headers: HeaderFields
    is_unidirectional: bool


@dataclass(frozen=True, slots=True)
class StreamAccepted:
    """The peer accepted our stream: data can be sent."""

    stream_id: int
    headers: HeaderFields


@dataclass(frozen=True, slots=True)
class HeadersReceived:
    """The peer sent more headers on an open stream."""

    stream_id: int
    headers: HeaderFields


@dataclass(frozen=True, slots=True)
class DataReceived:
    """The peer sent data, never empty, on a stream: maybe a view of what was fed."""

    stream_id: int
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """The peer sends no more on a stream. We may go on."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class StreamReset:
    """A stream is gone in both directions.

    Attributes:
        status: one of ResetStatus, or an unknown number.
        error: what the peer did wrong, if it was us who reset the stream for it.
    """

    stream_id: int
    status: int
    error: RemoteProtocolError | None = None


@dataclass(frozen=True, slots=True)
class PingAnswered:
    """The peer answered our ping."""

    ping_id: int


@dataclass(frozen=True, slots=True)
class GoAwayReceived:
    """The peer takes no new streams. Those it never looked at were reset before this event."""

    status: int


Event = (
    StreamOffered
    | StreamAccepted
    | HeadersReceived
    | DataReceived
    | StreamEnded
    | StreamReset
    | PingAnswered
    | GoAwayReceived
)
