"""A remote command's streams (exec, attach) on either transport, versions 1 to 5. Pure.

Over SPDY each stream of the command is a stream of the connection, known by the header
``streamtype``. Over WebSocket each is a channel (``wire.messages``).

The versions differ in few things: from 3 on, SPDY has a stream for the terminal's size; from 4 on,
the outcome is a Status object (``metav1.Status``) and not a mere text; from 5 on, and never from a
runtime itself, a WebSocket message of the byte 255 and a channel ends that channel. So before 5
nothing can end the standard input over WebSocket: what reads it to its end never ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from pycrictl.errors import LocalProtocolError, RemoteProtocolError, StreamError
from pycrictl.wire.command import Channel, Ready, RemoteCommand, StreamClosed, Streams
from pycrictl.wire.messages import CLIENT, Messages, by_channel
from pycrictl.wire.spdy.streams import Event as SpdyEvent
from pycrictl.wire.spdy.streams import (
    SpdyConnection,
    StreamAccepted,
    StreamEnded,
    StreamReceived,
    StreamReset,
)

SPDY_PROTOCOLS: Final = (
    "v4.channel.k8s.io",
    "v3.channel.k8s.io",
    "v2.channel.k8s.io",
    "channel.k8s.io",
)
"""What to offer over SPDY, best first. A runtime answers an offer of v5 alone with 403."""

WEBSOCKET_PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io", "channel.k8s.io")
"""What to offer over WebSocket, best first; the server takes the first that it knows."""

MESSAGE_BYTES: Final = 32768
"""Most data in a WebSocket message of ours."""

_VERSIONS: Final = {"": 1, "channel.k8s.io": 1} | {f"v{n}.channel.k8s.io": n for n in (2, 3, 4, 5)}
_CHANNELS: Final = tuple(Channel)  # by number; calling Channel takes five times as long
_CLOSE: Final = 255
_STDIN: Final = bytes((Channel.STDIN,))


class _WebSocketCommand(RemoteCommand):
    def __init__(self, version: int, streams: Streams) -> None:
        super().__init__(version, streams)
        self.can_end_stdin = version >= 5
        self._websocket = Messages(CLIENT, peer="the runtime")
        self._events.append(Ready())

    def receive_data(self, data: bytes, now: float = 0.0) -> None:
        if self.is_over:
            return
        self._websocket.receive_data(data, now)
        try:
            for channel, content in by_channel(self._websocket.messages_received()):
                self._receive_message(channel, content)
        except RemoteProtocolError as exc:
            self._fail(exc)
            return
        if self._websocket.is_over:
            self._finish(self._websocket.error)

    def receive_eof(self, error: StreamError | None = None) -> None:
        if not self.is_over:
            self._websocket.receive_eof()
            self._finish(error or self._websocket.error)

    def ping(self) -> None:
        pass

    def close(self) -> None:
        self._websocket.close()

    def data_to_send(self) -> Sequence[bytes | memoryview]:
        return self._websocket.data_to_send()

    def _receive_message(self, channel: int, data: memoryview) -> None:
        if channel == _CLOSE and self._version >= 5:
            if len(data) != 1 or data[0] >= len(_CHANNELS):
                raise RemoteProtocolError("the peer closed a channel that does not exist")
            self._events.append(StreamClosed(_CHANNELS[data[0]]))
        # A message without data, as the first one always is, says nothing.
        elif data:
            if channel >= len(_CHANNELS):
                raise RemoteProtocolError("the peer sent data on a channel that does not exist")
            self._receive(_CHANNELS[channel], data)

    def _finish(self, error: StreamError | None) -> None:
        try:
            # Before version 4, only the end shows that nothing went wrong.
            if self._status or (self._version < 4 and error is None):
                self._report()
        except RemoteProtocolError as exc:
            self._fail(exc)
        else:
            self._end(error)

    def _takes_stdin(self) -> bool:
        return not self.is_over

    def _send_stdin(self, data: bytes) -> None:
        view = memoryview(data)
        for start in range(0, len(data), MESSAGE_BYTES):
            self._websocket.send(_STDIN + view[start : start + MESSAGE_BYTES])

    def _end_stdin(self) -> None:
        self._websocket.send(bytes((_CLOSE, Channel.STDIN)))

    def _send_size(self, text: bytes) -> None:
        self._websocket.send(bytes((Channel.RESIZE,)) + text)


class _SpdyCommand(RemoteCommand):
    can_end_stdin = True

    def __init__(self, version: int, streams: Streams) -> None:
        super().__init__(version, streams)
        self._connection = SpdyConnection()
        wanted = {
            Channel.ERROR: True,
            Channel.STDIN: streams.stdin,
            Channel.STDOUT: streams.stdout,
            Channel.STDERR: streams.stderr,
            Channel.RESIZE: streams.tty and version >= 3,
        }
        # The server counts the streams and waits for as many as it was asked for, in any order.
        self._ids = {
            channel: self._connection.open_stream((("streamtype", channel.name.lower()),))
            for channel, is_wanted in wanted.items()
            if is_wanted
        }
        self._channels = {stream_id: channel for channel, stream_id in self._ids.items()}
        self._not_accepted = set(self._channels)
        outputs = {Channel.ERROR, Channel.STDOUT, Channel.STDERR}
        self._still_sending = outputs & self._ids.keys()

    @property
    def is_ready(self) -> bool:
        return not self._not_accepted

    @property
    def awaits_outcome_only(self) -> bool:
        return self._still_sending == {Channel.ERROR} and not self._is_reported

    def receive_data(self, data: bytes, now: float = 0.0) -> None:
        if self.is_over:
            return
        self._connection.receive_data(data, now)
        try:
            for event in self._connection.events_received():
                self._receive_event(event)
            if self._connection.error is not None:
                raise self._connection.error
        except StreamError as exc:
            self._fail(exc)
        else:
            if self._is_reported:
                self._still_sending.discard(Channel.ERROR)
            if not self._still_sending:
                self._end()

    def receive_eof(self, error: StreamError | None = None) -> None:
        if self.is_over:
            return
        self._connection.receive_eof()
        try:
            if self._status:
                self._report()
        except RemoteProtocolError as exc:
            self._fail(exc)
        else:
            self._end(error)

    def ping(self) -> None:
        if not self.is_over:
            self._connection.ping()

    def close(self) -> None:
        pass

    def data_to_send(self) -> list[bytes | memoryview]:
        return self._connection.data_to_send()

    def _receive_event(self, event: SpdyEvent) -> None:
        match event:
            case StreamReceived():
                self._receive(self._channels[event.stream_id], event.data)
            case StreamAccepted():
                self._not_accepted.discard(event.stream_id)
                if not self._not_accepted:
                    self._events.append(Ready())
            case StreamReset():
                self._receive_reset(event)
            case StreamEnded():
                self._receive_end(self._channels[event.stream_id])

    def _receive_reset(self, event: StreamReset) -> None:
        if event.error is not None:
            raise event.error
        channel = self._channels[event.stream_id]
        if event.stream_id in self._not_accepted:
            raise StreamError(f"the server refused the stream {channel.name.lower()}")
        # The runtimes' server ends the error stream like that, and what nobody has read.
        if channel is Channel.STDIN:
            self._events.append(StreamClosed(channel))
        self._receive_end(channel)

    def _receive_end(self, channel: Channel) -> None:
        if channel not in self._still_sending:
            return
        self._still_sending.discard(channel)
        if channel is not Channel.ERROR:
            self._events.append(StreamClosed(channel))
        elif self._status or self._version < 4:
            self._report()

    def _takes_stdin(self) -> bool:
        stdin = self._ids[Channel.STDIN]
        if stdin in self._not_accepted:
            raise LocalProtocolError("standard input sent before the stream was accepted")
        return not self.is_over and self._connection.can_send(stdin)

    def _send_stdin(self, data: bytes) -> None:
        self._connection.send_data(self._ids[Channel.STDIN], data)

    def _end_stdin(self) -> None:
        self._connection.end_stream(self._ids[Channel.STDIN])

    def _send_size(self, text: bytes) -> None:
        stream_id = self._ids.get(Channel.RESIZE)
        if stream_id in self._not_accepted:
            raise LocalProtocolError("a size sent before the stream was accepted")
        if stream_id is not None and self._connection.can_send(stream_id):
            self._connection.send_data(stream_id, text)


def remote_command(
    transport: Literal["spdy", "websocket"], protocol: str, streams: Streams
) -> RemoteCommand:
    """Begin a command on a connection that has just been upgraded.

    Args:
        protocol: what the server chose of SPDY_PROTOCOLS or WEBSOCKET_PROTOCOLS; empty for none.

    Raises:
        LocalProtocolError: that transport has no such protocol, or the streams cannot be together.
    """
    version = _VERSIONS.get(protocol, 0)
    if streams.tty and streams.stderr:
        raise LocalProtocolError("a terminal has no separate standard error")
    if not (streams.stdin or streams.stdout or streams.stderr):
        raise LocalProtocolError("a command without any stream")
    if transport == "spdy" and 1 <= version <= 4:
        return _SpdyCommand(version, streams)
    if transport == "websocket" and version in (1, 4, 5):
        return _WebSocketCommand(version, streams)
    raise LocalProtocolError(f'no remote command speaks "{protocol}" over {transport}')
