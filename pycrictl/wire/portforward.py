"""A connection to a port of a pod, over SPDY or WebSocket. Pure.

It has a channel for the data and one for an error text. Over SPDY they are streams with the same
``requestid``. Over WebSocket the port is named in the RPC, and what comes on either channel begins
with the port as 16 bits, little-endian. Both can carry several connections to ports. Ours carry one
(``streaming.forwarder`` says why).

Only SPDY can end one direction alone. containerd takes that for the end of the whole, and allows
the other direction one more second.
"""

from __future__ import annotations

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
from pycrictl.wire.websocket import Dropped

SPDY_PROTOCOL: Final = "portforward.k8s.io"
WEBSOCKET_PROTOCOL: Final = "v4.channel.k8s.io"

MAX_ERROR_BYTES: Final = 65536
"""Longest error text; what is beyond it is cut off."""

DATA: Final = 0
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

    Feed the connection, then take ``events_received`` from here; the last is a ForwardClosed.

    Attributes:
        connection: its channels, of which ``DATA`` is to be written to.
        is_over: nothing more will come.
    """

    def __init__(self, connection: Channels, prefix: bytes = b"") -> None:
        self.connection = connection
        self.is_over = False
        self._missing = {DATA: prefix, _ERROR: prefix}
        self._is_opened = False
        self._still_sending = {DATA, _ERROR}
        self._error = bytearray()
        self._events: list[Event] = []

    def events_received(self) -> list[Event]:
        """Return the events since the last call."""
        for event in self.connection.events_received():
            if not self.is_over:
                self._take(event)
        if self.connection.is_over:
            error = self.connection.error
            is_usual = isinstance(error, Dropped)  # runtimes end a WebSocket without its close
            self._close(error.message if error is not None and not is_usual else "")
        events, self._events = self._events, []
        return events

    def _take(self, event: channels.Event) -> None:
        match event:
            case ChannelReceived():
                self._receive(event.channel, event.data)
            case ChannelsOpened():
                self._open()
                # Nothing is ever sent on the other one, and the peer may wait to hear that.
                self.connection.end(_ERROR)
            case ChannelEnded(is_reset=True):
                done = "reset" if self._is_opened else "refused to forward"
                self._close(f"the runtime {done} the connection")
            case ChannelEnded():
                self._still_sending.discard(event.channel)
                if event.channel == DATA:
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
            if self._error and not self.connection.can_end:  # no end follows it
                self._close("")
        elif data:
            self._events.append(ChannelReceived(DATA, data))

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
    names = {_ERROR: "error", DATA: "data"}
    return PortForward(
        SpdyChannels({channel: (("streamtype", name), *headers) for channel, name in names.items()})
    )
