"""The channels of a stream (exec, attach, port-forward), over either transport. Pure.

Over WebSocket the first byte of a message (``websocket``) is the number of its channel; over
SPDY (``spdy``) each channel is a stream of the connection. Both start on a connection
that has just been upgraded, and are fed the bytes received on it.

No runtime offers version 5 of the protocol, in which WebSocket can end a channel. Without it, a
command that reads its standard input to the end never exits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pycrictl.base.errors import RemoteProtocolError, StreamError
from pycrictl.streams.wire.websocket import CLIENT, Messages

MESSAGE_BYTES: Final = 32768
"""Most data in one message or frame that we send: the size of Go's copy buffer."""


@dataclass(frozen=True, slots=True)
class ChannelsOpened:
    """All channels are open: data can be sent."""


@dataclass(slots=True)  # creating a frozen one costs more than all other work for a frame
class ChannelReceived:
    """The peer sent data, never empty. If ``data`` is a view, it keeps the whole input alive."""

    channel: int
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class ChannelEnded:
    """The peer sends no more on a channel; with ``is_reset`` it accepts no more either."""

    channel: int
    is_reset: bool = False


Event = ChannelsOpened | ChannelReceived | ChannelEnded


class Channels(ABC):
    """The client's side of a connection with channels.

    Feed it with ``receive_data`` and ``receive_eof``, then take ``events_received``, and send the
    pieces of ``data_to_send`` after every method call. The two feeding methods never raise because
    of the peer, and ignore input once ``is_over`` is true.

    Attributes:
        error: RemoteProtocolError if the peer broke the protocol, StreamError if it disconnected
            without a proper end, else None.
        is_over: whether no more events will follow.
        can_end: whether ``end`` has an effect.
    """

    can_end = True

    def __init__(self) -> None:
        self.error: StreamError | None = None
        self.is_over = False
        self._events: list[Event] = []

    def events_received(self) -> list[Event]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    @abstractmethod
    def send(self, channel: int, data: bytes) -> None:
        """Send data in pieces of a suitable size; drop it if the channel accepts none."""

    def end(self, channel: int) -> None:  # noqa: B027 - as it says
        """End our side of a channel. Has an effect over SPDY only."""

    def close(self) -> None:  # noqa: B027 - as it says
        """Close the connection. Has an effect over WebSocket only."""

    @abstractmethod
    def receive_data(self, data: bytes, now: float = 0.0) -> None:
        """Handle bytes from the peer, received at the time ``now`` in seconds."""

    @abstractmethod
    def receive_eof(self, error: StreamError | None = None) -> None:
        """Handle the end of the peer's data; ``error`` is set if the connection broke."""

    @abstractmethod
    def data_to_send(self) -> Sequence[bytes | memoryview]:
        """Return the bytes to send that were added since the last call."""

    def _finish(self, error: StreamError | None) -> None:
        if not self.is_over:
            self.is_over = True
            self.error = error


class WebSocketChannels(Channels):
    """Channels from 0 to ``count`` - 1 over WebSocket."""

    can_end = False

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count
        self._websocket = Messages(CLIENT, peer="the runtime")
        self._events.append(ChannelsOpened())

    def send(self, channel: int, data: bytes) -> None:
        view, number = memoryview(data), bytes((channel,))
        for start in range(0, len(data), MESSAGE_BYTES):
            self._websocket.send(number + view[start : start + MESSAGE_BYTES])

    def close(self) -> None:
        self._websocket.close()

    def receive_data(self, data: bytes, now: float = 0.0) -> None:
        if self.is_over:
            return
        self._websocket.receive_data(data, now)
        try:
            for message in self._websocket.messages_received():
                if len(message) <= 1:
                    continue  # no data, as in the first message
                if message[0] >= self._count:
                    raise RemoteProtocolError("the peer sent data on a channel that does not exist")
                self._events.append(ChannelReceived(message[0], message[1:]))
        except RemoteProtocolError as exc:
            self._finish(exc)
        if self._websocket.is_over:
            self._finish(self._websocket.error)

    def receive_eof(self, error: StreamError | None = None) -> None:
        self._websocket.receive_eof()
        self._finish(error or self._websocket.error)

    def data_to_send(self) -> Sequence[bytes | memoryview]:
        return self._websocket.data_to_send()
