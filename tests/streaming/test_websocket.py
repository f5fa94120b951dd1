from __future__ import annotations

import asyncio
import socket
import tracemalloc

import pytest

from pycrictl.errors import RemoteProtocolError, StreamError
from pycrictl.streaming.dial import dial
from pycrictl.streaming.target import parse_url
from pycrictl.streaming.upgrade import Upgrade
from pycrictl.streaming.websocket import MessageReader
from pycrictl.wire.http1 import Headers, ResponseReceived
from tests.streaming.servers import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TEXT,
    Handler,
    close_frame,
    frame,
    read_frame,
    run,
    send,
    serve,
)

MIB = 2**20

# The opening handshake. The key and its answer are the example of RFC 6455, 1.3.

GOOD = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Accept": "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
}


def upgrade(*protocols: str) -> Upgrade:
    result = Upgrade(protocols)
    result._key = "dGhlIHNhbXBsZSBub25jZQ=="
    return result


def response(**changes: str | None) -> ResponseReceived:
    fields = {**GOOD, **{name.replace("_", "-"): value for name, value in changes.items()}}
    headers = Headers((name, value) for name, value in fields.items() if value is not None)
    return ResponseReceived(101, "Switching Protocols", headers)


def test_request_headers() -> None:
    assert upgrade().headers == [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ]
    assert upgrade("v5", "v4").headers[-1] == ("Sec-WebSocket-Protocol", "v5, v4")


def test_every_key_is_another() -> None:
    assert len({dict(Upgrade().headers)["Sec-WebSocket-Key"] for _ in range(10)}) == 10


@pytest.mark.parametrize(
    ("answer", "protocol"),
    [
        (response(), ""),
        (response(Sec_WebSocket_Protocol=""), ""),  # as the runtimes' server does
        (response(Sec_WebSocket_Protocol="v4"), "v4"),
        (response(Sec_WebSocket_Extensions=""), ""),
        (response(Upgrade="WebSocket", Connection="keep-alive, upgrade"), ""),
    ],
)
def test_good_answers(answer: ResponseReceived, protocol: str) -> None:
    assert upgrade("v5", "v4").check(answer) == protocol


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (response(Upgrade=None), "handshake is wrong"),
        (response(Upgrade="SPDY/3.1"), "handshake is wrong"),
        (response(Connection=None), "handshake is wrong"),
        (response(Connection="close"), "handshake is wrong"),
        (response(Sec_WebSocket_Accept=None), "handshake is wrong"),
        (response(Sec_WebSocket_Accept="x3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "handshake is wrong"),
        (response(Sec_WebSocket_Extensions="permessage-deflate"), "extension"),
        (response(Sec_WebSocket_Protocol="v3"), "subprotocol"),
        (response(Sec_WebSocket_Protocol="v5, v4"), "subprotocol"),
    ],
)
def test_bad_answers(answer: ResponseReceived, what: str) -> None:
    with pytest.raises(RemoteProtocolError, match=what):
        upgrade("v5", "v4").check(answer)


# Messages


async def reading(
    handler: Handler,
    found: list[bytes],
    *,
    leftover: bytes = b"",
    is_answered: asyncio.Event | None = None,
) -> None:
    """Read what a server sends after the handshake until the end, and until it is answered."""
    async with serve(handler) as address:
        connection = await dial(parse_url(f"ws://{address}/secret"), timeout_s=10)
        try:
            reader = MessageReader(connection, leftover, max_message_bytes=MIB)
            while batch := await reader.read():
                found += batch
        finally:
            connection.abort()
            if is_answered is not None:
                await is_answered.wait()


def sending(*pieces: bytes, pause_s: float = 0.0, stays: bool = True) -> Handler:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await send(reader, writer, pieces, pause_s=pause_s, stays=stays)

    return handler


def messages(*pieces: bytes, pause_s: float = 0.0, leftover: bytes = b"") -> list[bytes]:
    found: list[bytes] = []
    run(reading(sending(*pieces, pause_s=pause_s), found, leftover=leftover))
    return found


def failure(*pieces: bytes, before: int = 0, stays: bool = True) -> StreamError:
    """Return how the stream fails, after a number of good messages."""
    found: list[bytes] = []
    with pytest.raises(StreamError) as caught:
        run(reading(sending(*pieces, stays=stays), found))
    assert len(found) == before
    assert "secret" not in caught.value.message
    return caught.value


def test_text_and_binary() -> None:
    assert messages(frame(TEXT, b"a") + frame(BINARY, b"\xff") + close_frame(1000)) == [
        b"a",
        b"\xff",
    ]


def test_text_need_not_be_utf8() -> None:
    assert messages(frame(TEXT, b"\xff"), close_frame(1000)) == [b"\xff"]


def test_fragments() -> None:
    parts = [frame(TEXT, b"a", fin=False), frame(0, b"b", fin=False), frame(PING), frame(0, b"c")]
    assert messages(*parts, frame(TEXT), close_frame(1000)) == [b"abc", b""]


def test_byte_by_byte() -> None:
    stream = frame(TEXT, b"a" * 200) + close_frame(1000)
    assert messages(*[bytes([byte]) for byte in stream], pause_s=0.001) == [b"a" * 200]


def test_messages_beyond_the_handshake() -> None:
    stream = frame(TEXT, b"a" * 200)
    assert messages(stream[50:] + close_frame(1000), leftover=frame(TEXT, b"b") + stream[:50]) == [
        b"b",
        b"a" * 200,
    ]


def test_the_end_beyond_the_handshake() -> None:
    assert messages(leftover=frame(TEXT, b"a") + close_frame(1000)) == [b"a"]


@pytest.mark.parametrize("end", [close_frame(1000), close_frame(1000, "done"), frame(CLOSE)])
def test_normal_ends(end: bytes) -> None:
    assert messages(frame(TEXT, b"a"), end) == [b"a"]


def test_pings_and_the_close_are_answered() -> None:
    answers = []
    is_answered = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(PING, b"1") + frame(PING, b"2") + frame(PONG, b"unasked"))
        answers.append(await read_frame(reader))
        answers.append(await read_frame(reader))
        writer.write(close_frame(1000, "bye"))
        answers.append(await read_frame(reader))
        is_answered.set()

    run(reading(handler, [], is_answered=is_answered))
    assert answers == [(PONG, b"1"), (PONG, b"2"), (CLOSE, b"\x03\xe8bye")]


def test_nobody_has_to_read_the_answer_to_the_close() -> None:
    found: list[bytes] = []
    run(reading(sending(frame(TEXT, b"a"), close_frame(1000), stays=False), found))
    assert found == [b"a"]


async def reading_from_nobody(leftover: bytes) -> list[bytes]:
    async with serve(sending()) as address:
        connection = await dial(parse_url(f"ws://{address}"), timeout_s=10)
        connection.abort()
        await asyncio.sleep(0)  # only then the connection is lost
        return await MessageReader(connection, leftover, max_message_bytes=MIB).read()


def test_nobody_has_to_be_there_for_the_answer_to_the_close() -> None:
    assert run(reading_from_nobody(close_frame(1000))) == []


def test_a_pong_that_cannot_be_sent() -> None:
    with pytest.raises(StreamError, match="dropped the connection"):
        run(reading_from_nobody(frame(PING)))


def test_reading_may_be_cancelled() -> None:
    async def scenario() -> list[bytes]:
        cancelled = asyncio.Semaphore(0)

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for piece in (frame(PING), frame(TEXT, b"abc")[:3], b"bc", close_frame(1000)):
                writer.write(piece)
                await cancelled.acquire()
            await reader.read()

        async with serve(handler) as address:
            connection = await dial(parse_url(f"ws://{address}"), timeout_s=10)
            reader = MessageReader(connection, b"", max_message_bytes=MIB)
            count = 0
            while True:
                try:
                    batch = await asyncio.wait_for(reader.read(), 0.01)
                    break
                except TimeoutError:
                    count += 1
                    cancelled.release()
            assert count > 1
            connection.abort()
            return batch

    assert run(scenario()) == [b"abc"]


# What goes wrong


@pytest.mark.parametrize("code", [1001, 1002, 1008, 1011, 1012, 4000])
def test_other_closes(code: int) -> None:
    error = failure(frame(TEXT, b"a"), close_frame(code), before=1)
    assert type(error) is StreamError
    assert error.message.endswith(f'" closed the stream with status {code}')


def test_the_reason_of_a_close_cannot_steer_a_terminal() -> None:
    error = failure(close_frame(1011, "\x1b[2Jsorry"))
    assert error.message.endswith("with status 1011: '\\x1b[2Jsorry'")


@pytest.mark.parametrize("pieces", [[], [frame(TEXT, b"abc")[:3]], [b"\x81"]])
def test_the_connection_ends_without_a_close(pieces: list[bytes]) -> None:
    error = failure(frame(TEXT, b"a"), *pieces, before=1, stays=False)
    assert type(error) is StreamError
    assert error.message.endswith('" dropped the connection without closing the stream')


@pytest.mark.parametrize(
    "pieces",
    [
        [b"\x81\x81\x00\x00\x00\x00a"],  # masked
        [b"\xc1\x01a"],  # a reserved bit
        [b"\x83\x00"],  # a reserved opcode
        [frame(0, b"a")],  # goes on with nothing
        [frame(TEXT, b"a", fin=False), frame(TEXT, b"b")],
        [frame(PING, b"a", fin=False)],
        [frame(PING, b"a" * 126)],
        [frame(CLOSE, b"\x03")],
        [frame(CLOSE, b"\x03\xed")],  # 1005 must not be sent
        [frame(CLOSE, b"\x03\xe8\xff")],
        [frame(TEXT, b"a", fin=False), close_frame(1000)],
    ],
)
def test_broken_frames(pieces: list[bytes]) -> None:
    error = failure(frame(TEXT, b"a"), *pieces, before=1)
    assert type(error) is RemoteProtocolError
    assert '" broke the WebSocket protocol: ' in error.message


@pytest.mark.parametrize(
    "pieces",
    [
        [frame(TEXT, length=MIB + 1)],
        [frame(TEXT, length=2**62)],
        [frame(TEXT, b"x" * MIB, fin=False), frame(0, b"x")],
    ],
)
def test_too_long_a_message(pieces: list[bytes]) -> None:
    error = failure(frame(TEXT, b"a"), *pieces, before=1)
    assert type(error) is RemoteProtocolError
    assert error.message.endswith('" sent a message of more than 1048576 bytes')


def test_the_longest_message() -> None:
    (message,) = messages(frame(TEXT, b"x" * MIB), close_frame(1000))
    assert len(message) == MIB


def test_the_peer_is_told_of_too_long_a_message() -> None:
    answers = []
    is_answered = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(TEXT, length=MIB + 1))
        answers.append(await read_frame(reader))
        is_answered.set()

    with pytest.raises(RemoteProtocolError):
        run(reading(handler, [], is_answered=is_answered))
    ((opcode, payload),) = answers
    assert (opcode, payload[:2]) == (CLOSE, b"\x03\xf1")  # 1009


def test_a_peer_that_asks_for_pongs_and_takes_none() -> None:
    pings = frame(PING, b"x" * 100) * 1000

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(100):
            writer.write(pings)
            await writer.drain()
        writer.write(frame(TEXT, b"in the end") + close_frame(1000))
        await reader.read()  # what is left unread would break the connection

    found: list[bytes] = []
    run(reading(handler, found))
    assert found == [b"in the end"]


@pytest.mark.parametrize(
    ("pieces", "count"),
    [
        ([frame(TEXT, length=100 * MIB), *[b"x" * MIB] * 100], 0),
        ([frame(TEXT, b"x" * 1000, fin=False), *[frame(0, b"x" * 1000, fin=False)] * 9000], 0),
        ([*[frame(TEXT, fin=False) + frame(0, fin=False) * 9000] * 2], 0),
        ([frame(PING, b"x" * 100) * 90_000, close_frame(1000)], 0),
        ([frame(TEXT, b"x" * MIB) * 10, close_frame(1000)], 10),
    ],
)
def test_memory_stays_small(pieces: list[bytes], count: int) -> None:
    seen = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    async def scenario() -> None:
        nonlocal seen
        async with serve(handler) as address:
            connection = await dial(parse_url(f"ws://{address}"), timeout_s=10)
            reader = MessageReader(connection, b"", max_message_bytes=MIB)
            try:
                while batch := await reader.read():
                    seen += len(batch)
            except StreamError:
                pass
            finally:
                connection.abort()

    sent = sum(map(len, pieces))
    tracemalloc.start()
    try:
        run(scenario())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seen == count
    # What the server of the test has in hand counts as well: at most one piece.
    assert peak < max(map(len, pieces)) + 8 * MIB, f"{peak} bytes for {sent}"
