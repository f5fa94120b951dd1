"""Commands in a container as the server sees them: by messages, or by frames of SPDY."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from pycrictl.errors import StreamError
from pycrictl.wire.channels import ChannelReceived, ChannelsOpened
from pycrictl.wire.command import V4, Channel, Event, RemoteCommand, Streams, remote_command
from tests.wire.frames import BINARY, close_frame, frame, read_frames
from tests.wire.spdyframes import (
    Data,
    Frame,
    FrameDecoder,
    FrameEncoder,
    RstStream,
    SynReply,
    SynStream,
)

E = TypeVar("E")

SUCCESS = b'{"metadata":{},"status":"Success"}'
EXIT_7 = json.dumps(
    {
        "status": "Failure",
        "message": "exit code 7",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": "7"}]},
    }
).encode()
PIPED = Streams(stdin=True)
TERMINAL = Streams(stdin=True, stderr=False, tty=True)
CANCEL = 5


def out(data: bytes) -> ChannelReceived:
    return ChannelReceived(Channel.STDOUT, data)


def err(data: bytes) -> ChannelReceived:
    return ChannelReceived(Channel.STDERR, data)


def websocket(protocol: str = V4, streams: Streams = PIPED) -> RemoteCommand:
    command = remote_command("websocket", protocol, streams)
    assert command.events_received() == [ChannelsOpened()]
    return command


def heard(command: RemoteCommand, *messages: bytes) -> list[Event]:
    """What comes of messages of the server over WebSocket."""
    return fed(command, *(frame(BINARY, message) for message in messages))


def said(command: RemoteCommand) -> list[bytes]:
    """The messages that the command wants sent over WebSocket."""
    sent = read_frames(command.data_to_send())
    assert {opcode for opcode, _ in sent} <= {BINARY}
    return [payload for _, payload in sent]


def closed(command: RemoteCommand) -> RemoteCommand:
    """Have the server close the WebSocket in good order."""
    command.receive_data(close_frame(1000))
    return command


def fed(command: RemoteCommand, *pieces: bytes) -> list[Event]:
    for piece in pieces:
        command.receive_data(piece)
    return command.events_received()


class Core(Protocol[E]):
    def receive_data(self, data: bytes) -> None: ...
    def events_received(self) -> list[E]: ...
    def data_to_send(self) -> Sequence[bytes | memoryview]: ...


class SpdyServer(Generic[E]):
    """The server's frames by hand, for a core over SPDY."""

    def __init__(self, core: Core[E]) -> None:
        self._core = core
        self._encoder = FrameEncoder()
        self._decoder = FrameDecoder()

    def feed(self, *frames: Frame) -> list[E]:
        for each in frames:
            self._core.receive_data(self._encoder.encode(each))
        return self._core.events_received()

    def sent(self) -> list[Frame]:
        frames = self._decoder.receive_data(b"".join(self._core.data_to_send()))
        return frames


class Spdy(SpdyServer[Event]):
    """A command over SPDY, and its server."""

    def __init__(self, streams: Streams = PIPED, protocol: str = V4, *, ready: bool = True) -> None:
        self.command = remote_command("spdy", protocol, streams)
        super().__init__(self.command)
        self.ids: dict[str, int] = {}
        for opened in self.sent():
            assert isinstance(opened, SynStream)
            ((name, value),) = opened.headers
            assert name == "streamtype"
            self.ids[value] = opened.stream_id
        if ready:
            assert self.feed(*map(SynReply, self.ids.values())) == [ChannelsOpened()]

    def data(self, name: str, data: bytes, *, is_last: bool = False) -> Data:
        return Data(self.ids[name], data, is_last)

    def end(self, name: str) -> Data:
        return self.data(name, b"", is_last=True)

    def reset(self, name: str) -> RstStream:
        return RstStream(self.ids[name], CANCEL)


def violation_of(command: RemoteCommand, *pieces: bytes) -> str:
    """What is wrong with what the server sends."""
    fed(command, *pieces)
    assert command.is_over
    assert isinstance(command.error, StreamError)
    return command.error.message
