"""Connections to ports of a pod, over SPDY or WebSocket. Pure.

Over SPDY one connection to the runtime carries any number of forwarded connections. Each is a pair
of streams with the same ``requestid``: one for an error text, one for the data. Over WebSocket the
ports are named in the RPC, and there is one forwarded connection for each: channel 2i has its data
and 2i + 1 its error text, and either begins with the port as 16 bits, little-endian.

Only SPDY can end one direction alone. containerd takes that for the end of the whole, and allows
the other direction one more second.

A ``PortForward`` is fed with pieces, and wants pieces sent: over SPDY any pieces of the byte stream
after the upgrade, over WebSocket whole messages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from pycrictl.errors import LocalProtocolError, RemoteProtocolError, StreamError
from pycrictl.wire.spdy.connection import Connection, Side
from pycrictl.wire.spdy.events import DataReceived, StreamAccepted, StreamEnded, StreamReset
from pycrictl.wire.spdy.events import Event as SpdyEvent

__all__ = [
    "SPDY_PROTOCOL",
    "WEBSOCKET_PROTOCOL",
    "Event",
    "ForwardClosed",
    "ForwardEnded",
    "ForwardOpened",
    "ForwardReceived",
    "PortForward",
    "SpdyForward",
    "WebSocketForward",
]

SPDY_PROTOCOL: Final = "portforward.k8s.io"
WEBSOCKET_PROTOCOL: Final = "v4.channel.k8s.io"

MAX_ERROR_BYTES: Final = 65536
"""Longest error text; what is beyond it is cut off."""

MESSAGE_BYTES: Final = 32768
"""Most data in a WebSocket message of ours."""

_MAX_PORT: Final = 65535
_MAX_CHANNELS: Final = 256


@dataclass(frozen=True, slots=True)
class ForwardOpened:
    """Data can be sent. Whether anybody listens in the pod is not known yet."""

    number: int


@dataclass(frozen=True, slots=True)
class ForwardReceived:
    """The next bytes from the pod."""

    number: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ForwardEnded:
    """The pod sends no more."""

    number: int


@dataclass(frozen=True, slots=True)
class ForwardClosed:
    """A forwarded connection is gone. ``error`` says what went wrong, or is empty."""

    number: int
    error: str


Event = ForwardOpened | ForwardReceived | ForwardEnded | ForwardClosed


class PortForward(ABC):
    """The client's side of forwarded connections, each with a number.

    Feed it with ``receive_data`` and ``receive_eof``, then take ``events_received``, and send the
    pieces of ``data_to_send`` after each call of any method. The two feeding methods never raise
    for what the peer does: ``error`` says why it is over. Every connection that was opened ends
    with one ForwardClosed.

    Attributes:
        error: RemoteProtocolError if the peer broke the protocol, StreamError if it ended the
            connection while it still had something to forward, else None.
        is_over: nothing more will come, or be sent.
        can_end: whether ``end`` works.
    """

    can_end: bool

    def __init__(self) -> None:
        self.error: StreamError | None = None
        self.is_over = False
        self._events: list[Event] = []

    def events_received(self) -> list[Event]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    @abstractmethod
    def send(self, number: int, data: bytes) -> None:
        """Send data to the pod. It is thrown away if the connection is gone.

        Raises:
            LocalProtocolError: before ForwardOpened, or after ``end``.
        """

    @abstractmethod
    def end(self, number: int) -> None:
        """Tell the pod that no more data comes. Has no effect if the connection is gone.

        Raises:
            StreamError: this transport cannot tell it.
            LocalProtocolError: before ForwardOpened, or a second time.
        """

    @abstractmethod
    def receive_data(self, data: bytes) -> None:
        """Take in a piece from the peer. It is thrown away if all is over."""

    @abstractmethod
    def receive_eof(self) -> None:
        """Take in that the peer sends no more, in whatever way that came about."""

    @abstractmethod
    def data_to_send(self) -> list[bytes]:
        """Return the pieces to send since the last call."""


@dataclass(slots=True)
class _Pair:
    number: int
    error_id: int
    data_id: int
    not_accepted: set[int]
    still_sending: set[int]
    text: bytearray = field(default_factory=bytearray)

    @property
    def error(self) -> str:
        return self.text.decode(errors="replace").strip()


class SpdyForward(PortForward):
    """Any number of connections to any ports of one pod."""

    can_end = True

    def __init__(self) -> None:
        super().__init__()
        self._connection = Connection(Side.CLIENT, max_streams=0)
        self._pairs: dict[int, _Pair] = {}
        self._pair_of_stream: dict[int, _Pair] = {}
        self._opened = 0

    def open(self, port: int) -> int:
        """Open a connection to a port; return its number. Send nothing before ForwardOpened.

        Raises:
            LocalProtocolError: no port, or the peer takes no new connections.
        """
        _check_port(port)
        number = self._opened
        headers = (("port", str(port)), ("requestid", str(number)))
        error_id = self._connection.open_stream((("streamtype", "error"), *headers))
        data_id = self._connection.open_stream((("streamtype", "data"), *headers))
        pair = _Pair(number, error_id, data_id, {error_id, data_id}, {error_id, data_id})
        self._opened += 1
        self._pairs[number] = pair
        self._pair_of_stream[error_id] = self._pair_of_stream[data_id] = pair
        return number

    def send(self, number: int, data: bytes) -> None:
        pair = self._pairs.get(number)
        if pair is not None and data:
            self._connection.send_data(pair.data_id, data)

    def end(self, number: int) -> None:
        pair = self._pairs.get(number)
        if pair is not None:
            self._connection.end_stream(pair.data_id)

    def ping(self) -> None:
        """Send what keeps the peer from taking the connection for idle; no event follows."""
        self._connection.ping()

    def receive_data(self, data: bytes) -> None:
        self._connection.receive_data(data)
        for event in self._connection.events_received():
            self._receive_event(event)
        if self._connection.error is not None:
            self._end(self._connection.error)

    def receive_eof(self) -> None:
        self._connection.receive_eof()
        error = StreamError("the connection to the runtime ended")
        self._end(error if self._pairs else None)

    def data_to_send(self) -> list[bytes]:
        data = self._connection.data_to_send()
        return [data] if data else []

    def _receive_event(self, event: SpdyEvent) -> None:
        stream_id = getattr(event, "stream_id", 0)
        pair = self._pair_of_stream.get(stream_id)
        if pair is None:
            return
        match event:
            case DataReceived():
                if stream_id == pair.data_id:
                    self._events.append(ForwardReceived(pair.number, bytes(event.data)))
                else:
                    pair.text += event.data[: MAX_ERROR_BYTES - len(pair.text)]
            case StreamAccepted():
                pair.not_accepted.discard(stream_id)
                if stream_id == pair.data_id:
                    self._events.append(ForwardOpened(pair.number))
                # Nothing is ever sent on the other one, and the peer may wait to hear that. It may
                # have reset it meanwhile: the connection is ahead of its events.
                elif self._connection.can_send(stream_id):
                    self._connection.end_stream(stream_id)
            case StreamReset():
                refused = "the runtime refused to forward the connection"
                reset = "the runtime reset the connection"
                is_refused = stream_id in pair.not_accepted
                self._close(pair, pair.error or (refused if is_refused else reset))
            case StreamEnded():
                self._receive_end(pair, stream_id)
            case _:
                pass

    def _receive_end(self, pair: _Pair, stream_id: int) -> None:
        pair.still_sending.discard(stream_id)
        if stream_id == pair.data_id:
            self._events.append(ForwardEnded(pair.number))
        # The end of the data comes first, also when there is an error text to follow.
        if not pair.still_sending:
            self._close(pair, pair.error)

    def _close(self, pair: _Pair, error: str) -> None:
        self._events.append(ForwardClosed(pair.number, error))
        del self._pairs[pair.number]
        for stream_id in (pair.error_id, pair.data_id):
            del self._pair_of_stream[stream_id]
            self._connection.discard_stream(stream_id)

    def _end(self, error: StreamError | None) -> None:
        if self.is_over:
            return
        self.is_over = True
        self.error = error
        reason = "" if error is None else error.message
        for pair in self._pairs.values():
            self._events.append(ForwardClosed(pair.number, pair.error or reason))
        self._pairs.clear()
        self._pair_of_stream.clear()


@dataclass(slots=True)
class _Channel:
    index: int
    port: int
    is_error: bool
    head: bytes = b""


class WebSocketForward(PortForward):
    """One connection to each of the ports that were named in the RPC, numbered in their order."""

    can_end = False

    def __init__(self, ports: Sequence[int]) -> None:
        super().__init__()
        if not 0 < 2 * len(ports) <= _MAX_CHANNELS:
            raise LocalProtocolError("no port to forward, or too many for one WebSocket")
        for port in ports:
            _check_port(port)
        self._channels = [
            _Channel(index, port, is_error)
            for index, port in enumerate(ports)
            for is_error in (False, True)
        ]
        self._live = set(range(len(ports)))
        self._opened: set[int] = set()
        self._output: list[bytes] = []

    def send(self, number: int, data: bytes) -> None:
        if number not in self._live:
            return
        if number not in self._opened:
            raise LocalProtocolError("data sent to a port that is not opened yet")
        channel = bytes((2 * number,))
        for start in range(0, len(data), MESSAGE_BYTES):
            self._output.append(channel + data[start : start + MESSAGE_BYTES])

    def end(self, number: int) -> None:
        if number in self._live:
            raise StreamError(
                "one direction of a forwarded connection cannot be ended over WebSocket",
                hint="use the transport spdy",
            )

    def receive_data(self, data: bytes) -> None:
        if self.is_over or not data:
            return
        if data[0] < len(self._channels):
            self._receive(self._channels[data[0]], data[1:])
        else:
            self._end(RemoteProtocolError("the peer sent data on a channel that does not exist"))

    def receive_eof(self) -> None:
        self._end(None)

    def data_to_send(self) -> list[bytes]:
        output, self._output = self._output, []
        return output

    def _receive(self, channel: _Channel, data: bytes) -> None:
        missing = 2 - len(channel.head)
        if missing:
            channel.head += data[:missing]
            data = data[missing:]
            if len(channel.head) == 2:
                self._check_head(channel)
        if not data or channel.index not in self._live or self.is_over:
            return
        if channel.is_error:
            text = data[:MAX_ERROR_BYTES].decode(errors="replace").strip()
            self._live.discard(channel.index)
            self._events.append(ForwardClosed(channel.index, text))
        else:
            self._events.append(ForwardReceived(channel.index, data))

    def _check_head(self, channel: _Channel) -> None:
        if int.from_bytes(channel.head, "little") != channel.port:
            self._end(RemoteProtocolError("the peer forwards another port than it was asked for"))
            return
        start = 2 * channel.index
        both = self._channels[start : start + 2]
        if channel.index in self._live and all(len(one.head) == 2 for one in both):
            self._opened.add(channel.index)
            self._events.append(ForwardOpened(channel.index))

    def _end(self, error: StreamError | None) -> None:
        if self.is_over:
            return
        self.is_over = True
        self.error = error
        reason = "" if error is None else error.message
        for number in sorted(self._live):
            self._events.append(ForwardClosed(number, reason))
        self._live.clear()


def _check_port(port: int) -> None:
    if not 0 < port <= _MAX_PORT:
        raise LocalProtocolError(f"{port} is not a port")
