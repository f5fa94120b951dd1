"""The two forms of a progress stream: lines of a body, and messages of a WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from websockets.frames import CloseCode
from websockets.protocol import OPEN, SERVER, Protocol

from pycrictl.wire.http1 import LAST_CHUNK, chunk, serialize_response

BUFFER_BYTES: Final = 64 * 1024
"""The most that waits for a client before nothing more is made for it."""

_MAX_MESSAGE_BYTES: Final = 4096  # nothing that a client sends matters


class LineRecords:
    """Records as lines of a body: chunked, or up to the end of the connection for HTTP/1.0."""

    kind = "http"
    is_over = False
    is_answered = False

    def __init__(self, minor_version: int) -> None:
        self._is_chunked = minor_version > 0

    def head(self) -> bytes:
        headers = [
            ("Content-Type", "application/x-ndjson"),
            ("Cache-Control", "no-store"),
            ("Connection", "close"),
        ]
        if self._is_chunked:
            headers.append(("Transfer-Encoding", "chunked"))
        return serialize_response(200, "OK", headers)

    def record(self, text: str) -> bytes:
        line = text.encode() + b"\n"
        return chunk(line) if self._is_chunked else line

    def end(self, *, is_whole: bool) -> bytes:
        """Return the end of the body; a body that is cut short has none."""
        return LAST_CHUNK if self._is_chunked and is_whole else b""

    def receive(self, data: bytes) -> bytes:
        return b""


class MessageRecords:
    kind = "websocket"
    is_answered = True  # a close is, by a close

    def __init__(self, accepted: bytes) -> None:
        self._accepted = accepted
        self._protocol = Protocol(SERVER, max_size=_MAX_MESSAGE_BYTES)

    def head(self) -> bytes:
        return self._accepted

    def record(self, text: str) -> bytes:
        """Return a record as a message; nothing once either side has closed."""
        if self._protocol.state is OPEN:
            self._protocol.send_text(text.encode())
        return self._output()

    def end(self, *, is_whole: bool) -> bytes:
        """Return our close, unless either side has closed."""
        if self._protocol.state is OPEN:
            self._protocol.send_close(
                CloseCode.NORMAL_CLOSURE if is_whole else CloseCode.GOING_AWAY
            )
        return self._output()

    def receive(self, data: bytes) -> bytes:
        """Take in what the client sends; return what to answer: pongs, and a close."""
        self._protocol.receive_data(data)
        self._protocol.events_received()
        return self._output()

    @property
    def is_over(self) -> bool:
        return self._protocol.close_rcvd is not None or self._protocol.parser_exc is not None

    def _output(self) -> bytes:
        return b"".join(self._protocol.data_to_send())


async def listen(
    stream: MessageRecords | LineRecords,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Read what the client sends, until it goes; then the stream need not go on."""
    with contextlib.suppress(OSError):
        while data := await reader.read(_MAX_MESSAGE_BYTES):
            if answer := stream.receive(data):
                writer.write(answer)
                if writer.transport.get_write_buffer_size() > 2 * BUFFER_BYTES:
                    break  # it asks for pongs and takes none
            if stream.is_over:
                break
