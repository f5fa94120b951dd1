"""Commands over SPDY against servers that behave exactly as badly as wanted."""

from __future__ import annotations

import asyncio
import io
import tempfile
from collections.abc import Awaitable, Callable

import pytest

from pycrictl.errors import StreamError
from pycrictl.streaming.pump import Ends, Input, Output
from pycrictl.streaming.remote_command import run_command
from pycrictl.wire.command import ExitReported, OutcomeUnknown, Streams
from pycrictl.wire.spdy.frames import ResetStatus, RstStream
from tests.streaming.servers import read_head, run, serve

from .spdy_server import SUCCESS, UPGRADE, SpdyPeer, failure

Talk = Callable[[SpdyPeer], Awaitable[None]]
PIPED = Streams(stdin=True)


class Scene:
    """A server that goes on with ``talk`` after the upgrade; and what a command made of it."""

    def __init__(self, talk: Talk, *, protocol: str = "v4.channel.k8s.io") -> None:
        self.notes: list[str] = []
        self.stdout, self.stderr = io.StringIO(), io.StringIO()
        self._talk = talk
        self._protocol = protocol

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(UPGRADE.format(self._protocol).encode())
        await self._talk(SpdyPeer(reader, writer))

    def run(
        self, streams: Streams = PIPED, *, stdin: bytes = b"", silence_s: float = 10
    ) -> ExitReported | None:
        async def scenario() -> ExitReported | None:
            with tempfile.TemporaryFile("w+b") as file:
                file.write(stdin)
                file.seek(0)
                ends = Ends(
                    Output(self.stdout),
                    Output(self.stderr),
                    Input(io.TextIOWrapper(file)) if streams.stdin else None,
                    note=self.notes.append,
                )
                async with serve(self._handle) as address:
                    return await run_command(
                        lambda: f"http://{address}/exec/secret",
                        streams,
                        ends,
                        choice="spdy",
                        timeout_s=30,
                        silence_s=silence_s,
                    )

        return run(scenario())


async def until_gone(peer: SpdyPeer) -> None:
    while await peer.next_frame():
        pass


def test_everything_in_good_order() -> None:
    async def talk(peer: SpdyPeer) -> None:
        await peer.accept(4)
        await peer.read_stdin()
        peer.say("stdout", peer.stdin)
        peer.say("stderr", b"err")
        peer.end("stdout", "stderr")
        peer.say("error", failure(7), is_last=True)
        await until_gone(peer)

    scene = Scene(talk)
    outcome = scene.run(stdin=b"in")
    assert outcome is not None
    assert outcome.exit_code == 7
    assert (scene.stdout.getvalue(), scene.stderr.getvalue(), scene.notes) == ("in", "err", [])


def test_the_outcome_survives_a_reset() -> None:
    """A server that closes with input of ours unread resets the connection."""

    async def talk(peer: SpdyPeer) -> None:
        await peer.accept(4)
        await peer.until_unread()
        peer.say("stdout", b"out")
        peer.end("stdout", "stderr")
        peer.say("error", failure(3), is_last=True)
        peer.writer.transport.abort()

    scene = Scene(talk)
    outcome = scene.run(stdin=bytes(16 << 20))
    assert outcome is not None
    assert (outcome.exit_code, scene.stdout.getvalue()) == (3, "out")


def test_a_reset_without_an_outcome() -> None:
    async def talk(peer: SpdyPeer) -> None:
        await peer.accept(4)
        await peer.until_unread()
        peer.writer.transport.abort()

    with pytest.raises(
        OutcomeUnknown, match=r"no exit status: .*broke: connection reset"
    ) as caught:
        Scene(talk).run(stdin=bytes(16 << 20))
    assert caught.value.exit_code == 1
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("size_bytes", [0, 16 << 20])
def test_a_server_that_is_stuck_after_the_outputs(size_bytes: int) -> None:
    async def talk(peer: SpdyPeer) -> None:
        await peer.accept(4)
        peer.end("stdout", "stderr")
        await asyncio.sleep(20)

    scene = Scene(talk)
    with pytest.raises(OutcomeUnknown, match="neither takes input nor answers"):
        scene.run(stdin=bytes(size_bytes), silence_s=0.5)
    assert len(scene.notes) == 1


def test_a_command_that_closes_its_outputs_and_works_on() -> None:
    async def talk(peer: SpdyPeer) -> None:
        await peer.accept(4)
        peer.end("stdout", "stderr")
        for _ in range(3):
            await peer.answer_ping()
        peer.say("error", SUCCESS, is_last=True)
        await until_gone(peer)

    scene = Scene(talk)
    assert scene.run(silence_s=0.5) == ExitReported(0)
    assert len(scene.notes) == 1


def test_a_command_without_input_may_be_silent() -> None:
    async def talk(peer: SpdyPeer) -> None:
        await peer.accept(3)
        peer.end("stdout", "stderr")
        await asyncio.sleep(0.8)
        peer.say("error", SUCCESS, is_last=True)
        await until_gone(peer)

    scene = Scene(talk)
    assert scene.run(Streams(), silence_s=0.5) == ExitReported(0)
    assert scene.notes == []


def test_a_server_that_never_opens_the_streams() -> None:
    async def talk(peer: SpdyPeer) -> None:
        await asyncio.sleep(20)

    with pytest.raises(StreamError, match="does not open the streams"):
        Scene(talk).run(silence_s=0.1)


def test_input_that_the_server_refuses() -> None:
    """The command goes on without it."""

    async def talk(peer: SpdyPeer) -> None:
        await peer.accept(4)
        peer.send(RstStream(peer.ids["stdin"], ResetStatus.CANCEL))
        peer.say("stdout", b"out")
        peer.end("stdout", "stderr")
        peer.say("error", SUCCESS, is_last=True)
        await until_gone(peer)

    scene = Scene(talk)
    assert scene.run(stdin=bytes(1 << 20)) == ExitReported(0)
    assert scene.stdout.getvalue() == "out"


def control(kind: int, payload: bytes, *, size: int = -1) -> bytes:
    """A control frame, whose size may be a lie."""
    size = len(payload) if size < 0 else size
    return bytes((0x80, 3, 0, kind, 0)) + size.to_bytes(3, "big") + payload


@pytest.mark.parametrize("protocol", ["v5.channel.k8s.io", "", "x"])
def test_a_protocol_that_was_not_offered(protocol: str) -> None:
    async def talk(peer: SpdyPeer) -> None:
        await until_gone(peer)

    with pytest.raises(StreamError):
        Scene(talk, protocol=protocol).run()
