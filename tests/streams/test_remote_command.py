"""Remote commands on servers that misbehave exactly as a test wants."""

from __future__ import annotations

import asyncio
import io
import os
import socket
import tempfile
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pycrictl.base.errors import RemoteProtocolError, StreamError, UpgradeRefused
from pycrictl.streams.pump import Ends, Input, Output
from pycrictl.streams.remote_command import Transport, run_command, usable
from pycrictl.streams.wire.command import ExitReported, Streams
from tests.streams.servers import accept_upgrade, read_head, run, serve, write
from tests.streams.wire.frames import BINARY, PING, close_frame, frame
from tests.streams.wire.spdyframes import RstStream

from .spdy_server import SUCCESS, UPGRADE, SpdyPeer, failure

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
SpdyTalk = Callable[[SpdyPeer], Awaitable[None]]

OUTPUT_ONLY = Streams()
PIPED = Streams(stdin=True)
TERMINAL = Streams(stdin=True, stderr=False, tty=True)
MIB = 2**20


class Scene:
    """A server that refuses some requests, then chooses a protocol and runs ``talk``."""

    def __init__(
        self, talk: Talk, *, protocol: str = "v4.channel.k8s.io", refuses: int = 0
    ) -> None:
        self.heads: list[dict[str, str]] = []
        self.stdout: Any = io.StringIO()
        self.stderr = io.StringIO()
        self._talk = talk
        self._protocol = protocol
        self._refuses = refuses

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_head(reader)
        self.heads.append(head)
        if len(self.heads) <= self._refuses:
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        elif head["upgrade"] == "websocket":
            writer.write(accept_upgrade(head, f"Sec-WebSocket-Protocol: {self._protocol}"))
            await self._talk(reader, writer)
        else:
            writer.write(UPGRADE.format(self._protocol).encode())
            await self._talk(reader, writer)

    def websocket(self, streams: Streams = OUTPUT_ONLY) -> ExitReported | None:
        return self.run(streams, transport="websocket")

    def spdy(self, streams: Streams = PIPED, **terms: Any) -> ExitReported | None:
        return self.run(streams, transport="spdy", **terms)

    def run(
        self,
        streams: Streams,
        *,
        transport: Transport,
        stdin: bytes = b"",
        opening_s: float = 10,
    ) -> ExitReported | None:
        async def scenario() -> ExitReported | None:
            with tempfile.TemporaryFile("w+b") as file:
                file.write(stdin)
                file.seek(0)
                ends = Ends(
                    Output(self.stdout),
                    Output(self.stderr),
                    Input(io.TextIOWrapper(file)) if streams.stdin else None,
                )
                async with serve(self._handle) as address:
                    return await run_command(
                        lambda: f"http://{address}/exec/secret",
                        streams,
                        ends,
                        transport=transport,
                        timeout_s=30,
                        opening_s=opening_s,
                    )

        return run(scenario())


def spdy(talk: SpdyTalk) -> Talk:
    async def talk_to_peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await talk(SpdyPeer(reader, writer))

    return talk_to_peer


# WebSocket


def say(*messages: bytes) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(frame(BINARY, message) for message in messages) + close_frame(1000))
        await reader.read()

    return talk


def test_outputs_and_outcome() -> None:
    scene = Scene(say(b"\x01", b"\x01a", b"\x02b", b"\x01c", b"\x03" + failure(7)))
    outcome = scene.websocket()
    assert outcome is not None
    assert outcome.exit_code == 7
    assert (scene.stdout.getvalue(), scene.stderr.getvalue()) == ("ac", "b")


def test_a_server_that_asks_for_pongs_and_takes_none() -> None:
    pings = frame(PING, b"x" * 100) * 999 + frame(BINARY, b"\x01a")

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(100):
            await write(writer, pings)
        writer.write(frame(BINARY, b"\x03" + SUCCESS) + close_frame(1000))
        await reader.read()

    scene = Scene(talk)
    assert scene.websocket() == ExitReported(0)
    assert scene.stdout.getvalue() == "a" * 100


@pytest.mark.parametrize(
    "pieces",
    [
        [frame(BINARY, b"\x01", length=64 * MIB + 1), *[b"x" * MIB] * 64],
        [
            frame(BINARY, b"\x01" + b"x" * 1000, fin=False),
            *[frame(0, b"x" * 1000, fin=False)] * 9000,
        ],
        [frame(BINARY, fin=False) + frame(0, fin=False) * 9000],
        [frame(PING, b"x" * 100) * 30_000],
    ],
)
def test_memory_stays_small(pieces: list[bytes]) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            await write(writer, piece)

    with Path(os.devnull).open("w") as nowhere:
        scene = Scene(talk)
        scene.stdout = nowhere
        tracemalloc.start()
        try:
            with pytest.raises(StreamError, match="no exit status"):
                scene.websocket()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    # The memory of the test's server counts, too: at most one piece.
    assert peak < max(map(len, pieces)) + 8 * MIB


@pytest.mark.parametrize(
    ("streams", "is_attach", "used"),
    [
        (OUTPUT_ONLY, False, "websocket"),
        (PIPED, True, "spdy"),
        (TERMINAL, True, "websocket"),
        # A server ends an input that was not requested: attaching must not end that of a running
        # container.
        (OUTPUT_ONLY, True, "spdy"),
    ],
)
def test_what_is_used_for_websocket(streams: Streams, is_attach: bool, used: Transport) -> None:
    assert usable("websocket", streams, is_attach=is_attach) == used


@pytest.mark.parametrize("transport", ["websocket", "spdy"])
def test_what_was_not_offered(transport: Transport) -> None:
    with pytest.raises(RemoteProtocolError, match=r"not offered|unsupported subprotocol"):
        Scene(say(), protocol="v3.channel.k8s.io").run(OUTPUT_ONLY, transport=transport)


def test_a_refused_websocket_is_told_with_what_helps() -> None:
    scene = Scene(say(), refuses=1)
    with pytest.raises(UpgradeRefused, match="403") as caught:
        scene.websocket()
    assert caught.value.hint == "use --transport spdy"
    assert [head["sec-websocket-protocol"] for head in scene.heads] == ["v4.channel.k8s.io"]


# SPDY


async def until_gone(peer: SpdyPeer) -> None:
    while await peer.next_frame():
        pass


def test_the_outcome_survives_a_reset() -> None:
    """If a server closes the connection with unread input, the connection is reset."""

    async def talk(peer: SpdyPeer) -> None:
        await peer.accept(4)
        await peer.until_unread()
        peer.say("stdout", b"out")
        peer.end("stdout", "stderr")
        peer.say("error", failure(3), is_last=True)
        peer.writer.transport.abort()

    scene = Scene(spdy(talk))
    outcome = scene.spdy(stdin=bytes(16 << 20))
    assert outcome is not None
    assert (outcome.exit_code, scene.stdout.getvalue()) == (3, "out")


def test_a_server_that_never_opens_the_streams() -> None:
    async def talk(peer: SpdyPeer) -> None:
        await asyncio.sleep(20)

    with pytest.raises(StreamError, match="did not open the streams in time"):
        Scene(spdy(talk)).spdy(opening_s=0.1)


def test_input_that_the_server_refuses() -> None:
    """The command continues without it."""

    async def talk(peer: SpdyPeer) -> None:
        await peer.accept(4)
        peer.send(RstStream(peer.ids["stdin"], 5))
        peer.say("stdout", b"out")
        peer.end("stdout", "stderr")
        peer.say("error", SUCCESS, is_last=True)
        await until_gone(peer)

    scene = Scene(spdy(talk))
    assert scene.spdy(stdin=bytes(1 << 20)) == ExitReported(0)
    assert scene.stdout.getvalue() == "out"
