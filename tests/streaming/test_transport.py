"""Upgraded connections."""

from __future__ import annotations

import asyncio

import pytest

from pycrictl.errors import RemoteProtocolError
from pycrictl.streaming.remote_command import Transport, open_transport
from tests.streaming.servers import accept_upgrade, read_head, run, serve

PROTOCOL = "v4.channel.k8s.io"
LONG = bytes(range(256)) * 300
SPDY = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n{}\r\n"
CHOICE = {
    "websocket": f"Sec-WebSocket-Protocol: {PROTOCOL}",
    "spdy": f"X-Stream-Protocol-Version: {PROTOCOL}",
}


def answer(transport: Transport, fields: dict[str, str], choice: str) -> bytes:
    if transport == "websocket":
        return accept_upgrade(fields, choice)
    return SPDY.format(choice + "\r\n").encode()


@pytest.mark.parametrize("transport", CHOICE)
def test_bytes_after_the_upgrade(transport: Transport) -> None:
    heard: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fields = await read_head(reader)
        writer.write(answer(transport, fields, CHOICE[transport]) + b"early")
        heard.append(await reader.readexactly(len(LONG) + 1))
        writer.write(LONG)

    async def scenario() -> bytes:
        async with serve(handler) as address:
            connection, protocol = await open_transport(
                transport, f"http://{address}/x", [PROTOCOL], timeout_s=10
            )
            assert protocol == PROTOCOL
            connection.send([LONG, b"."])
            received = await connection.read()
            assert received == b"early"
            while data := await connection.read():
                received += data
            await connection.close()
            return received

    assert run(scenario()) == b"early" + LONG
    assert heard == [LONG + b"."]


@pytest.mark.parametrize("transport", CHOICE)
def test_what_was_not_offered(transport: Transport) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        choice = CHOICE[transport].replace("v4", "v3")
        writer.write(answer(transport, await read_head(reader), choice))

    async def scenario() -> None:
        async with serve(handler) as address:
            await open_transport(transport, f"http://{address}/x", [PROTOCOL], timeout_s=10)

    with pytest.raises(RemoteProtocolError, match=r"not offered|unsupported subprotocol"):
        run(scenario())
