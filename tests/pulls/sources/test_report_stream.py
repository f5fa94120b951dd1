"""Following a progress stream to its end, however it ends.

URLs, TLS, heads and bodies of HTTP, handshakes and frames have tests of their own.
"""

from __future__ import annotations

import asyncio
import re
import socket

import pytest
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as serve_websocket

from pycrictl.base.errors import StreamError
from pycrictl.pulls.messages import MessageReader
from pycrictl.pulls.sources.stream_watch import follow
from pycrictl.pulls.state import PullState
from tests.pulls.tracking import Report
from tests.streams.servers import Handler, accept_upgrade, read_head, run, send, serve, write
from tests.streams.wire.frames import PING, TEXT, close_frame, frame

MIB = 2**20
SECRET = "dont-show-me"
NDJSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n"
CHUNKED = NDJSON + b"Transfer-Encoding: chunked\r\n\r\n"
REPORTS = [
    Report("r.io/a:1", "sha256:aa", 0, 100),
    Report("r.io/a:1", "sha256:aa", 60, 100, "", "downloading"),
    Report("r.io/a:1", "sha256:bb", 5, 50, "no route to host"),
]


def told(*reports: Report) -> list[PullState | None]:
    """Return the states that these reports say."""
    return [MessageReader({}).receive_message(report.message) for report in reports]


def text(report: Report) -> bytes:
    return frame(TEXT, report.message.encode())


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


LINES = b"".join(report.message.encode() + b"\n" for report in REPORTS)
FRAMES = b"".join(map(text, REPORTS))
END = close_frame(1000)


class Watcher:
    """Follows a stream, and records its reports and notes."""

    def __init__(self) -> None:
        self.pulls: list[PullState] = []
        self.notes: list[str] = []

    async def follow(self, url: str) -> None:
        keep, note = self.pulls.append, self.notes.append
        await follow(url, MessageReader({}), on_pull=keep, on_note=note, timeout_s=10.0)

    def watch(self, handler: Handler) -> Watcher:
        """Follow a server's stream to its end."""

        async def scenario() -> None:
            async with serve(handler) as address:
                await self.follow(f"http://{address}/progress/{SECRET}")

        run(scenario())
        return self


def watch(handler: Handler) -> Watcher:
    return Watcher().watch(handler)


def websocket(*pieces: bytes, pause_s: float = 0.0, stays: bool = True) -> Handler:
    """Return a server of a WebSocket, as raw bytes after the handshake."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await write(writer, accept_upgrade(await read_head(reader)))
        await send(reader, writer, pieces, pause_s=pause_s, stays=stays)

    return handler


def plain(*pieces: bytes, stays: bool = False) -> Handler:
    """Return a server without support for WebSocket."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        await send(reader, writer, pieces, pause_s=0.0, stays=stays)

    return handler


@pytest.mark.parametrize("scheme", ["http", "ws"])
def test_another_implementation_of_websocket(scheme: str) -> None:
    watcher = Watcher()
    paths = []

    async def handler(connection: ServerConnection) -> None:
        assert connection.request is not None
        paths.append(connection.request.path)
        for report in REPORTS:
            await connection.send(report.message)
        await (await connection.ping())  # the client answers
        await connection.send(REPORTS[0].message.encode())
        await connection.send(iter(['{"image":"a",', '"progress":1}']))

    async def scenario() -> None:
        async with serve_websocket(handler, "127.0.0.1", 0) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            await watcher.follow(f"{scheme}://127.0.0.1:{port}/progress/token?a=b")

    run(scenario())
    assert watcher.pulls == told(*REPORTS, REPORTS[0], Report("a", "", 1, 0))
    assert watcher.notes == []
    assert paths == ["/progress/token?a=b"]


@pytest.mark.parametrize(
    "pieces",
    [
        [CHUNKED, *[chunk(bytes([byte])) for byte in LINES], b"0\r\n\r\n"],
        [NDJSON + b"Content-Length: %d\r\n\r\n" % (len(LINES) - 1) + LINES[:-1]],
        [b"HTTP/1.0 200 OK\r\n\r\n", LINES.replace(b"\n", b"\r\n\r\n")],
    ],
)
def test_lines(pieces: list[bytes]) -> None:
    watcher = watch(plain(*pieces))
    assert watcher.pulls == told(*REPORTS)
    assert watcher.notes == []


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (plain(CHUNKED + chunk(LINES)), "the connection ended before the HTTP response did (from "),
        (websocket(FRAMES, close_frame(1011)), '" closed the stream with status 1011'),
    ],
)
def test_a_stream_that_breaks_off(handler: Handler, message: str) -> None:
    watcher = Watcher()
    with pytest.raises(StreamError, match=re.escape(message)) as caught:
        watcher.watch(handler)
    assert type(caught.value) is StreamError
    assert watcher.pulls == told(*REPORTS)
    assert SECRET not in f"{caught.value!r} {caught.value.__cause__!r} {watcher.notes}"


@pytest.mark.parametrize("is_websocket", [True, False])
def test_only_the_first_bad_message_is_told(is_websocket: bool) -> None:
    bad = [b"oops\x1b[2J", b'{"progress":"1"}', b"[" * 100_000, b"\xff"]
    if is_websocket:
        watcher = watch(websocket(FRAMES, *[frame(TEXT, line) for line in bad], FRAMES, END))
    else:
        body = LINES + b"\n".join(bad) + b"\n" + LINES
        watcher = watch(plain(CHUNKED, chunk(body), b"0\r\n\r\n"))
    assert watcher.pulls == told(*REPORTS) * 2
    assert watcher.notes == [
        r'skipped a message that is not a progress report: no progress in it: "oops\x1b[2J"',
    ]


def test_a_peer_that_asks_for_pongs_and_takes_none() -> None:
    pings = frame(PING, b"x" * 100) * 1000 + frame(TEXT, b"  ")

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        writer.write(accept_upgrade(await read_head(reader)))
        for _ in range(60):  # more than any buffer on the way holds
            writer.write(pings)
            await writer.drain()
        writer.write(FRAMES + END)
        await reader.read()  # data left unread would break the connection

    assert watch(handler).pulls == told(*REPORTS)
