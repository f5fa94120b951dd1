"""The channels of a stream (exec, attach, port-forward), whatever carries them. Pure.

Over WebSocket the first byte of a message (``wire.websocket``) is the number of its channel; over
SPDY (``wire.spdy``) each channel is a stream of the connection. Both begin on a connection
that has just been upgraded, and are fed with the pieces of its byte stream.

Only from version 5 of the protocol on, and never from a runtime itself, a WebSocket message of the
byte 255 and a channel ends that channel. So before 5 nothing can end the standard input over
WebSocket: what reads it to its end never ends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pycrictl.errors import RemoteProtocolError, StreamError
from pycrictl.wire.websocket import CLIENT, Messages, by_channel

MESSAGE_BYTES: Final = 32768
"""Most data in a message or frame of ours: what Go copies at once."""

_CLOSE: Final = 255


@dataclass(frozen=True, slots=True)
class ChannelsOpened:
    """All channels are there: data can be sent."""


@dataclass(slots=True)  # to make a frozen one takes longer than all else that a frame needs
class ChannelReceived:
    """The peer sent data, never empty: maybe a view, which keeps all of what was fed with it."""

    channel: int
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class ChannelEnded:
    """The peer sends no more on a channel; ``is_reset``: it takes no more, either."""

    channel: int
    is_reset: bool = False


Event = ChannelsOpened | ChannelReceived | ChannelEnded


class Channels(ABC):
    """The client's side of a connection with channels.

    Feed it with ``receive_data`` and ``receive_eof``, then take ``events_received``, and send the
    pieces of ``data_to_send`` after each call of any method. The two feeding methods never raise
    for what the peer does, and drop what comes when all is over.

    Attributes:
        error: RemoteProtocolError if the peer broke the protocol, StreamError if it left without
            the end that the protocol has, else None.
        is_over: nothing more will come.
        can_end: whether ``end`` works.
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
        """Send data, in pieces of a good size; dropped where the channel takes none."""

    @abstractmethod
    def end(self, channel: int) -> None:
        """Tell the peer that we send no more on a channel, where that can be told."""

    def ping(self) -> None:  # noqa: B027 - as it says
        """Ask the peer for a sign of life. Has an effect over SPDY only."""

    def close(self) -> None:  # noqa: B027 - as it says
        """Close the connection. Has an effect over WebSocket only."""

    @abstractmethod
    def receive_data(self, data: bytes, now: float = 0.0) -> None:
        """Take in bytes from the peer at a time in seconds."""

    @abstractmethod
    def receive_eof(self, error: StreamError | None = None) -> None:
        """Take in that the peer sends no more, and the error if the connection broke."""

    @abstractmethod
    def data_to_send(self) -> Sequence[bytes | memoryview]:
        """Return what to send since the last call."""

    def _finish(self, error: StreamError | None) -> None:
        if not self.is_over:
            self.is_over = True
            self.error = error


class WebSocketChannels(Channels):
    """Channels from 0 to ``count`` - 1 over WebSocket; ``can_end`` is for version 5."""

    def __init__(self, count: int, *, can_end: bool = False) -> None:
        super().__init__()
        self.can_end = can_end
        self._count = count
        self._websocket = Messages(CLIENT, peer="the runtime")
        self._events.append(ChannelsOpened())

    def send(self, channel: int, data: bytes) -> None:
        view, number = memoryview(data), bytes((channel,))
        for start in range(0, len(data), MESSAGE_BYTES):
            self._websocket.send(number + view[start : start + MESSAGE_BYTES])

    def end(self, channel: int) -> None:
        if self.can_end:
            self._websocket.send(bytes((_CLOSE, channel)))

    def close(self) -> None:
        self._websocket.close()

    def receive_data(self, data: bytes, now: float = 0.0) -> None:
        if self.is_over:
            return
        self._websocket.receive_data(data, now)
        try:
            for channel, content in by_channel(self._websocket.messages_received()):
                self._receive(channel, content)
        except RemoteProtocolError as exc:
            self._finish(exc)
        if self._websocket.is_over:
            self._finish(self._websocket.error)

    def receive_eof(self, error: StreamError | None = None) -> None:
        self._websocket.receive_eof()
        self._finish(error or self._websocket.error)

    def data_to_send(self) -> Sequence[bytes | memoryview]:
        return self._websocket.data_to_send()

    def _receive(self, channel: int, data: memoryview) -> None:
        if channel == _CLOSE and self.can_end:
            if len(data) != 1 or data[0] >= self._count:
                raise RemoteProtocolError("the peer closed a channel that does not exist")
            self._events.append(ChannelEnded(data[0], is_reset=True))
        # A message without data, as the first one always is, says nothing.
        elif data:
            if channel >= self._count:
                raise RemoteProtocolError("the peer sent data on a channel that does not exist")
            self._events.append(ChannelReceived(channel, data))
