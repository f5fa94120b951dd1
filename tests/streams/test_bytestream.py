"""Stream URLs, and reading and writing an open connection."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from pycrictl.base.errors import ConfigError, ConnectError, RemoteProtocolError, StreamError
from pycrictl.streams.bytestream import HELD_BYTES, READ_BYTES, ByteStream, dial
from pycrictl.streams.target import TlsFiles, parse_url
from tests.streams.servers import Certificates, Handler, make_certificates, run, serve
from tests.waiting import until

MUCH = bytes(range(256)) * (1 << 16)


async def read_all(connection: ByteStream) -> list[bytes]:
    pieces = []
    while piece := await connection.read():
        pieces.append(piece)
    return pieces


def reading(handler: Handler) -> list[bytes]:
    async def scenario() -> list[bytes]:
        async with serve(handler) as address:
            connection = await dial(parse_url(f"http://{address}"), timeout_s=10)
            try:
                return await read_all(connection)
            finally:
                connection.abort()

    return run(scenario())


def test_all_comes_in_order_and_in_pieces_of_a_limited_size() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(MUCH)
        await writer.drain()

    pieces = reading(handler)
    assert b"".join(pieces) == MUCH
    assert max(map(len, pieces)) <= READ_BYTES


def test_who_does_not_read_holds_the_peer_back() -> None:
    sent = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        while sent < 4 * len(MUCH):
            writer.write(MUCH[: 1 << 16])
            await writer.drain()
            sent += 1 << 16

    async def scenario() -> tuple[int, int, int]:
        async with serve(handler) as address:
            connection = await dial(parse_url(f"http://{address}"), timeout_s=10)
            before = -1
            while connection._held_bytes <= HELD_BYTES or before != sent:  # until the server blocks
                before = sent
                await asyncio.sleep(0.05)
            held_bytes = connection._held_bytes
            pieces = await read_all(connection)
            connection.abort()
            return before, held_bytes, sum(map(len, pieces))

    stuck_at, held_bytes, read_bytes = run(scenario())
    assert stuck_at < 4 * len(MUCH)
    assert HELD_BYTES < held_bytes <= HELD_BYTES + READ_BYTES
    assert read_bytes == 4 * len(MUCH)


def test_what_came_before_a_break_is_read_first() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"before")
        await reader.read(1)
        linger = struct.pack("ii", 1, 0)  # close by RST
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    async def scenario() -> bytes:
        async with serve(handler) as address:
            connection = await dial(parse_url(f"http://{address}"), timeout_s=10)
            await until(lambda: connection._held_bytes)
            await connection.write(b"x")
            await connection._lost.wait()
            first = await connection.read()
            for _ in range(2):
                with pytest.raises(StreamError, match="broke: connection reset by peer"):
                    await connection.read()
            return first

    assert run(scenario()) == b"before"


def test_writing_to_a_closed_connection_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def scenario() -> None:
        async with serve(handler) as address:
            connection = await dial(parse_url(f"http://{address}"), timeout_s=10)
            connection.abort()
            for _ in range(20):
                connection.send([b"x"])
            with pytest.raises(StreamError, match="broke: connection lost"):
                await connection.drain()

    run(scenario())
    assert caplog.records == []


def test_a_peer_that_has_ended_still_listens() -> None:
    heard: list[bytes] = []
    is_heard = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write_eof()
        heard.append(await reader.readexactly(len(MUCH)))
        is_heard.set()

    async def scenario() -> None:
        async with serve(handler) as address:
            connection = await dial(parse_url(f"http://{address}"), timeout_s=10)
            assert await connection.read() == b""
            assert await connection.read() == b""
            await connection.write(MUCH)
            await is_heard.wait()
            await connection.close()

    run(scenario())
    assert heard == [MUCH]


def test_closing_does_not_wait_for_ever() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(600)

    async def scenario() -> None:
        async with serve(handler) as address:
            connection = await dial(parse_url(f"http://{address}"), timeout_s=10)
            connection.send([MUCH, MUCH])
            await connection.close(within_s=0.1)

    run(scenario())  # within its own time limit


# Dialling


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


# URLs


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "label"),
    [
        ("http://node:81/exec/token", "node", 81, "/exec/token", "http://node:81"),
        ("ws://node/x", "node", 80, "/x", "ws://node"),
        ("http://node:80/x", "node", 80, "/x", "http://node"),
        ("https://node/x", "node", 443, "/x", "https://node"),
        ("https://node:80/x", "node", 80, "/x", "https://node:80"),
        ("HTTP://Node.Example./x", "node.example.", 80, "/x", "http://node.example."),
        ("http://node?a=b", "node", 80, "/?a=b", "http://node"),
        ("http://n/x;y?a=b&c=%20d#part", "n", 80, "/x;y?a=b&c=%20d", "http://n"),
        ("wss://[::1]:10250/x", "::1", 10250, "/x", "wss://[::1]:10250"),
        ("ws://[::1]/x", "::1", 80, "/x", "ws://[::1]"),
        ("http://[fe80::1%25eth0]/x", "fe80::1%25eth0", 80, "/x", "http://[fe80::1%25eth0]"),
        ("http://under_score-1/x", "under_score-1", 80, "/x", "http://under_score-1"),
    ],
)
def test_urls(url: str, host: str, port: int, path: str, label: str) -> None:
    target = parse_url(url)
    assert (target.host, target.port, target.path, target.label) == (host, port, path, label)
    assert target.is_tls == (target.scheme in ("https", "wss"))
    assert path not in repr(target)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "characters"),
        ("http://node/secret path", "characters"),
        ("http://node/secret\r\nX: y", "characters"),
        ("http://nöde/secret", "characters"),
        ("/secret", "absolute"),
        ("unix:///secret", "absolute"),
        ("http:///secret", "host or port"),
        ("http://node:0/secret", "host or port"),
        ("http://node:65536/secret", "host or port"),
        ("http://no..de/secret", "host or port"),
        ("http://no%64e/secret", "host or port"),
        ("http://" + "n" * 64 + "/secret", "host or port"),
        ("http://" + "n." * 127 + "n/secret", "host or port"),
        ("http://[::g]/secret", "host or port"),
        ("http://me:secret@node/", "user information"),
        ("http://@node/secret", "user information"),
    ],
)
def test_bad_urls(url: str, problem: str) -> None:
    with pytest.raises(RemoteProtocolError, match=problem) as caught:
        parse_url(url)
    assert "secret" not in str(caught.value)


# TCP


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_plain(host: str) -> None:
    async def scenario() -> bytes:
        async with serve(echo, host=host) as address:
            connection = await dial(parse_url(f"http://{address}/x"), timeout_s=10)
            assert connection.label == f"http://{address}"
            await connection.write(b"hello")
            answer = await connection.read()
            await connection.close()
            connection.abort()
            return answer

    assert run(scenario()) == b"hello"


def test_what_the_peer_has_closed_may_be_closed_and_aborted(certificates: Certificates) -> None:
    """Before Python 3.11.4, a TLS connection cannot be aborted after a second close."""

    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pass

    async def scenario() -> bytes:
        async with serve(leave, context=certificates.server_context()) as address:
            connection = await dial(parse_url(f"https://{address}/secret"), timeout_s=10)
            await connection._lost.wait()
            await connection.close()
            connection.abort()
            return await connection.read()

    assert run(scenario()) == b""


def test_nobody_there() -> None:
    with socket.socket() as taken:  # keeps other programs from listening there
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/secret"
        with pytest.raises(ConnectError) as caught:
            run(dial(parse_url(url), timeout_s=10))
    label = url.removesuffix("/secret")
    assert caught.value.message == f'cannot connect to "{label}": connection refused'


def test_connecting_takes_too_long(certificates: Certificates) -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def scenario() -> None:
        async with serve(mute) as address:  # it never answers the TLS handshake
            await dial(parse_url(f"https://{address}/secret"), timeout_s=0.1)

    # Reported before the timeout of the scenario.
    with pytest.raises(ConnectError, match=r"^cannot connect to \"https://127.*\": no connection"):
        run(scenario())


# TLS


def test_a_server_without_tls() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()

    async def scenario() -> None:
        async with serve(plain) as address:
            await dial(parse_url(f"https://{address}/secret"), timeout_s=10)

    with pytest.raises(
        ConnectError, match=r'^cannot connect to "https://.*": wrong version number'
    ):
        run(scenario())


@pytest.mark.parametrize("files", [{"cert": "a.pem"}, {"key": "a.key"}])
def test_certificate_and_key_go_together(files: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be given together"):
        run(dial(parse_url("https://127.0.0.1:1/x"), timeout_s=10, tls=TlsFiles(**files)))


def test_unusable_files(certificates: Certificates, tmp_path: Path) -> None:
    def refusal(**files: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            run(dial(parse_url("https://127.0.0.1:1/x"), timeout_s=10, tls=TlsFiles(**files)))
        return caught.value.message

    missing = str(tmp_path / "missing.pem")
    nonsense = str(tmp_path / "nonsense.pem")
    Path(nonsense).write_text("nonsense")
    key = certificates.key("client")

    assert refusal(ca=missing) == f'cannot use the TLS file "{missing}": no such file or directory'
    assert refusal(ca=nonsense).startswith(f'cannot use the TLS file "{nonsense}": no certificate')
    assert refusal(cert=missing, key=key).startswith(f'cannot use the TLS file "{missing}": ')
    assert refusal(cert=nonsense, key=key).startswith(f'cannot use the TLS file "{nonsense}": ')
    assert refusal(cert=certificates.cert("client"), key=certificates.key("server")).endswith(
        ": key values mismatch"
    )
