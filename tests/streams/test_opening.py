from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.base.errors import (
    ConnectError,
    LocalProtocolError,
    RemoteProtocolError,
    StreamError,
    UpgradeRefused,
)
from pycrictl.streams.bytestream import dial
from pycrictl.streams.opening import MAX_HEAD_BYTES, Exchange, Opening
from pycrictl.streams.target import parse_url
from tests.streams.servers import read_head, run, send, serve

HEAD = b"HTTP/1.1 200 OK\r\n"
LENGTH_5 = HEAD + b"Content-Length: 5\r\n\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
UPGRADE = (("Connection", "Upgrade"), ("Upgrade", "x"))


def opening(path: str = "/exec/token?a=b", *fields: tuple[str, str]) -> Opening:
    return Opening(parse_url(f"http://node:1{path}"), "GET", [*UPGRADE, *fields])


def receive(*pieces: bytes, eof: bool = False) -> Opening:
    made = opening()
    for piece in [*pieces, *([b""] if eof else [])]:
        assert not made.is_complete
        made.receive(piece)
    return made


def violation_of(*pieces: bytes) -> str:
    """Feed data that breaks the protocol; return the error message."""
    with pytest.raises(RemoteProtocolError) as caught:
        receive(*pieces)
    return caught.value.message


def test_request() -> None:
    versions = [("X-Stream-Protocol-Version", "v4"), ("X-Stream-Protocol-Version", "v3")]
    assert opening("/exec/token?a=b", *versions).head == (
        b"GET /exec/token?a=b HTTP/1.1\r\nHost: node:1\r\nUser-Agent: pycrictl\r\n"
        b"Connection: Upgrade\r\nUpgrade: x\r\n"
        b"X-Stream-Protocol-Version: v4\r\nX-Stream-Protocol-Version: v3\r\n\r\n"
    )


@pytest.mark.parametrize("field", [("A B", "secret"), ("A", "secret\r\nX: y"), ("A", "secret€")])
def test_what_cannot_be_sent_is_not_repeated(field: tuple[str, str]) -> None:
    with pytest.raises(
        LocalProtocolError, match=r"^the HTTP request would contain invalid characters$"
    ):
        opening("/", field)


@pytest.mark.parametrize("line", [b"HTTP/2 200 OK", b"HTTP/1.1 099 OK", b"SSH-2.0-x", b""])
def test_another_protocol(line: bytes) -> None:
    said = violation_of(line + b"\r\n\r\n")
    assert said == 'the peer does not speak HTTP/1.1 (from "http://node:1")'


def test_an_endless_head() -> None:
    assert "does not speak" in violation_of(HEAD + b"X: " + b"x" * MAX_HEAD_BYTES)


def test_101_leaves_the_rest_to_the_other_protocol() -> None:
    made = receive(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n\x81\x01a")
    assert made.is_complete
    assert made.leftover == b"\x81\x01a"
    assert receive(b"HTTP/1.1 101").leftover == b""


@pytest.mark.parametrize("data", [b"HTTP/1.1 200", LENGTH_5 + b"abcd", CHUNKED + b"5\r\nabc"])
def test_too_early_an_end(data: bytes) -> None:
    with pytest.raises(StreamError, match="the connection ended before the HTTP response did"):
        receive(data, eof=True)


WHOLE = b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED + b"6;ext\r\nabcdef\r\n1\r\ng\r\n0\r\n\r\n"


@given(st.lists(st.integers(1, len(WHOLE) - 1), unique=True))
def test_pieces_may_end_anywhere(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(WHOLE)]
    made = receive(*(WHOLE[start:end] for start, end in pairwise(edges)))
    assert made.is_complete
    assert made.body == b"abcdefg"


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (b"404\r\n\r\n", "404"),
        (b"404 Not Found\r\n\r\n", '404: "Not Found"'),
        (b"403 Forbidden\r\n\r\nno way\r\n", '403: "no way"'),
    ],
)
def test_refusals(response: bytes, said: str) -> None:
    refusal = receive(b"HTTP/1.1 " + response).refusal()
    assert refusal.message == f'"http://node:1" answered with status {said}'
    hostile = receive(b"HTTP/1.1 500 X\r\n\r\n\x1b[2J\xff\xc2\x9b" + b"x" * 100_000).refusal()
    assert hostile.message.isprintable()
    assert len(hostile.message) < 300


# On a connection


def exchanged(
    *pieces: bytes,
    use: Callable[[Exchange], Awaitable[object]],
    pause_s: float = 0.0,
    timeout_s: float = 10.0,
    stays: bool = False,
) -> object:
    """Send a request to a server that responds in pieces; return the result of ``use``."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        await send(reader, writer, pieces, pause_s=pause_s, stays=stays)

    async def scenario() -> object:
        async with serve(answer) as address:
            target = parse_url(f"http://{address}/secret")
            connection = await dial(target, timeout_s=10)
            exchange = Exchange(connection, target, "GET", ())
            try:
                await exchange.request(timeout_s=timeout_s)
                return await use(exchange)
            finally:
                connection.abort()

    return run(scenario())


@pytest.mark.parametrize("is_dripping", [False, True])
def test_no_answer(is_dripping: bool) -> None:
    pieces = [bytes([byte]) for byte in HEAD + b"X: " + b"x" * 1000] if is_dripping else [HEAD]
    with pytest.raises(ConnectError) as caught:
        exchanged(*pieces, use=Exchange.read, pause_s=0.01, timeout_s=0.2, stays=True)
    assert caught.value.message.endswith('" accepts connections but does not answer within 0.2 s')
    assert "secret" not in caught.value.message


def test_a_refusal_does_not_wait_for_its_body() -> None:
    head = b"HTTP/1.1 500 X\r\nContent-Length: 99\r\n\r\nbecause"
    # Waiting for it would exceed the timeout of the scenario.
    refusal = exchanged(head, use=Exchange.refused, stays=True)
    assert isinstance(refusal, UpgradeRefused)
    assert refusal.message.endswith('" answered with status 500: "because"')
