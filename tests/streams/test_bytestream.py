"""Reading and writing an open connection, beyond the cases of ``test_dial``."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from pycrictl.base.errors import StreamError
from pycrictl.streams.bytestream import HELD_BYTES, READ_BYTES, ByteStream, dial
from pycrictl.streams.target import parse_url
from tests.streams.servers import Handler, run, serve
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
