"""Commands over WebSocket against servers that behave exactly as badly as wanted."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from pycrictl.errors import StreamError, UpgradeRefused
from pycrictl.streaming.remote_command import Choice, attempts
from pycrictl.wire.command import ExitReported, Streams
from tests.streaming.scene import Scene, Talk
from tests.streaming.servers import read_frame, write
from tests.wire.frames import BINARY, PING, close_frame, frame

OUTPUT_ONLY = Streams()
MIB = 2**20


class WebSocketScene(Scene):
    def command(
        self, streams: Streams = OUTPUT_ONLY, *, choice: Choice = "websocket", **terms: Any
    ) -> ExitReported | None:
        return self.run(streams, choice=choice, **terms)


def status(code: int) -> bytes:
    if not code:
        return b'\x03{"status":"Success"}'
    cause = {"reason": "ExitCode", "message": str(code)}
    failure = {"reason": "NonZeroExitCode", "details": {"causes": [cause]}}
    return b"\x03" + json.dumps({"status": "Failure", **failure}).encode()


def say(*messages: bytes) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(frame(BINARY, message) for message in messages) + close_frame(1000))
        await reader.read()

    return talk


def test_outputs_and_outcome() -> None:
    scene = WebSocketScene(say(b"\x01", b"\x01a", b"\x02b", b"\x01c", status(7)))
    outcome = scene.command()
    assert outcome is not None
    assert outcome.exit_code == 7
    assert (scene.stdout.getvalue(), scene.stderr.getvalue()) == ("ac", "b")


@pytest.mark.parametrize("version", [4, 5])
def test_the_end_of_the_input(version: int) -> None:
    received: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append((await read_frame(reader))[1])
        if version == 5:
            received.append((await read_frame(reader))[1])
        else:
            await scene.is_noted.wait()  # that the end cannot be told
        writer.write(frame(BINARY, status(0)) + close_frame(1000))
        await reader.read()

    scene = WebSocketScene(talk, protocol=f"v{version}.channel.k8s.io")
    assert scene.command(Streams(stdin=True), stdin=b"x") == ExitReported(0)
    assert received == [b"\x00x", b"\xff\x00"][: version - 3]
    assert len(scene.notes) == (version == 4)


def test_a_server_that_asks_for_pongs_and_takes_none() -> None:
    pings = frame(PING, b"x" * 100) * 999 + frame(BINARY, b"\x01a")

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(100):
            await write(writer, pings)
        writer.write(frame(BINARY, status(0)) + close_frame(1000))
        await reader.read()

    scene = WebSocketScene(talk)
    assert scene.command() == ExitReported(0)
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
        scene = WebSocketScene(talk)
        scene.stdout = nowhere
        tracemalloc.start()
        try:
            with pytest.raises(StreamError, match="no exit status"):
                scene.command()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    # What the server of the test has in hand counts as well: at most one piece.
    assert peak < max(map(len, pieces)) + 8 * MIB


def test_what_is_tried() -> None:
    with_input = Streams(stdin=True)
    assert [transport for transport, _ in attempts("auto", OUTPUT_ONLY)] == ["websocket", "spdy"]
    assert attempts("auto", with_input)[0] == ("websocket", ("v5.channel.k8s.io",))
    assert [transport for transport, _ in attempts("spdy", with_input)] == ["spdy"]
    assert "v4.channel.k8s.io" in attempts("websocket", with_input)[0][1]


@pytest.mark.parametrize("choice", ["auto", "websocket"])
def test_nobody_ends_the_input_of_what_was_there_before(choice: Choice) -> None:
    """A server takes the input to have ended with every protocol but the newest."""
    (_, offered), *others = attempts(choice, OUTPUT_ONLY, is_attach=True)
    assert offered == ("v5.channel.k8s.io",)
    assert [transport for transport, _ in others] == ["spdy"] * (choice == "auto")
    assert attempts(choice, Streams(stdin=True), is_attach=True) == attempts(
        choice, Streams(stdin=True)
    )


def test_attaching_tells_why_websocket_is_refused() -> None:
    scene = WebSocketScene(say(), refuses=1)
    with pytest.raises(UpgradeRefused, match="could end the standard input") as caught:
        scene.command(is_attach=True)
    assert caught.value.hint == "use --transport spdy"
    assert [head["sec-websocket-protocol"] for head in scene.heads] == ["v5.channel.k8s.io"]


def test_auto_goes_on_to_spdy() -> None:
    scene = WebSocketScene(say(), refuses=2)
    with pytest.raises(UpgradeRefused):
        scene.command(choice="auto")
    assert [head["upgrade"] for head in scene.heads] == ["websocket", "SPDY/3.1"]


def test_a_refused_websocket_is_told_when_asked_for() -> None:
    scene = WebSocketScene(say(), refuses=1)
    with pytest.raises(UpgradeRefused, match="403"):
        scene.command()
    assert len(scene.heads) == 1
