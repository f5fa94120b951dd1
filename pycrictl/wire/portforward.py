"""A connection to a port of a pod, over SPDY or WebSocket. Pure.

It has a channel for the data and one for an error text. Over SPDY they are streams with the same
``requestid``. Over WebSocket the port is named in the RPC, and what comes on either channel begins
with the port as 16 bits, little-endian. Both can carry several connections to ports. Ours carry one
(``streaming.forwarder`` says why).

Only SPDY can end one direction alone. containerd takes that for the end of the whole, and allows
the other direction one more second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pycrictl.wire import channels
from pycrictl.wire.channels import (
    ChannelEnded,
    ChannelReceived,
    Channels,
    ChannelsOpened,
    WebSocketChannels,
)
from pycrictl.wire.spdy import SpdyChannels

SPDY_PROTOCOL: Final = "portforward.k8s.io"
WEBSOCKET_PROTOCOL: Final = "v4.channel.k8s.io"

MAX_ERROR_BYTES: Final = 65536
"""Longest error text; what is beyond it is cut off."""

_DATA: Final = 0
_ERROR: Final = 1


@dataclass(frozen=True, slots=True)
class ForwardClosed:
    """The connection is gone. ``error`` says what went wrong, or is empty."""

    error: str


Event = ChannelsOpened | ChannelReceived | ChannelEnded | ForwardClosed
"""Of the channels come only those of the data. Whether anything listens in the pod is not known
when they are open."""


class PortForward:
    """The client's side of a forwarded connection; see ``port_forward``.

    It is used as ``Channels``; the last event is a ForwardClosed.

    Attributes:
        is_over: nothing more will come, or be sent.
        can_end: whether ``end`` works.
    """

    def __init__(self, connection: Channels, prefix: bytes = b"") -> None:
        self.is_over = False
        self.can_end = connection.can_end
        self._connection = connection
        self._missing = {_DATA: prefix, _ERROR: prefix}
        self._is_opened = False
        self._still_sending = {_DATA, _ERROR}
        self._error = bytearray()
        self._events: list[Event] = []
        self._advance()

    def events_received(self) -> list[Event]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    def send(self, data: bytes) -> None:
        """Send data to the pod, after ChannelsOpened. It is dropped if the connection is gone."""
        if not self.is_over:
            self._connection.send(_DATA, data)

    def end(self) -> None:
        """Tell the pod that no more data comes, unless the connection is gone."""
        if not self.is_over:
            self._connection.end(_DATA)

    def receive_data(self, data: bytes, now: float = 0.0) -> None:
        """Take in bytes from the peer at a time in seconds. They are dropped if all is over."""
        self._connection.receive_data(data, now)
        self._advance()

    def receive_eof(self) -> None:
        """Take in that the peer sends no more, in whatever way that came about."""
        if not self.can_end:  # runtimes end a WebSocket without its close
            self._close("")
        self._connection.receive_eof()
        self._advance()

    def data_to_send(self) -> Sequence[bytes | memoryview]:
        """Return what to send since the last call."""
        return self._connection.data_to_send()

    def _advance(self) -> None:
        for event in self._connection.events_received():
            if not self.is_over:
                self._take(event)
        if self._connection.is_over:
            error = self._connection.error
            self._close(error.message if error is not None else "")

    def _take(self, event: channels.Event) -> None:
        match event:
            case ChannelReceived():
                self._receive(event.channel, event.data)
            case ChannelsOpened():
                self._open()
                # Nothing is ever sent on the other one, and the peer may wait to hear that.
                self._connection.end(_ERROR)
            case ChannelEnded(is_reset=True):
                done = "reset" if self._is_opened else "refused to forward"
                self._close(f"the runtime {done} the connection")
            case ChannelEnded():
                self._still_sending.discard(event.channel)
                if event.channel == _DATA:
                    self._events.append(event)
                # The end of the data comes first, also when there is an error text to follow.
                if not self._still_sending:
                    self._close("")

    def _receive(self, channel: int, data: bytes | memoryview) -> None:
        if missing := self._missing[channel]:
            begin = bytes(data[: len(missing)])
            if not missing.startswith(begin):
                self._close("the peer forwards another port than it was asked for")
                return
            self._missing[channel] = missing[len(begin) :]
            data = data[len(begin) :]
            self._open()
        if channel == _ERROR:
            self._error += data[: MAX_ERROR_BYTES - len(self._error)]
            if self._error and not self.can_end:  # no end follows it
                self._close("")
        elif data:
            self._events.append(ChannelReceived(_DATA, data))

    def _open(self) -> None:
        if not self._is_opened and not any(self._missing.values()):
            self._is_opened = True
            self._events.append(ChannelsOpened())

    def _close(self, reason: str) -> None:
        """Close with the runtime's own text, if there is one, else with another reason."""
        if not self.is_over:
            self.is_over = True
            self._events.append(
                ForwardClosed(self._error.decode(errors="replace").strip() or reason)
            )


def port_forward(transport: Literal["spdy", "websocket"], port: int) -> PortForward:
    """Begin to forward to a port of a pod; over WebSocket it was named in the RPC."""
    if transport == "websocket":
        return PortForward(WebSocketChannels(2), port.to_bytes(2, "little"))
    headers = (("port", str(port)), ("requestid", "0"))
    names = {_ERROR: "error", _DATA: "data"}
    return PortForward(
        SpdyChannels({channel: (("streamtype", name), *headers) for channel, name in names.items()})
    )
