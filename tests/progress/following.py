"""Servers of progress streams that behave as a test wants, and a client that remembers."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from pycrictl.errors import StreamError
from pycrictl.progress.report_stream import follow
from pycrictl.streaming.target import TlsFiles
from pycrictl.wire.progress import Report, encode_report
from tests.streaming.servers import Handler, accept_upgrade, read_head, run, send, serve, write
from tests.wire.frames import TEXT, close_frame, frame

SECRET = "dont-show-me"
NDJSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n"
CHUNKED = NDJSON + b"Transfer-Encoding: chunked\r\n\r\n"
REPORTS = [
    Report("r.io/a:1", "sha256:aa", 0, 100),
    Report("r.io/a:1", "sha256:aa", 60, 100, "", "downloading"),
    Report("r.io/a:1", "sha256:bb", 5, 50, "no route to host"),
]


class Watcher:
    """Follows a stream and remembers what it is told."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.notes: list[str] = []
        self._came = asyncio.Event()

    def _take(self, report: Report) -> None:
        self.reports.append(report)
        self._came.set()

    async def received(self, count: int) -> None:
        """Return when so many reports have come."""
        while len(self.reports) < count:
            self._came.clear()
            await self._came.wait()

    async def follow(
        self,
        url: str,
        *,
        timeout_s: float = 10.0,
        tls: TlsFiles | None = None,
        silence_s: float = 10.0,
    ) -> None:
        await follow(
            url,
            on_report=self._take,
            on_note=self.notes.append,
            timeout_s=timeout_s,
            tls=tls,
            silence_s=silence_s,
        )


def watch(
    handler: Handler,
    *,
    scheme: str = "http",
    context: ssl.SSLContext | None = None,
    timeout_s: float = 10.0,
    tls: TlsFiles | None = None,
    silence_s: float = 10.0,
) -> Watcher:
    """Follow what a server says to its end."""
    watcher = Watcher()

    async def scenario() -> None:
        async with serve(handler, context=context) as address:
            url = f"{scheme}://{address}/progress/{SECRET}"
            await watcher.follow(url, timeout_s=timeout_s, tls=tls, silence_s=silence_s)

    run(scenario())
    return watcher


def websocket(
    *pieces: bytes, more: tuple[str, ...] = (), pause_s: float = 0.0, stays: bool = True
) -> Handler:
    """Return a server of a WebSocket, as raw bytes after the handshake."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await write(writer, accept_upgrade(await read_head(reader), *more))
        await send(reader, writer, pieces, pause_s=pause_s, stays=stays)

    return handler


def plain(*pieces: bytes, pause_s: float = 0.0, stays: bool = False) -> Handler:
    """Return a server that knows no WebSocket."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        await send(reader, writer, pieces, pause_s=pause_s, stays=stays)

    return handler


def text(report: Report) -> bytes:
    return frame(TEXT, encode_report(report).encode())


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


LINES = b"".join(encode_report(report).encode() + b"\n" for report in REPORTS)
FRAMES = b"".join(map(text, REPORTS))
END = close_frame(1000)


def failure(
    handler: Handler,
    *,
    reports: int = 0,
    timeout_s: float = 10.0,
    watcher: Watcher | None = None,
) -> StreamError:
    """Return how following fails, after a number of reports."""
    watcher = watcher or Watcher()

    async def scenario() -> None:
        async with serve(handler) as address:
            await watcher.follow(f"http://{address}/progress/{SECRET}", timeout_s=timeout_s)

    with pytest.raises(StreamError) as caught:
        run(scenario())
    assert len(watcher.reports) == reports
    assert SECRET not in f"{caught.value!r} {caught.value.__cause__!r} {watcher.notes}"
    return caught.value
