"""Commands over SPDY against servers that behave exactly as badly as wanted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pycrictl.errors import StreamError
from pycrictl.wire.command import ExitReported, OutcomeUnknown, Streams
from pycrictl.wire.spdy.frames import RstStream
from tests.streaming.scene import Scene, SpdyTalk, spdy

from .spdy_server import SUCCESS, SpdyPeer, failure

PIPED = Streams(stdin=True)


class SpdyScene(Scene):
    def __init__(self, talk: SpdyTalk, **terms: Any) -> None:
        super().__init__(spdy(talk), **terms)

    def command(self, streams: Streams = PIPED, **terms: Any) -> ExitReported | None:
        return self.run(streams, choice="spdy", **terms)


async def until_gone(peer: SpdyPeer) -> None:
    while await peer.next_frame():
        pass


def test_the_outcome_survives_a_reset() -> None:
    """A server that closes with input of ours unread resets the connection."""

    async def talk(peer: SpdyPeer) -> None:
        await peer.accept(4)
        await peer.until_unread()
        peer.say("stdout", b"out")
        peer.end("stdout", "stderr")
        peer.say("error", failure(3), is_last=True)
        peer.writer.transport.abort()

    scene = SpdyScene(talk)
    outcome = scene.command(stdin=bytes(16 << 20))
    assert outcome is not None
    assert (outcome.exit_code, scene.stdout.getvalue()) == (3, "out")


@pytest.mark.parametrize("size_bytes", [0, 16 << 20])
def test_a_server_that_is_stuck_after_the_outputs(size_bytes: int) -> None:
    async def talk(peer: SpdyPeer) -> None:
        await peer.accept(4)
        peer.end("stdout", "stderr")
        await asyncio.sleep(20)

    scene = SpdyScene(talk)
    with pytest.raises(OutcomeUnknown, match="neither takes input nor answers"):
        scene.command(stdin=bytes(size_bytes), silence_s=0.5)
    assert len(scene.notes) == 1


def test_a_command_that_closes_its_outputs_and_works_on() -> None:
    async def talk(peer: SpdyPeer) -> None:
        await peer.accept(4)
        peer.end("stdout", "stderr")
        for _ in range(3):
            await peer.answer_ping()
        peer.say("error", SUCCESS, is_last=True)
        await until_gone(peer)

    scene = SpdyScene(talk)
    assert scene.command(silence_s=0.5) == ExitReported(0)
    assert len(scene.notes) == 1


def test_a_command_without_input_may_be_silent() -> None:
    async def talk(peer: SpdyPeer) -> None:
        await peer.accept(3)
        peer.end("stdout", "stderr")
        await asyncio.sleep(0.8)
        peer.say("error", SUCCESS, is_last=True)
        await until_gone(peer)

    scene = SpdyScene(talk)
    assert scene.command(Streams(), silence_s=0.5) == ExitReported(0)
    assert scene.notes == []


def test_a_server_that_never_opens_the_streams() -> None:
    async def talk(peer: SpdyPeer) -> None:
        await asyncio.sleep(20)

    with pytest.raises(StreamError, match="does not open the streams"):
        SpdyScene(talk).command(silence_s=0.1)


def test_input_that_the_server_refuses() -> None:
    """The command goes on without it."""

    async def talk(peer: SpdyPeer) -> None:
        await peer.accept(4)
        peer.send(RstStream(peer.ids["stdin"], 5))
        peer.say("stdout", b"out")
        peer.end("stdout", "stderr")
        peer.say("error", SUCCESS, is_last=True)
        await until_gone(peer)

    scene = SpdyScene(talk)
    assert scene.command(stdin=bytes(1 << 20)) == ExitReported(0)
    assert scene.stdout.getvalue() == "out"
