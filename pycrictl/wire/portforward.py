"""A connection to a port of a pod, over SPDY or WebSocket. Pure.

Over SPDY it is a pair of streams with the same ``requestid``: one for an error text, one for the
data. Over WebSocket the port is named in the RPC: channel 0 has the data and channel 1 the error
text, and either begins with the port as 16 bits, little-endian. Both can carry several connections
to ports. Ours carry one (``streaming.forwarder`` says why).

Only SPDY can end one direction alone. containerd takes that for the end of the whole, and allows
the other direction one more second.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pycrictl.errors import LocalProtocolError, RemoteProtocolError, StreamError
from pycrictl.wire.messages import CLIENT, Messages, by_channel
from pycrictl.wire.spdy.streams import Event as SpdyEvent
from pycrictl.wire.spdy.streams import (
    SpdyConnection,
    StreamAccepted,
    StreamEnded,
    StreamReceived,
    StreamReset,
)

SPDY_PROTOCOL: Final = "portforward.k8s.io"
WEBSOCKET_PROTOCOL: Final = "v4.channel.k8s.io"

MAX_ERROR_BYTES: Final = 65536
"""Longest error text; what is beyond it is cut off."""

MESSAGE_BYTES: Final = 32768
"""Most data in a WebSocket message of ours."""

_MAX_PORT: Final = 65535
_LOST: Final = "the connection to the runtime ended"


@dataclass(frozen=True, slots=True)
class ForwardOpened:
    """Data can be sent. Whether anything listens in the pod is not known yet."""


@dataclass(frozen=True, slots=True)
class ForwardReceived:
    """The next bytes from the pod. Whoever keeps a view keeps all of what was fed with it."""

    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class ForwardEnded:
    """The pod sends no more."""


@dataclass(frozen=True, slots=True)
class ForwardClosed:
    """The connection is gone. ``error`` says what went wrong, or is empty."""

    error: str


Event = ForwardOpened | ForwardReceived | ForwardEnded | ForwardClosed


class PortForward(ABC):
    """The client's side of a forwarded connection; see ``port_forward``.

    Feed it with ``receive_data`` and ``receive_eof``, then take ``events_received``, and send
    ``data_to_send`` after each call of any method. The two feeding methods never raise for what
    the peer does: the last event is a ForwardClosed.

    Attributes:
        is_over: nothing more will come, or be sent.
        can_end: whether ``end`` works.
    """

    can_end: bool

    def __init__(self) -> None:
        self.is_over = False
        self._events: list[Event] = []

    def events_received(self) -> list[Event]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Send data to the pod. It is dropped if the connection is gone.

        Raises:
            LocalProtocolError: before ForwardOpened, or after ``end``.
        """

    @abstractmethod
    def end(self) -> None:
        """Tell the pod that no more data comes. Has no effect if the connection is gone.

        Raises:
            StreamError: this transport cannot do that.
            LocalProtocolError: before ForwardOpened, or a second time.
        """

    @abstractmethod
    def receive_data(self, data: bytes, now: float = 0.0) -> None:
        """Take in bytes from the peer at a time in seconds. They are dropped if all is over."""

    @abstractmethod
    def receive_eof(self) -> None:
        """Take in that the peer sends no more, in whatever way that came about."""

    @abstractmethod
    def data_to_send(self) -> Sequence[bytes | memoryview]:
        """Return what to send since the last call."""

    def _close(self, error: str) -> None:
        if not self.is_over:
            self.is_over = True
            self._events.append(ForwardClosed(error))


def _text(data: bytes | bytearray) -> str:
    return data.decode(errors="replace").strip()


class _SpdyForward(PortForward):
    can_end = True

    def __init__(self, port: int) -> None:
        super().__init__()
        self._connection = SpdyConnection()
        headers = (("port", str(port)), ("requestid", "0"))
        self._error_id = self._connection.open_stream((("streamtype", "error"), *headers))
        self._data_id = self._connection.open_stream((("streamtype", "data"), *headers))
        self._not_accepted = {self._error_id, self._data_id}
        self._still_sending = {self._error_id, self._data_id}
        self._error = bytearray()

    def send(self, data: bytes) -> None:
        if data and not self.is_over:
            self._connection.send_data(self._data_id, data)

    def end(self) -> None:
        if not self.is_over:
            self._connection.end_stream(self._data_id)

    def receive_data(self, data: bytes, now: float = 0.0) -> None:
        self._connection.receive_data(data, now)
        for event in self._connection.events_received():
            if not self.is_over:
                self._receive_event(event)
        if self._connection.error is not None:
            self._close(_text(self._error) or self._connection.error.message)

    def receive_eof(self) -> None:
        self._close(_text(self._error) or _LOST)

    def data_to_send(self) -> Sequence[bytes | memoryview]:
        return self._connection.data_to_send()

    def _receive_event(self, event: SpdyEvent) -> None:
        match event:
            case StreamReceived() if event.stream_id == self._data_id:
                self._events.append(ForwardReceived(event.data))
            case StreamReceived():
                self._error += event.data[: MAX_ERROR_BYTES - len(self._error)]
            case StreamAccepted():
                self._not_accepted.discard(event.stream_id)
                if event.stream_id == self._data_id:
                    self._events.append(ForwardOpened())
                # Nothing is ever sent on the other one, and the peer may wait to hear that. It may
                # have reset it meanwhile: the connection is ahead of its events.
                elif self._connection.can_send(event.stream_id):
                    self._connection.end_stream(event.stream_id)
            case StreamReset():
                is_refused = event.stream_id in self._not_accepted
                done = "refused to forward" if is_refused else "reset"
                self._close(_text(self._error) or f"the runtime {done} the connection")
            case StreamEnded():
                self._still_sending.discard(event.stream_id)
                if event.stream_id == self._data_id:
                    self._events.append(ForwardEnded())
                # The end of the data comes first, also when there is an error text to follow.
                if not self._still_sending:
                    self._close(_text(self._error))


@dataclass(slots=True)
class _Channel:
    is_error: bool
    port: bytes = b""
    text: bytes = b""


class _WebSocketForward(PortForward):
    can_end = False

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port.to_bytes(2, "little")
        self._channels = (_Channel(is_error=False), _Channel(is_error=True))
        self._is_opened = False
        self._websocket = Messages(CLIENT, peer="the runtime")

    def send(self, data: bytes) -> None:
        if self.is_over:
            return
        if not self._is_opened:
            raise LocalProtocolError("data sent to a port that is not opened yet")
        view = memoryview(data)
        for start in range(0, len(data), MESSAGE_BYTES):
            self._websocket.send(b"\0" + view[start : start + MESSAGE_BYTES])

    def end(self) -> None:
        if not self.is_over:
            raise StreamError(
                "one direction of a forwarded connection cannot be ended over WebSocket",
                hint="use the transport spdy",
            )

    def receive_data(self, data: bytes, now: float = 0.0) -> None:
        self._websocket.receive_data(data, now)
        try:
            for number, content in by_channel(self._websocket.messages_received()):
                if not self.is_over:
                    self._receive_message(number, content)
        except RemoteProtocolError as exc:
            self._close(exc.message)
        if self._websocket.is_over:
            self._close("" if self._websocket.error is None else self._websocket.error.message)

    def receive_eof(self) -> None:
        self._close("")

    def data_to_send(self) -> Sequence[bytes | memoryview]:
        return self._websocket.data_to_send()

    def _receive_message(self, number: int, data: memoryview) -> None:
        if number >= len(self._channels):
            raise RemoteProtocolError("the peer sent data on a channel that does not exist")
        channel = self._channels[number]
        missing = len(self._port) - len(channel.port)
        if missing:
            channel.port += data[:missing]
            data = data[missing:]
            self._check_ports()
        if channel.is_error:
            channel.text += data[: MAX_ERROR_BYTES - len(channel.text)]
            if channel.text:
                self._close(_text(channel.text))
        elif data:
            self._events.append(ForwardReceived(data))

    def _check_ports(self) -> None:
        ports = [channel.port for channel in self._channels]
        if any(len(port) == len(self._port) and port != self._port for port in ports):
            raise RemoteProtocolError("the peer forwards another port than it was asked for")
        if not self._is_opened and ports == [self._port] * 2:
            self._is_opened = True
            self._events.append(ForwardOpened())


def port_forward(transport: Literal["spdy", "websocket"], port: int) -> PortForward:
    """Begin to forward to a port of a pod; over WebSocket it was named in the RPC.

    Raises:
        LocalProtocolError: it is not a port.
    """
    if not 0 < port <= _MAX_PORT:
        raise LocalProtocolError(f"{port} is not a port")
    return _SpdyForward(port) if transport == "spdy" else _WebSocketForward(port)
