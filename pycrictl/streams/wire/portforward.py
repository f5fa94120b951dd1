"""A connection to a port of a pod, over SPDY. Pure.

It has a channel for the data and one for an error text: streams with the same ``requestid``. One
SPDY connection can carry several of them; ours carries one (``streams.forwarder`` says why).

Runtimes have it over WebSocket, too, which cannot end one direction alone. containerd treats that
as the end of the connection, and allows the other direction one more second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pycrictl.streams.wire import channels
from pycrictl.streams.wire.channels import ChannelEnded, ChannelReceived, ChannelsOpened
from pycrictl.streams.wire.spdy import SpdyChannels

PROTOCOL: Final = "portforward.k8s.io"

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
    """The client's side of a connection to ``port``, which has just been upgraded.

    Feed the connection, then take ``events_received`` from here; the last is a ForwardClosed.

    Attributes:
        connection: its channels; write to ``DATA``.
        is_over: no more events will follow.
    """

    def __init__(self, port: int) -> None:
        headers = (("port", str(port)), ("requestid", "0"))
        names = {_ERROR: "error", DATA: "data"}
        self.connection = SpdyChannels(
            {channel: (("streamtype", name), *headers) for channel, name in names.items()}
        )
        self.is_over = False
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
            self._close(error.message if error is not None else "")
        events, self._events = self._events, []
        return events

    def _take(self, event: channels.Event) -> None:
        match event:
            case ChannelReceived() if event.channel == _ERROR:
                self._error += event.data[: MAX_ERROR_BYTES - len(self._error)]
            case ChannelsOpened():
                self._is_opened = True
                self._events.append(event)
                # We never send on the error channel, and the peer may wait for its end.
                self.connection.end(_ERROR)
            case ChannelReceived():
                self._events.append(event)
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

    def _close(self, reason: str) -> None:
        """Close with the runtime's error text if there is one, else with ``reason``."""
        if not self.is_over:
            self.is_over = True
            self._events.append(
                ForwardClosed(self._error.decode(errors="replace").strip() or reason)
            )
