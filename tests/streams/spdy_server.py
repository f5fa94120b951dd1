"""The server's side of a command over SPDY, step by step, for servers that misbehave."""

from __future__ import annotations

import array
import asyncio
import fcntl
import json
import termios

from tests.streams.wire.spdyframes import (
    Data,
    Frame,
    FrameDecoder,
    FrameEncoder,
    SynReply,
    SynStream,
)

SUCCESS = b'{"status":"Success"}'
UPGRADE = (
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
    "X-Stream-Protocol-Version: {}\r\n\r\n"
)


def failure(code: int) -> bytes:
    cause = {"reason": "ExitCode", "message": str(code)}
    status = {"reason": "NonZeroExitCode", "details": {"causes": [cause]}}
    return json.dumps({"status": "Failure", **status}).encode()


class SpdyPeer:
    """A connection that was just upgraded.

    Attributes:
        ids: the stream numbers by the value of the header ``streamtype``.
        stdin: the data received on standard input.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.ids: dict[str, int] = {}
        self.stdin = b""
        self._reader = reader
        self._encoder = FrameEncoder()
        self._decoder = FrameDecoder()
        self._frames: list[Frame] = []

    async def next_frame(self) -> Frame | None:
        """Return the client's next frame, None at the end."""
        while not self._frames:
            data = await self._reader.read(65536)
            if not data:
                return None
            self._frames += self._decoder.receive_data(data)
        return self._frames.pop(0)

    async def open(self, count: int) -> None:
        """Wait until the client has opened this many streams."""
        while len(self.ids) < count:
            frame = await self.next_frame()
            assert isinstance(frame, SynStream)
            self.ids[dict(frame.headers)["streamtype"]] = frame.stream_id

    async def accept(self, count: int) -> None:
        """Wait for this many streams and accept them."""
        await self.open(count)
        self.send(*map(SynReply, self.ids.values()))

    async def read_stdin(self) -> None:
        """Read standard input to its end."""
        while frame := await self.next_frame():
            if isinstance(frame, Data) and frame.stream_id == self.ids["stdin"]:
                self.stdin += frame.data
                if frame.is_last:
                    return

    async def until_unread(self) -> None:
        """Wait until the kernel holds unread input, which makes closing the connection a reset."""
        sock = self.writer.get_extra_info("socket")
        unread = array.array("i", [0])
        while not unread[0]:
            await asyncio.sleep(0.01)
            fcntl.ioctl(sock.fileno(), termios.FIONREAD, unread)

    def send(self, *frames: Frame) -> None:
        self.writer.write(b"".join(map(self._encoder.encode, frames)))

    def say(self, name: str, data: bytes = b"", *, is_last: bool = False) -> None:
        """Send data on a stream."""
        self.send(Data(self.ids[name], data, is_last))

    def end(self, *names: str) -> None:
        """End streams."""
        for name in names:
            self.say(name, is_last=True)
