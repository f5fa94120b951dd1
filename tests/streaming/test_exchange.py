from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from pycrictl.errors import (
    ConnectError,
    UpgradeRefused,
)
from pycrictl.streaming.bytestream import dial
from pycrictl.streaming.opening import Exchange
from pycrictl.streaming.target import parse_url
from pycrictl.wire.http1 import ResponseHead
from tests.streaming.servers import Handler, read_head, run, send, serve

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

Use = Callable[[Exchange, ResponseHead], Awaitable[object]]


@asynccontextmanager
async def connected(handler: Handler, *headers: tuple[str, str]) -> AsyncIterator[Exchange]:
    """A request that has not been sent to a server yet."""
    async with serve(handler) as address:
        target = parse_url(f"http://{address}/secret")
        connection = await dial(target, timeout_s=10)
        try:
            yield Exchange(connection, target, "GET", headers)
        finally:
            connection.abort()


def answered(
    *pieces: bytes, use: Use, pause_s: float = 0.0, timeout_s: float = 10.0, stays: bool = False
) -> object:
    """Send a request to a server that answers in pieces; return what ``use`` makes of it."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        await send(reader, writer, pieces, pause_s=pause_s, stays=stays)

    async def scenario() -> object:
        async with connected(answer) as exchange:
            response = await exchange.request(timeout_s=timeout_s)
            return await use(exchange, response)

    return run(scenario())


async def read_all(exchange: Exchange, response: ResponseHead) -> bytes:
    body = b""
    while data := await exchange.read():
        body += data
    assert await exchange.read() == b""
    return body


async def refuse(exchange: Exchange, response: ResponseHead) -> UpgradeRefused:
    return await exchange.refusal()


def message_of(*pieces: bytes, stays: bool = False) -> str:
    """Return how a response is told that was not asked for, without the address."""
    refusal = answered(*pieces, use=refuse, stays=stays)
    assert isinstance(refusal, UpgradeRefused)
    label, _, rest = refusal.message.partition('" ')
    assert label.startswith('"http://127.0.0.1:')
    return f"{refusal.status} {rest}"


def test_reading_may_be_cancelled() -> None:
    is_cancelled = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n")
        await is_cancelled.wait()
        writer.write(b"abc")

    async def scenario() -> bytes:
        async with connected(answer) as exchange:
            response = await exchange.request(timeout_s=10)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(exchange.read(), 0.01)
            is_cancelled.set()
            return await read_all(exchange, response)

    assert run(scenario()) == b"abc"


# What goes wrong


def test_no_answer() -> None:
    with pytest.raises(ConnectError) as caught:
        answered(b"HTTP/1.1 200 OK\r\n", use=read_all, timeout_s=0.1, stays=True)
    assert caught.value.message.endswith('" accepts connections but does not answer within 0.1 s')
    assert "secret" not in caught.value.message


def test_a_slow_drip_is_no_answer() -> None:
    pieces = [bytes([byte]) for byte in b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1000]
    with pytest.raises(ConnectError):
        answered(*pieces, use=read_all, pause_s=0.01, timeout_s=0.2)


# Refusals


def test_refusals() -> None:
    assert message_of(b"HTTP/1.1 404\r\nContent-Length: 0\r\n\r\n") == (
        "404 answered with status 404"
    )
    assert message_of(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n") == (
        '404 answered with status 404: "Not Found"'
    )
    assert message_of(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 8\r\n\r\nno way\r\n") == (
        '403 answered with status 403: "no way"'
    )


def test_a_refusal_is_short_and_cannot_steer_a_terminal() -> None:
    message = message_of(b"HTTP/1.1 500 X\r\n\r\n\x1b[2J\xff\xc2\x9b" + b"x" * 100_000)
    assert message.isprintable()
    assert len(message) < 300


def test_a_refusal_does_not_wait_for_its_body() -> None:
    # It would wait for longer than the scenario may last.
    message = message_of(b"HTTP/1.1 500 X\r\nContent-Length: 99\r\n\r\nbecause", stays=True)
    assert message == '500 answered with status 500: "because"'
