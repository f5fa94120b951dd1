"""The protocol of a remote command (exec, attach): its streams and its outcome. Pure.

The outcome is a Status object (``metav1.Status``), as in version 4 of the protocol, which every CRI
runtime supports.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal

from pycrictl.base.errors import RemoteProtocolError, StreamError
from pycrictl.base.foreign import parse
from pycrictl.streams.wire import channels
from pycrictl.streams.wire.channels import (
    ChannelEnded,
    ChannelReceived,
    Channels,
    ChannelsOpened,
    WebSocketChannels,
)
from pycrictl.streams.wire.spdy import HeaderFields, SpdyChannels

PROTOCOL: Final = "v4.channel.k8s.io"
"""The version to offer, over either transport."""

MAX_STATUS_BYTES: Final = 1 << 20
"""Longest outcome accepted; an outcome repeats the command's arguments."""

_NON_ZERO: Final = "NonZeroExitCode"
_EXIT_CODE: Final = re.compile("-?[0-9]{1,10}")
_MAX_SIZE: Final = 65535
_MAX_TRIES: Final = 16


class Channel(IntEnum):
    """A stream of a command, as WebSocket numbers it."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2
    ERROR = 3
    RESIZE = 4


@dataclass(frozen=True, slots=True)
class Streams:
    """The streams requested in the RPC beside stdout; the same ones must be opened here."""

    stdin: bool = False
    stderr: bool = True
    tty: bool = False


@dataclass(frozen=True, slots=True)
class ExitReported:
    """The outcome is known. Output may still follow.

    Attributes:
        exit_code: the command's exit status; None if it did not start, or if it is unknown.
        message: the runtime's message; empty for an exit status of 0.
    """

    exit_code: int | None
    message: str = ""


Event = ChannelsOpened | ChannelReceived | ChannelEnded | ExitReported
"""Channel events are limited to data of requested outputs, the ends of outputs, and the end of a
standard input that the peer no longer accepts."""


class RemoteCommand:
    """The client's side of a command. See ``remote_command``.

    Feed ``connection``, then take ``events_received`` from this object.

    Attributes:
        connection: the connection's channels.
        error: RemoteProtocolError if the peer sent bad data, StreamError if it refused a stream or
            if the connection ended without the outcome (the command may still run), else None.
        is_over: no more events will follow; ExitReported was returned, or ``error`` is set.
        is_ready: ChannelsOpened was received.
    """

    def __init__(self, connection: Channels, streams: Streams) -> None:
        self.connection = connection
        self.error: StreamError | None = None
        self.is_over = self.is_ready = False
        self._status = bytearray()
        self._tries_left = _MAX_TRIES
        self._is_reported = False
        self._outputs = {Channel.STDOUT, *((Channel.STDERR,) if streams.stderr else ())}
        self._still_sending: set[int] = {Channel.ERROR, *self._outputs}
        self._events: list[Event] = []

    def resize(self, *, width: int, height: int) -> None:
        """Send the terminal's size in characters; ignore an impossible size."""
        if 0 < width <= _MAX_SIZE and 0 < height <= _MAX_SIZE:
            size = b'{"Width":%d,"Height":%d}\n' % (width, height)
            self.connection.send(Channel.RESIZE, size)

    def events_received(self) -> list[Event]:
        """Return the events since the last call."""
        if not self.is_over:
            self._advance()
        events, self._events = self._events, []
        return events

    def _advance(self) -> None:
        connection = self.connection
        try:
            for event in connection.events_received():
                self._take(event)
            if connection.is_over and self._status:
                self._report()
        except StreamError as exc:
            self.is_over = True
            self.error = exc
            return
        if self._is_reported:
            self._still_sending.discard(Channel.ERROR)
        if connection.is_over or not self._still_sending:
            self.is_over = True
            if not self._is_reported:
                reason = f": {connection.error.message}" if connection.error is not None else ""
                self.error = StreamError(
                    f"the runtime sent no exit status{reason}",
                    hint="it is not known whether the command has ended, or how",
                )

    def _take(self, event: channels.Event) -> None:
        match event:
            case ChannelReceived() if event.channel in self._outputs:
                self._events.append(event)
            case ChannelReceived() if event.channel == Channel.ERROR:
                self._receive_status(event.data)
            case ChannelReceived():
                raise RemoteProtocolError(
                    f"the peer sent data on the stream {_name_of(event.channel)}"
                )
            case ChannelsOpened():
                self.is_ready = True
                self._events.append(event)
            case ChannelEnded():
                self._receive_end(event)

    def _receive_status(self, data: bytes | memoryview) -> None:
        self._status += data
        if len(self._status) > MAX_STATUS_BYTES:
            raise RemoteProtocolError("the outcome of the command is too long")
        self._tries_left -= 1
        if self._tries_left >= 0:
            # A Status object's syntax shows where it ends. A stuck server may never end the
            # stream.
            with suppress(RemoteProtocolError):
                self._report()

    def _receive_end(self, event: ChannelEnded) -> None:
        channel = event.channel
        if event.is_reset and not self.is_ready:
            raise StreamError(f"the server refused the stream {_name_of(channel)}")
        # The runtimes' server also resets the error stream at its end, and unread input.
        is_input_refused = channel == Channel.STDIN and event.is_reset
        if is_input_refused or channel in self._outputs & self._still_sending:
            self._events.append(event)
        if channel == Channel.ERROR and channel in self._still_sending and self._status:
            self._report()
        self._still_sending.discard(channel)

    def _report(self) -> None:
        """Report the outcome once, from the data of the error stream."""
        if self._is_reported:
            return
        outcome = parse_status(bytes(self._status))
        self._is_reported = True
        self._events.append(outcome)


def remote_command(transport: Literal["spdy", "websocket"], streams: Streams) -> RemoteCommand:
    """Start a command on a connection that has just been upgraded."""
    if transport == "websocket":
        return RemoteCommand(WebSocketChannels(len(Channel)), streams)
    # The server waits until as many streams as requested are open, in any order.
    headers: dict[int, HeaderFields] = {
        channel: (("streamtype", _name_of(channel)),)
        for channel, is_wanted in (
            (Channel.ERROR, True),
            (Channel.STDIN, streams.stdin),
            (Channel.STDOUT, True),
            (Channel.STDERR, streams.stderr),
            (Channel.RESIZE, streams.tty),
        )
        if is_wanted
    }
    return RemoteCommand(SpdyChannels(headers), streams)


def _name_of(channel: int) -> str:
    return Channel(channel).name.lower()


def _exit_code(text: str) -> int:
    if not _EXIT_CODE.fullmatch(text) or not -(2**31) <= int(text) < 2**32:
        raise RemoteProtocolError("the command's exit status is not a number of 32 bits")
    return int(text)


def parse_status(text: bytes) -> ExitReported:
    """Parse a Status object (``metav1.Status``); RemoteProtocolError if it is not one."""
    try:
        status = parse(text)
        outcome, message = status["status"], str(status.get("message") or "")
        causes = (status.get("details") or {}).get("causes") or []
        # On the wire, the key of a cause's type is ``reason``, not ``type``.
        codes = [cause.get("message") for cause in causes if cause.get("reason") == "ExitCode"]
        code = _exit_code(codes[0]) if codes and status.get("reason") == _NON_ZERO else None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise RemoteProtocolError("the outcome of the command is not a Status object") from None
    if outcome == "Success":
        return ExitReported(0)
    return ExitReported(code, message or "the runtime reported a failure without a reason")
