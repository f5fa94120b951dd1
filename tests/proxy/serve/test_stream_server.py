"""The streaming server on a real socket, its one-time tokens, and a flood of connections."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pycrictl.base.address import Address
from pycrictl.base.errors import ConfigError, Exhausted, UpgradeRefused
from pycrictl.base.servicelog import Log
from pycrictl.proxy.events import Emit, StreamEnded
from pycrictl.proxy.serve.http_server import listening
from pycrictl.proxy.serve.stream_server import (
    COPY_PATH,
    PROGRESS_PATH,
    StreamServer,
    Tokens,
)
from pycrictl.pulls.messages import MessageReader
from pycrictl.pulls.sources.stream_watch import follow
from pycrictl.pulls.state import PullState
from pycrictl.streams.target import beside, parse_url
from tests.fakecri.server import FakeServer
from tests.proxy.copier import Copier, stream
from tests.support.progress_streams import WEB, ask, read, sandboxes
from tests.waiting import until, wait_until
from tools.torture.attacks import attack

MESSAGES = [f'{{"image":"{number}","progress":{number},"total":10}}' for number in range(5)]


class Source:
    """Streams by name: one ends, one stays open, one never stops sending."""

    def __init__(self, emit: Emit, **limits: Any) -> None:
        self.tokens = Tokens()
        self.open = 0
        self.batches = 0
        self.server: StreamServer = StreamServer(
            self.tokens, self.follow, emit, Log("pycrictl.proxy.test"), **limits
        )

    def url(self, name: str) -> str:
        return self.tokens.issue(PROGRESS_PATH, name, now=asyncio.get_running_loop().time())

    async def follow(self, name: str) -> AsyncGenerator[list[str], None]:
        self.open += 1
        try:
            yield MESSAGES[:2]
            yield MESSAGES[2:]
            if name == "endless":
                await asyncio.Event().wait()
            while name == "flood":
                self.batches += 1
                yield MESSAGES * 200
                await asyncio.sleep(0)
        finally:
            self.open -= 1


def serve(
    test: Callable[[StreamServer, Source], Awaitable[None]], **limits: Any
) -> list[StreamEnded]:
    """Run a test with these limits of the server; return the ends of streams."""
    ended: list[Any] = []

    async def run() -> None:
        source = Source(ended.append, **limits)
        server = source.server
        server.start(Address("127.0.0.1", 0))
        try:
            async with asyncio.timeout(100):
                await test(server, source)
        finally:
            await server.stop()
        assert source.open == 0

    asyncio.run(run())
    return ended


async def exchange(server: StreamServer, request: str) -> bytes:
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(request.encode())
    try:
        return await reader.read(-1)
    finally:
        writer.close()


def get(server: StreamServer, url: str, fields: Sequence[str] = (), *, method: str = "GET") -> str:
    lines = [f"{method} {urlsplit(url).path} HTTP/1.1", *fields, "", ""]
    if not any(field.startswith("Host") for field in fields):
        lines.insert(1, f"Host: {server.address.authority}")
    return "\r\n".join(lines)


def test_a_port_of_another_program() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        with pytest.raises(ConfigError, match="cannot listen"):
            listening(Address(*other.getsockname()))


@pytest.mark.parametrize("is_beside", [False, True], ids=["tcp", "unix"])
def test_a_websocket_gets_a_message_for_each_record(tmp_path: Path, is_beside: bool) -> None:
    """Also on a Unix socket: a pod with its own network cannot reach the node's loopback."""

    async def test(server: StreamServer, source: Source) -> None:
        server.listen_in(tmp_path)
        target = parse_url(source.url("good"))
        if is_beside:
            target = beside(target, str(tmp_path / "sock"))
            assert target.socket == str(tmp_path / str(server.address.port))
        states: list[PullState] = []
        reader = MessageReader({})
        await follow(target, reader, on_pull=states.append, on_note=pytest.fail, timeout_s=60)
        assert [pull.image for pull in states] == ["0", "1", "2", "3", "4"]

    serve(test)


def test_streams_of_a_program_that_has_handed_over(tmp_path: Path) -> None:
    old, new = tmp_path / "cri.sock.old_old_", tmp_path / "cri.sock.new_new_"
    link = tmp_path / "cri.sock"
    for folder, port in ((old, "81"), (new, "82")):
        folder.mkdir()
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(folder / port))
    link.symlink_to("cri.sock.new_new_/sock")
    for folder, port in ((old, "81"), (new, "82")):
        target = beside(parse_url(f"http://127.0.0.1:{port}/progress/x"), str(link))
        assert target.socket == str(folder / port)
    assert not beside(parse_url("http://127.0.0.1:83/progress/x"), str(link)).socket
    assert not beside(parse_url("http://127.0.0.1:83/progress/x"), "/nowhere/sock").socket


def test_a_token_works_once() -> None:
    async def test(server: StreamServer, source: Source) -> None:
        url = source.url("good")
        assert b" 200 " in await exchange(server, get(server, url))
        with pytest.raises(UpgradeRefused) as caught:
            await follow(
                url,
                MessageReader({}),
                on_pull=print,
                on_note=pytest.fail,
                timeout_s=60,
            )
        assert caught.value.status == 404

    serve(test)


@pytest.mark.parametrize(
    ("status", "change"),
    [
        (403, {"fields": ["Origin: http://evil.example"]}),
        (403, {"fields": ["Origin: null"]}),
        (403, {"fields": ["Origin: http://[broken"]}),
        (403, {"fields": ["Host: evil.example"]}),
        (403, {"fields": ["Host: 127.0.0.1"]}),
        (400, {"fields": ["Connection: Upgrade", "Upgrade: websocket"]}),
        (400, {"fields": ["Content-Length: 7"]}),
        (400, {"fields": ["Bad Field: 1"]}),
        *((400, {"method": method}) for method in ("POST", "HEAD", "OPTIONS")),
        *((404, {"target": target}) for target in ("/", "/progress/", "/progress/good/x")),
    ],
    ids=str,
)
def test_what_is_refused_leaves_the_token_good(status: int, change: dict[str, Any]) -> None:
    async def test(server: StreamServer, source: Source) -> None:
        url = source.url("good")
        answer = await exchange(server, get(server, change.pop("target", url), **change))
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        assert source.tokens.outstanding(0) == 1

    serve(test)


def test_garbage_is_dropped() -> None:
    async def test(server: StreamServer, source: Source) -> None:
        assert await exchange(server, "\x16\x03\x01" * 10 + "\r\n\r\n") != b""
        assert (await exchange(server, "x" * 100_000)).startswith(b"HTTP/1.1 400 ")

    serve(test)


def test_a_request_of_its_own_origin_may_come_in_pieces() -> None:
    async def test(server: StreamServer, source: Source) -> None:
        reader, writer = await asyncio.open_connection(*server.address)
        host = f"localhost:{server.address.port}"
        fields = [f"Host: {host}", f"Origin: http://{host}"]
        for octet in get(server, source.url("good"), fields).encode():
            writer.write(bytes((octet,)))
            await writer.drain()
            await asyncio.sleep(0)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()

    serve(test)


def test_who_sends_no_request_is_sent_away() -> None:
    async def test(server: StreamServer, source: Source) -> None:
        reader, writer = await asyncio.open_connection(*server.address)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        assert server.dropped.count == 1
        writer.close()

    serve(test, head_s=0.3)


def test_who_has_waited_longest_makes_room() -> None:
    async def test(server: StreamServer, source: Source) -> None:
        silent = [await asyncio.open_connection(*server.address) for _ in range(20)]
        for reader, _ in silent[:12]:
            with pytest.raises(ConnectionResetError):
                await reader.read()
        assert server.dropped.count == 12
        assert b" 200 " in await exchange(server, get(server, source.url("good")))
        assert server.dropped.count == 13
        _, last = silent[-1]
        last.write(get(server, source.url("good")).encode())
        assert (await silent[-1][0].readline()).startswith(b"HTTP/1.1 200 ")
        for _, writer in silent:
            writer.close()

    serve(test, connections=8)


def test_streams_under_way_are_never_sent_away() -> None:
    async def test(server: StreamServer, source: Source) -> None:
        writers = []
        for _ in range(4):
            reader, writer = await asyncio.open_connection(*server.address)
            writer.write(get(server, source.url("endless")).encode())
            await reader.readline()
            writers.append(writer)
        url = source.url("good")
        with pytest.raises(ConnectionResetError):
            await exchange(server, get(server, url))
        assert source.open == 4
        writers.pop().close()
        await until(lambda: source.open == 3)
        assert b" 200 " in await exchange(server, get(server, url))
        for writer in writers:
            writer.close()

    serve(test, connections=4)


_UPGRADE = (
    "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)  # fmt: skip
_CLOSE = b"\x88\x82" + bytes(4) + b"\x03\xe8"


@pytest.mark.parametrize("kind", ["websocket", "close", "http"])
def test_a_client_that_goes_ends_its_stream(kind: str) -> None:
    """Also if it only sends a close frame and waits for the server to disconnect."""

    async def test(server: StreamServer, source: Source) -> None:
        if kind == "websocket":
            target = source.url("endless")
            reader = MessageReader({})
            work = follow(target, reader, on_pull=print, on_note=pytest.fail, timeout_s=60)
            leave = asyncio.create_task(work).cancel
        else:
            _, writer = await asyncio.open_connection(*server.address)
            writer.write(
                get(server, source.url("endless"), _UPGRADE if kind == "close" else ()).encode()
            )
            leave = partial(writer.write, _CLOSE) if kind == "close" else writer.close  # type: ignore[assignment]
        await until(lambda: source.open > 0)
        leave()
        await until(lambda: source.open == 0)
        if kind != "websocket":
            writer.close()

    serve(test)


def test_who_never_reads_stops_the_source_and_is_dropped() -> None:
    async def test(server: StreamServer, source: Source) -> None:
        reader, writer = await asyncio.open_connection(*server.address, limit=1024)
        writer.write(get(server, source.url("flood")).encode())
        await until(lambda: source.open > 0)
        await until(lambda: source.open == 0)
        # No more than fits in the kernel's buffers; each batch is about 50 kB.
        assert source.batches < 400
        writer.close()
        assert not reader.at_eof()

    (ended,) = serve(test, stuck_s=0.3)
    assert (ended.end, ended.target, ended.kind) == ("stuck", "flood", "http")


def test_stopping_ends_streams_without_a_normal_end(caplog: pytest.LogCaptureFixture) -> None:
    async def test(server: StreamServer, source: Source) -> None:
        answer = asyncio.create_task(exchange(server, get(server, source.url("endless"))))
        await until(lambda: source.open > 0)
        await server.stop()
        assert not (await answer).endswith(b"0\r\n\r\n")

    (ended,) = serve(test)
    assert (ended.end, ended.records) == ("stopped", 5)
    assert [record for record in caplog.records if record.name == "asyncio"] == []


# One-time tokens


def issue(tokens: Tokens, payload: object, *, now: float) -> str:
    """Return the path of a URL."""
    return urlsplit(tokens.issue(PROGRESS_PATH, payload, now=now)).path


def test_a_token_has_192_bits_fits_in_a_url_and_is_not_kept() -> None:
    tokens = Tokens()
    token = issue(tokens, "payload", now=0)
    assert re.fullmatch(r"/progress/[A-Za-z0-9_-]{32}", token)
    assert token != issue(tokens, "payload", now=0)
    assert token.removeprefix(PROGRESS_PATH) not in repr(vars(tokens))
    assert tokens.redeem(token.replace(PROGRESS_PATH, COPY_PATH), now=0) is None
    assert tokens.redeem(token, now=0) == "payload"
    assert tokens.redeem("\udcff", now=0) is None  # a byte of a URL that is not UTF-8


def test_a_token_works_once_and_until_it_expires() -> None:
    tokens = Tokens(lifetime_s=10, max_outstanding=3)
    first, second = (issue(tokens, number, now=number) for number in range(2))
    assert tokens.redeem("made up", now=1) is None
    assert tokens.is_valid(first, now=9.9)
    assert tokens.redeem(first, now=9.9) == 0
    assert not tokens.is_valid(first, now=9.9)
    assert tokens.redeem(first, now=9.9) is None
    third = issue(tokens, 2, now=10)
    assert tokens.outstanding(10.9) == 2
    assert tokens.redeem(second, now=11) is None
    assert tokens.outstanding(11) == 1
    assert tokens.redeem(third, now=11) == 2
    assert (tokens.outstanding(11), tokens.refused) == (0, 0)
    for _ in range(3):
        issue(tokens, 3, now=11)
    said = "3 stream URLs are waiting to be opened; try again later"
    with pytest.raises(Exhausted, match=said) as caught:
        issue(tokens, 3, now=20.9)
    assert caught.value.code == "ResourceExhausted"
    assert caught.value.hint == "a URL that nobody opens expires after 10s"
    assert tokens.refused == 1
    assert issue(tokens, 3, now=21)


# Connections during a flood


@pytest.mark.root
def test_flood_by_nobody_keeps_root_out_of_nothing(
    copier: Copier, fake: FakeServer, tmp_path: Path
) -> None:
    """Root can still copy files and watch pulls, each within the timeout of its connection."""
    fake.offer("ListPodSandbox", sandboxes)
    proxy = copier.proxy
    source, back = tmp_path / "source", tmp_path / "back"
    source.write_bytes(os.urandom(3_000_000))
    with attack("half-requests", proxy.streams):
        wait_until(lambda: 'why="too many connections"' in proxy.log())
        for _ in range(3):
            stream(copier.ask_to()).close()
            begin(ask(proxy, WEB.id))
        assert [pull.layers for pull in read(ask(proxy, WEB.id))] == [()]
        copier.into(source, "/to/file")
        copier.out("/to/file", back)
        assert back.read_bytes() == source.read_bytes()
    assert "Traceback" not in proxy.log()
    assert proxy.log().count("\n") < 100


def begin(url: str) -> None:
    parts = urlsplit(url)
    assert parts.port
    with socket.create_connection(("127.0.0.1", parts.port), timeout=10) as sock:
        sock.sendall(f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
        assert sock.recv(13) == b"HTTP/1.1 200 "
