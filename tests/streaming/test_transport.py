"""Pieces over an upgraded connection."""

from __future__ import annotations

import asyncio
import struct

from pycrictl.streaming.transport import open_transport

from .servers import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    accept_upgrade,
    close_frame,
    frame,
    read_head,
    run,
    serve,
)

PROTOCOL = "v4.channel.k8s.io"
LONG = bytes(range(256)) * 300


async def read_message(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read a client's frame of any length; return opcode and payload."""
    first, second = await reader.readexactly(2)
    assert (first & 0x80, second & 0x80) == (0x80, 0x80)
    length = second & 0x7F
    if length > 125:
        form = "!H" if length == 126 else "!Q"
        (length,) = struct.unpack(form, await reader.readexactly(struct.calcsize(form)))
    key = await reader.readexactly(4)
    payload = await reader.readexactly(length)
    keys = (key * (length // 4 + 1))[:length]
    return first & 0xF, bytes(byte ^ mask for byte, mask in zip(payload, keys, strict=True))


def test_websocket_messages() -> None:
    heard: list[tuple[int, bytes]] = []
    is_over = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fields = await read_head(reader)
        chosen = f"Sec-WebSocket-Protocol: {PROTOCOL}"
        writer.write(accept_upgrade(fields, chosen) + frame(BINARY, b"early"))
        heard.extend([await read_message(reader) for _ in range(3)])
        writer.write(frame(PING, b"?") + frame(BINARY, b"a") + frame(BINARY, LONG))
        heard.append(await read_message(reader))
        writer.write(close_frame(1000))
        heard.append(await read_message(reader))
        heard.append((0, await reader.read()))
        is_over.set()

    async def scenario() -> list[bytes | memoryview]:
        async with serve(handler) as address:
            opened = await open_transport(
                "websocket", f"http://{address}/x", [PROTOCOL], timeout_s=10
            )
            assert opened.protocol == PROTOCOL
            opened.wire.send([b"short", LONG, b""])
            await opened.wire.drain()
            messages: list[bytes | memoryview] = []
            while pieces := await opened.wire.read():
                messages += pieces
            opened.wire.send([b"after the end"])
            await opened.wire.close()
            await is_over.wait()
            return messages

    assert run(scenario()) == [b"early", b"a", LONG]
    assert heard[:3] == [(BINARY, b"short"), (BINARY, LONG), (BINARY, b"")]
    assert heard[3:] == [(PONG, b"?"), (CLOSE, b"\x03\xe8"), (0, b"")]


def test_spdy_pieces() -> None:
    heard: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        head = [
            "HTTP/1.1 101 Switching Protocols",
            "Connection: Upgrade",
            "Upgrade: SPDY/3.1",
            f"X-Stream-Protocol-Version: {PROTOCOL}",
        ]
        writer.write("\r\n".join([*head, "", ""]).encode() + b"early")
        heard.append(await reader.readexactly(len(LONG) + 1))
        writer.write(LONG)

    async def scenario() -> bytes:
        async with serve(handler) as address:
            opened = await open_transport("spdy", f"http://{address}/x", [PROTOCOL], timeout_s=10)
            opened.wire.send([LONG, b"."])
            received = b""
            while pieces := await opened.wire.read():
                received += b"".join(pieces)
            await opened.wire.close()
            return received

    assert run(scenario()) == b"early" + LONG
    assert heard == [LONG + b"."]
