"""A connection to a port of a pod, over SPDY or WebSocket. Pure.

It has a channel for the data and one for an error text. Over SPDY they are streams with the same
``requestid``. Over WebSocket the port is named in the RPC, and the data received on each channel
starts with the port as 16 bits, little-endian. Either transport can carry several connections to
ports; ours carries one (``streams.forwarder`` says why).

Only SPDY can end one direction alone. containerd treats that as the end of the connection, and
allows the other direction one more second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pycrictl.streams.wire import channels
from pycrictl.streams.wire.channels import (
    ChannelEnded,
    ChannelReceived,
    Channels,
    ChannelsOpened,
    WebSocketChannels,
)
from pycrictl.streams.wire.spdy import SpdyChannels
from pycrictl.streams.wire.websocket import Dropped

SPDY_PROTOCOL: Final = "portforward.k8s.io"
WEBSOCKET_PROTOCOL: Final = "v4.channel.k8s.io"

MAX_ERROR_BYTES: Final = 65536
"""Longest error text; a longer one is truncated."""

DATA: Final = 0
_ERROR: Final = 1


@dataclass(frozen=True, slots=True)
class ForwardClosed:
    """The connection has ended. ``error`` says what went wrong, or is empty."""

    error: str


Event = ChannelsOpened | ChannelReceived | ChannelEnded | ForwardClosed
"""Channel events are those of the data channel only. Open channels do not imply that anything
listens in the pod."""


class PortForward:
    """The client's side of a forwarded connection; see ``port_forward``.

    Feed the connection, then take ``events_received`` from here; the last is a ForwardClosed.

    Attributes:
        connection: its channels; write to ``DATA``.
        is_over: no more events will follow.
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
            is_usual = isinstance(error, Dropped)  # runtimes end a WebSocket without a close
            self._close(error.message if error is not None and not is_usual else "")
        events, self._events = self._events, []
        return events

    def _take(self, event: channels.Event) -> None:
        match event:
            case ChannelReceived():
                self._receive(event.channel, event.data)
            case ChannelsOpened():
                self._open()
                # We never send on the error channel, and the peer may wait for its end.
                self.connection.end(_ERROR)
            case ChannelEnded(is_reset=True):
                done = "reset" if self._is_opened else "refused to forward"
                self._close(f"the runtime {done} the connection")
            case ChannelEnded():
                self._still_sending.discard(event.channel)
                if event.channel == DATA:
                    self._events.append(event)
                # The data ends first, even if an error text follows.
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
            if self._error and not self.connection.can_end:  # the channel's end never follows
                self._close("")
        elif data:
            self._events.append(ChannelReceived(DATA, data))

    def _open(self) -> None:
        if not self._is_opened and not any(self._missing.values()):
            self._is_opened = True
            self._events.append(ChannelsOpened())

    def _close(self, reason: str) -> None:
        """Close with the runtime's error text if there is one, else with ``reason``."""
        if not self.is_over:
            self.is_over = True
            self._events.append(
                ForwardClosed(self._error.decode(errors="replace").strip() or reason)
            )


def port_forward(transport: Literal["spdy", "websocket"], port: int) -> PortForward:
    """Start forwarding to a port of a pod; over WebSocket the RPC has named it already."""
    if transport == "websocket":
        return PortForward(WebSocketChannels(2), port.to_bytes(2, "little"))
    headers = (("port", str(port)), ("requestid", "0"))
    names = {_ERROR: "error", DATA: "data"}
    return PortForward(
        SpdyChannels({channel: (("streamtype", name), *headers) for channel, name in names.items()})
    )
