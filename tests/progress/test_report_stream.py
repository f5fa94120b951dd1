"""Following a progress stream to its end, however it ends."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as serve_websocket

from pycrictl.errors import ConnectError, RemoteProtocolError, StreamError, UpgradeRefused
from pycrictl.progress.report_stream import follow
from pycrictl.streaming.target import TlsFiles
from pycrictl.wire.progress import Report, encode_report
from tests.progress.following import (
    CHUNKED,
    END,
    FRAMES,
    LINES,
    NDJSON,
    REPORTS,
    SECRET,
    Watcher,
    chunk,
    failure,
    plain,
    text,
    watch,
    websocket,
)
from tests.streaming.servers import (
    Certificates,
    Handler,
    accept_upgrade,
    make_certificates,
    read_head,
    run,
    serve,
)
from tests.wire.frames import TEXT, frame


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


# WebSocket


@pytest.mark.parametrize("scheme", ["http", "ws"])
def test_another_implementation_of_websocket(scheme: str) -> None:
    watcher = Watcher()
    paths = []

    async def handler(connection: ServerConnection) -> None:
        assert connection.request is not None
        paths.append(connection.request.path)
        for report in REPORTS:
            await connection.send(encode_report(report))
        await (await connection.ping())  # the client answers
        await connection.send(encode_report(REPORTS[0]).encode())
        await connection.send(iter(['{"image":"a",', '"progress":1}']))

    async def scenario() -> None:
        async with serve_websocket(handler, "127.0.0.1", 0) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            await watcher.follow(f"{scheme}://127.0.0.1:{port}/progress/token?a=b")

    run(scenario())
    assert watcher.reports == [*REPORTS, REPORTS[0], Report("a", "", 1, 0)]
    assert watcher.notes == []
    assert paths == ["/progress/token?a=b"]


@pytest.mark.parametrize("more", [(), ("Sec-WebSocket-Protocol:",), ("Sec-WebSocket-Protocol: ",)])
def test_websocket(more: tuple[str, ...]) -> None:
    watcher = watch(websocket(FRAMES, END, more=more))
    assert watcher.reports == REPORTS
    assert watcher.notes == []


def test_a_reset_in_the_middle_of_a_frame() -> None:
    watcher = Watcher()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(accept_upgrade(await read_head(reader)) + FRAMES + text(REPORTS[0])[:20])
        await watcher.received(3)
        linger = struct.pack("ii", 1, 0)  # close by RST
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    error = failure(handler, reports=3, watcher=watcher)
    assert type(error) is StreamError
    assert error.message.endswith("broke: connection reset by peer")


def test_a_wrong_handshake() -> None:
    answer = (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: made+up=\r\n\r\n"
    )
    assert type(failure(plain(answer, FRAMES))) is RemoteProtocolError


# Lines


@pytest.mark.parametrize(
    "pieces",
    [
        [CHUNKED, chunk(LINES), b"0\r\n\r\n"],
        [CHUNKED + chunk(LINES[:30]) + chunk(LINES[30:]) + b"0\r\nX: y\r\n\r\n"],
        [CHUNKED, *[chunk(bytes([byte])) for byte in LINES], b"0\r\n\r\n"],
        [NDJSON + b"Content-Length: %d\r\n\r\n" % len(LINES) + LINES],
        [NDJSON + b"Content-Length: %d\r\n\r\n" % (len(LINES) - 1) + LINES[:-1]],
        [NDJSON + b"\r\n", LINES],
        [b"HTTP/1.0 200 OK\r\n\r\n", LINES.replace(b"\n", b"\r\n\r\n")],
    ],
)
def test_lines(pieces: list[bytes]) -> None:
    watcher = watch(plain(*pieces))
    assert watcher.reports == REPORTS
    assert watcher.notes == []


def test_lines_are_passed_on_at_once() -> None:
    async def scenario() -> None:
        reports: asyncio.Queue[Report] = asyncio.Queue()
        async with serve(plain(CHUNKED + chunk(LINES), stays=True)) as address:
            following = follow(
                f"http://{address}/x", on_report=reports.put_nowait, on_note=print, timeout_s=10
            )
            task = asyncio.ensure_future(following)
            assert [await reports.get() for _ in REPORTS] == REPORTS
            assert not task.done()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(scenario())


@pytest.mark.parametrize(
    "data",
    [
        CHUNKED + chunk(LINES),
        CHUNKED + chunk(LINES) + b'30\r\n{"progr',
        NDJSON + b"Content-Length: 9999\r\n\r\n" + LINES + b'{"progr',
    ],
)
def test_lines_that_break_off(data: bytes) -> None:
    error = failure(plain(data), reports=3)
    assert type(error) is StreamError
    assert error.message.startswith("the connection ended before the HTTP response did (from ")


# TLS


@pytest.mark.parametrize("scheme", ["https", "wss"])
@pytest.mark.parametrize(
    "handler", [websocket(FRAMES, END), plain(CHUNKED, chunk(LINES), b"0\r\n\r\n")]
)
def test_tls(certificates: Certificates, scheme: str, handler: Handler) -> None:
    for tls in (None, TlsFiles(ca=certificates.ca)):
        context = certificates.server_context()
        watcher = watch(handler, scheme=scheme, context=context, tls=tls)
        assert watcher.reports == REPORTS


def test_a_certificate_that_is_not_trusted(certificates: Certificates, tmp_path: Path) -> None:
    other = make_certificates(tmp_path)
    with pytest.raises(ConnectError, match="certificate") as caught:
        watch(
            websocket(FRAMES, END),
            scheme="wss",
            context=certificates.server_context(),
            tls=TlsFiles(ca=other.ca),
        )
    assert SECRET not in str(caught.value)


# Refusals, and no answer


@pytest.mark.parametrize("status", [204, 302, 403, 404, 405, 426, 500])
def test_refusals(status: int) -> None:
    head = b"HTTP/1.1 %d Because\r\nLocation: /\r\nContent-Length: 0\r\n\r\n" % status
    error = failure(plain(head))
    assert isinstance(error, UpgradeRefused)
    assert error.status == status
    assert error.message.endswith(f'answered with status {status}: "Because"')


def test_a_server_that_accepts_and_says_nothing() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    start = time.monotonic()
    with pytest.raises(ConnectError) as caught:
        watch(mute, timeout_s=0.2)
    assert 0.2 <= time.monotonic() - start < 30
    assert '"http://127.0.0.1:' in caught.value.message
    assert SECRET not in caught.value.message


@pytest.mark.parametrize(
    "url", ["", f"/{SECRET}", f"http://me:{SECRET}@node/", f"http://\n{SECRET}"]
)
def test_urls_that_cannot_be_followed(url: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        run(Watcher().follow(url))
    assert SECRET not in str(caught.value)


# Silence


def test_a_long_silence_is_told_once() -> None:
    pieces = [frame(TEXT), FRAMES, b"", END]
    watcher = watch(websocket(*pieces, pause_s=0.3), silence_s=0.1)
    assert watcher.reports == REPORTS
    (note,) = watcher.notes
    assert note.startswith('"http://127.0.0.1:')
    assert note.endswith('" has sent no progress for 0.1 s')


def test_a_drip_is_no_silence() -> None:
    stream = FRAMES + END
    pieces = [stream[start : start + 10] for start in range(0, len(stream), 10)]
    assert len(pieces) * 0.05 > 1.0  # it lasts longer than a silence may
    assert watch(websocket(*pieces, pause_s=0.05), silence_s=1.0).notes == []


# Being cancelled


@pytest.mark.parametrize(
    "handler",
    [
        websocket(FRAMES),
        plain(CHUNKED + chunk(LINES), stays=True),
        plain(stays=True),
    ],
)
def test_cancelling_closes_the_connection_at_once(handler: Handler) -> None:
    async def scenario() -> float:
        is_gone = asyncio.Event()
        is_there = asyncio.Event()

        async def observed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            is_there.set()
            try:
                await handler(reader, writer)
            finally:
                is_gone.set()

        async with serve(observed) as address:
            task = asyncio.ensure_future(Watcher().follow(f"http://{address}/x"))
            await is_there.wait()
            await asyncio.sleep(0.05)
            assert not is_gone.is_set()
            start = time.monotonic()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await is_gone.wait()
            return time.monotonic() - start

    assert run(scenario()) < 5.0  # half of what the client waits for an answer


def test_an_error_in_a_callback_closes_the_connection() -> None:
    def fail(report: Report) -> None:
        raise ZeroDivisionError

    async def scenario() -> None:
        async with serve(websocket(FRAMES)) as address:
            await follow(f"http://{address}/x", on_report=fail, on_note=print, timeout_s=10)

    with pytest.raises(ZeroDivisionError):
        run(scenario())
