"""Local ports, and forwarding them to servers that behave exactly as badly as wanted."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from pycrictl.errors import ConnectError, StreamError, UpgradeRefused, UsageError
from pycrictl.streaming.forwarding import Forwarder, PortPair, listen, parse_pair
from pycrictl.streaming.transport import Transport
from pycrictl.wire.spdy_frames import Data, GoAway, ResetStatus, RstStream, SynReply, SynStream

from .servers import (
    BINARY,
    Handler,
    accept_upgrade,
    close_frame,
    frame,
    read_frame,
    read_head,
    run,
    serve,
)
from .spdy_server import UPGRADE, SpdyPeer

Talk = Callable[[SpdyPeer], Awaitable[None]]
LIMIT_S = 30


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("5000", PortPair(5000, 5000)),
        ("8888:5000", PortPair(8888, 5000)),
        (":5000", PortPair(0, 5000)),
        ("0:5000", PortPair(0, 5000)),
        ("65535:1", PortPair(65535, 1)),
    ],
)
def test_ports(text: str, pair: PortPair) -> None:
    assert parse_pair(text) == pair


@pytest.mark.parametrize(
    "text", ["", ":", "abc", "1:2:3", "8080:0", "0", "65536", "65536:1", "-1", "1:", "+1", "١"]
)
def test_no_ports(text: str) -> None:
    with pytest.raises(UsageError):
        parse_pair(text)


def test_both_loopback_addresses_get_the_same_free_port() -> None:
    notes: list[str] = []
    listeners = listen(["localhost"], [PortPair(0, 80), PortPair(0, 81)], note=notes.append)
    try:
        assert [listener.remote for listener in listeners] == [80, 80, 81, 81]
        first, second = listeners[0], listeners[1]
        assert first.port == second.port > 0
        assert first.label == f"127.0.0.1:{first.port}"
        assert second.label == f"[::1]:{first.port}"
        assert notes == []
    finally:
        for listener in listeners:
            listener.socket.close()


def test_a_port_that_is_taken() -> None:
    notes: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (only,) = listen(["localhost"], [PortPair(port, 80)], note=notes.append)
        with only.socket:
            assert only.label == f"[::1]:{port}"
        assert notes == []
        with pytest.raises(ConnectError):
            listen(["127.0.0.1"], [PortPair(port, 80)], note=notes.append)
    assert notes == [f"cannot listen on port {port}: address already in use"]


def test_an_address_that_is_none() -> None:
    with pytest.raises(UsageError, match="no IP address"):
        listen(["node.test"], [PortPair(0, 80)], note=print)


class Scene:
    """A forwarder on a free port.

    Attributes:
        port: the local port.
        asked: the ports that each URL was asked for with.
        running: ends when forwarding does.
    """

    def __init__(self, address: str, transport: Transport) -> None:
        self.notes: list[str] = []
        self.handled: list[int] = []
        self.asked: list[Sequence[int]] = []
        self.is_ready = asyncio.Event()
        (listener,) = listen(["127.0.0.1"], [PortPair(0, 80)], note=self.notes.append)
        self.port = listener.port

        def ask_url(ports: Sequence[int]) -> str:
            self.asked.append(ports)
            return f"http://{address}/portforward/secret"

        forwarder = Forwarder(
            ask_url,
            transport=transport,
            timeout_s=LIMIT_S,
            handled=self.handled.append,
            note=self.notes.append,
        )
        self.running = asyncio.create_task(forwarder.run([listener], ready=self.is_ready.set))

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def get(self, data: bytes = b"") -> bytes:
        """What a local connection gets for ``data``, which it ends."""
        reader, writer = await self.connect()
        writer.write(data)
        writer.write_eof()
        try:
            return await asyncio.wait_for(reader.read(), LIMIT_S)
        except ConnectionError:
            return b"reset"
        finally:
            writer.transport.abort()


@asynccontextmanager
async def forwarding(handler: Handler, transport: Transport = "spdy") -> AsyncIterator[Scene]:
    async with serve(handler) as address:
        scene = Scene(address, transport)
        await asyncio.wait_for(scene.is_ready.wait(), LIMIT_S)
        try:
            yield scene
        finally:
            scene.running.cancel()
            await asyncio.gather(scene.running, return_exceptions=True)
            assert "secret" not in " ".join(scene.notes)


def spdy(talk: Talk) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(UPGRADE.format("portforward.k8s.io").encode())
        await talk(SpdyPeer(reader, writer))

    return handle


class Pairs:
    """The server's side of forwarded connections: accepts each and answers it at its end."""

    def __init__(self, peer: SpdyPeer) -> None:
        self._peer = peer
        self._heard: dict[int, bytes] = {}
        self._error_ids: dict[int, int] = {}
        self._last_error_id = 0

    async def serve(self) -> None:
        while frame := await self._peer.next_frame():
            match frame:
                case SynStream():
                    headers = dict(frame.headers)
                    assert headers["port"] == "80"
                    self._peer.send(SynReply(frame.stream_id))
                    if headers["streamtype"] == "error":
                        self._last_error_id = frame.stream_id
                    else:
                        self._heard[frame.stream_id] = b""
                        self._error_ids[frame.stream_id] = self._last_error_id
                case Data() if frame.stream_id in self._heard:
                    self._heard[frame.stream_id] += frame.data
                    if frame.is_last:
                        self._answer(frame.stream_id, self._heard[frame.stream_id])
                case _:
                    pass

    def _answer(self, stream_id: int, data: bytes) -> None:
        error_id = self._error_ids[stream_id]
        if data == b"refuse":
            error = Data(error_id, b"nobody\x1b[2J listens", is_last=True)
            self._peer.send(Data(stream_id, b"", is_last=True), error)
        elif data == b"reset":
            self._peer.send(RstStream(stream_id, ResetStatus.INTERNAL_ERROR))
        elif data == b"leave":
            self._peer.send(GoAway(stream_id))
        elif data == b"break":
            self._peer.writer.transport.abort()
        else:
            self._peer.send(Data(stream_id, b"got " + data, is_last=True))
            self._peer.send(Data(error_id, b"", is_last=True))


async def answering(peer: SpdyPeer) -> None:
    await Pairs(peer).serve()


def test_many_connections_share_one_over_spdy() -> None:
    async def scenario() -> None:
        async with forwarding(spdy(answering)) as scene:
            words = [b"%d" % number for number in range(30)]
            answers = await asyncio.gather(*(scene.get(word) for word in words))
            assert answers == [b"got " + word for word in words]
            assert scene.asked == [[]]
            assert scene.handled == [scene.port] * 30
            assert scene.notes == []

    run(scenario())


@pytest.mark.parametrize(
    ("word", "reason"), [(b"refuse", "nobody"), (b"reset", "reset the connection")]
)
def test_a_connection_that_fails_is_told_and_concerns_no_other(word: bytes, reason: str) -> None:
    async def scenario() -> None:
        async with forwarding(spdy(answering)) as scene:
            open_reader, open_writer = await scene.connect()
            open_writer.write(b"first")
            assert await scene.get(word) in (b"", b"reset")
            assert await scene.get(b"after") == b"got after"
            open_writer.write_eof()
            assert await open_reader.read() == b"got first"
            open_writer.close()
            (note,) = scene.notes
            assert note.startswith(f"forwarding {scene.port} -> 80: ")
            assert reason in note
            assert not scene.running.done()

    run(scenario())


def test_a_client_that_breaks_off() -> None:
    async def scenario() -> None:
        async with forwarding(spdy(answering)) as scene:
            for _ in range(5):
                _, writer = await scene.connect()
                writer.write(b"half a word")
                await writer.drain()
                writer.transport.abort()
            assert await scene.get(b"x") == b"got x"
            assert scene.notes == []

    run(scenario())


def test_the_end_of_many_open_connections_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with forwarding(spdy(answering)) as scene:
            opened = [await scene.connect() for _ in range(20)]
            for _, writer in opened:
                writer.write(b"half a word")
            assert await scene.get(b"x") == b"got x"
        for _, writer in opened:
            writer.close()

    run(scenario())
    assert [record for record in caplog.records if record.name == "asyncio"] == []


def test_much_for_a_client_that_broke_off_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    async def flooding(peer: SpdyPeer) -> None:
        stream_id = 0
        while frame := await peer.next_frame():
            if isinstance(frame, SynStream):
                peer.send(SynReply(frame.stream_id))
                stream_id = frame.stream_id
            elif isinstance(frame, Data) and frame.stream_id == stream_id:
                peer.send(*[Data(stream_id, b"x" * 100)] * 2000)

    async def scenario() -> None:
        async with forwarding(spdy(flooding)) as scene:
            for _ in range(3):
                reader, writer = await scene.connect()
                writer.write(b"much")
                assert await reader.readexactly(100) == b"x" * 100
                writer.transport.abort()
            reader, writer = await scene.connect()
            writer.write(b"much")
            assert await reader.readexactly(200_000) == b"x" * 200_000
            writer.close()
            assert scene.notes == []

    run(scenario())
    assert [record for record in caplog.records if record.name == "asyncio"] == []


def test_no_new_connections_after_a_farewell() -> None:
    async def scenario() -> None:
        async with forwarding(spdy(answering)) as scene:
            leaving = asyncio.create_task(scene.get(b"leave"))
            while not scene.notes:
                assert await scene.get(b"x") in (b"got x", b"", b"reset")
            assert "forwarding" in scene.notes[0]
            leaving.cancel()

    run(scenario())


def test_the_loss_of_the_shared_connection_ends_it() -> None:
    async def scenario() -> None:
        async with forwarding(spdy(answering)) as scene:
            assert await scene.get(b"break") in (b"", b"reset")
            with pytest.raises(StreamError, match=r"broke|lost|ended") as caught:
                await asyncio.wait_for(scene.running, LIMIT_S)
            assert caught.value.exit_code == 1
            with pytest.raises(ConnectionError):
                await scene.connect()

    run(scenario())


def test_an_idle_connection_that_the_server_closes_ends_it() -> None:
    async def talk(peer: SpdyPeer) -> None:
        pass

    async def scenario() -> None:
        async with forwarding(spdy(talk)) as scene:
            with pytest.raises(StreamError, match="the connection to the pod was lost"):
                await asyncio.wait_for(scene.running, LIMIT_S)

    run(scenario())


def test_garbage_in_place_of_frames() -> None:
    async def talk(peer: SpdyPeer) -> None:
        await peer.next_frame()
        peer.writer.write(b"\x80\x02garbage")
        await peer.next_frame()

    async def scenario() -> None:
        async with forwarding(spdy(talk)) as scene:
            assert await scene.get(b"x") in (b"", b"reset")
            with pytest.raises(StreamError, match="does not speak SPDY/3"):
                await asyncio.wait_for(scene.running, LIMIT_S)

    run(scenario())


def test_a_server_without_the_transport() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

    async def scenario() -> None:
        async with serve(handle) as address:
            scene = Scene(address, "spdy")
            with pytest.raises(UpgradeRefused, match="403"):
                await asyncio.wait_for(scene.running, LIMIT_S)
            assert not scene.is_ready.is_set()

    run(scenario())


HEADS = frame(BINARY, b"\x00\x50\x00") + frame(BINARY, b"\x01\x50\x00")


async def websocket(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection: five bytes are answered, and then that is the end."""
    fields = await read_head(reader)
    writer.write(accept_upgrade(fields, "Sec-WebSocket-Protocol: v4.channel.k8s.io") + HEADS)
    data = b""
    while len(data) < 5:
        _, message = await read_frame(reader)
        assert message[:1] == b"\x00"
        data += message[1:]
    if data == b"wrong":
        writer.write(frame(BINARY, b"\x01nobody listens") + close_frame(1000))
    else:
        writer.write(frame(BINARY, b"\x00got " + data) + close_frame(1000))
    await reader.read()


def test_each_connection_has_its_own_websocket() -> None:
    async def scenario() -> None:
        async with forwarding(websocket, "websocket") as scene:
            words = [b"%05d" % number for number in range(10)]
            answers = await asyncio.gather(*(scene.get(word) for word in words))
            assert answers == [b"got " + word for word in words]
            assert await scene.get(b"wrong") == b""
            assert await scene.get(b"after") == b"got after"
            assert scene.asked == [[80]] * 12
            (note,) = scene.notes
            assert note == f"forwarding {scene.port} -> 80: nobody listens"

    run(scenario())


def test_a_websocket_that_is_refused_concerns_no_other_connection() -> None:
    served = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        served += 1
        if served == 1:
            await read_head(reader)
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        await websocket(reader, writer)

    async def scenario() -> None:
        async with forwarding(handle, "websocket") as scene:
            assert await scene.get(b"first") in (b"", b"reset")
            assert await scene.get(b"other") == b"got other"
            (note,) = scene.notes
            assert "404" in note

    run(scenario())
