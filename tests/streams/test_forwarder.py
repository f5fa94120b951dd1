"""Forwarding local ports to servers that misbehave exactly as a test wants."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from pycrictl.base.errors import ConnectError, PycrictlError, UpgradeRefused, UsageError
from pycrictl.streams.forwarder import MAX_ERROR_BYTES, Forwarder, PortPair, listen, parse_pair
from tests.streams.servers import Handler, read_head, run, serve
from tests.streams.wire.spdyframes import Data, GoAway, Ping, RstStream, SynReply, SynStream
from tests.waiting import until

from .spdy_server import UPGRADE, SpdyPeer

Talk = Callable[[SpdyPeer], Awaitable[None]]
LIMIT_S = 30


class Scene:
    """A forwarder on a free port.

    Attributes:
        port: the local port.
        asked: the number of requests for a URL.
        refusal: the error to raise in place of a URL, if any.
        running: the task that forwards.
    """

    def __init__(self, address: str, timeout_s: float = LIMIT_S) -> None:
        self.notes: list[str] = []
        self.handled: list[int] = []
        self.asked = 0
        self.refusal: PycrictlError | None = None
        self.is_ready = asyncio.Event()
        (listener,) = listen(["127.0.0.1"], [PortPair(0, 80)], note=self.notes.append)
        self.port = listener.port

        def ask_url() -> str:
            self.asked += 1
            if self.refusal is not None:
                raise self.refusal
            return f"http://{address}/portforward/secret"

        self.forwarder = Forwarder(
            ask_url,
            timeout_s=timeout_s,
            handled=self.handled.append,
            note=self.notes.append,
        )
        self.running = asyncio.create_task(self.forwarder.run([listener], ready=self.is_ready.set))

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def get(self, data: bytes = b"") -> bytes:
        """Send ``data`` on a local connection, then its end; return what is received."""
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
async def forwarding(handler: Handler, timeout_s: float = LIMIT_S) -> AsyncIterator[Scene]:
    async with serve(handler) as address:
        scene = Scene(address, timeout_s)
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


def accepting(on_data: Callable[[SpdyPeer, list[int], Data], Awaitable[None]]) -> Talk:
    """Accept every stream; call ``on_data`` with all stream numbers, in order, and the data."""

    async def talk(peer: SpdyPeer) -> None:
        ids: list[int] = []
        while frame := await peer.next_frame():
            if isinstance(frame, SynStream):
                peer.send(SynReply(frame.stream_id))
                ids.append(frame.stream_id)
            elif isinstance(frame, Data):
                await on_data(peer, ids, frame)

    return talk


async def answering(peer: SpdyPeer) -> None:
    """Respond at the end of the data, in a way that depends on the data."""
    heard = b""

    async def receive(peer: SpdyPeer, ids: list[int], data: Data) -> None:
        nonlocal heard
        error_id, data_id = ids
        if data.stream_id == data_id:
            heard += data.data
        if data.stream_id != data_id or not data.is_last:
            return
        if heard == b"refuse":
            error = Data(error_id, b"nobody\x1b[2J listens", is_last=True)
            peer.send(Data(data_id, b"", is_last=True), error)
        elif heard == b"long":
            text = [Data(error_id, b"x" * MAX_ERROR_BYTES), Data(error_id, b"x", is_last=True)]
            peer.send(*text, Data(data_id, b"", is_last=True))
        elif heard == b"reset":
            peer.send(RstStream(data_id, 6))
        elif heard == b"garble":
            peer.writer.write(b"\x80\x02garbage")
        elif heard == b"break":
            peer.writer.transport.abort()
        else:
            peer.send(Data(data_id, b"got " + heard, is_last=True))
            peer.send(Data(error_id, b"", is_last=True))

    await accepting(receive)(peer)


def test_many_connections_over_spdy() -> None:
    """Each one requests a URL, after a first request, which shows whether that is possible."""

    async def scenario() -> None:
        async with forwarding(spdy(answering)) as scene:
            words = [b"%d" % number for number in range(30)]
            answers = await asyncio.gather(*(scene.get(word) for word in words))
            assert answers == [b"got " + word for word in words]
            assert scene.asked == 31
            assert scene.handled == [scene.port] * 30
            assert scene.notes == []

    run(scenario())


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        (b"refuse", "nobody"),
        (b"long", "x" * MAX_ERROR_BYTES),
        (b"reset", "reset the connection"),
        (b"break", "the connection to the runtime ended"),
        (b"garble", "does not speak SPDY/3"),
    ],
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
            assert len(note) < MAX_ERROR_BYTES + 100
            assert not scene.running.done()

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


def test_an_answer_that_comes_before_all_is_sent() -> None:
    """The client receives all of it, although the rest of what it sends is never read."""
    answer = b"x" * 8_000_000

    async def reply(peer: SpdyPeer, ids: list[int], data: Data) -> None:
        if data.stream_id == ids[-1] and data.data:
            peer.send(Data(ids[1], answer, is_last=True), Data(ids[0], b"", is_last=True))
            await asyncio.Event().wait()

    async def scenario() -> None:
        async with forwarding(spdy(accepting(reply))) as scene:
            reader, writer = await scene.connect()
            writer.write(b"y" * 20_000_000)
            assert await asyncio.wait_for(reader.read(-1), LIMIT_S) == answer
            writer.transport.abort()
            assert scene.notes == []

    run(scenario())


def test_nothing_is_left_of_a_slow_client_that_has_ended_its_side() -> None:
    """Python 3.11.2 cannot abort a transport that sent its last bytes after it was closed."""
    answer = b"x" * 12_000_000

    async def reply(peer: SpdyPeer, ids: list[int], data: Data) -> None:
        if data.stream_id == ids[-1] and data.is_last:
            peer.send(Data(ids[1], answer, is_last=True), Data(ids[0], b"", is_last=True))

    async def scenario() -> None:
        async with forwarding(spdy(accepting(reply))) as scene:
            reader, writer = await scene.connect()
            writer.write_eof()
            await asyncio.sleep(0.2)
            assert await reader.read(-1) == answer
            writer.close()
            assert await scene.get() == answer
            await asyncio.gather(*scene.forwarder._tasks)
            assert not scene.forwarder._tasks

    run(scenario())


def test_a_connection_that_is_never_taken() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(UPGRADE.format("portforward.k8s.io").encode())
        await reader.read()

    async def scenario() -> None:
        async with forwarding(handle, timeout_s=1) as scene:
            assert await scene.get(b"x") == b""
            (note,) = scene.notes
            assert note.endswith(": the runtime did not accept the connection within 1 s")

    run(scenario())


@pytest.mark.parametrize("refusal", [RstStream(1, 3), GoAway(0)])
def test_a_connection_that_the_runtime_refuses(refusal: RstStream | GoAway) -> None:
    async def talk(peer: SpdyPeer) -> None:
        await peer.next_frame()
        peer.send(refusal)
        while await peer.next_frame():
            pass

    async def scenario() -> None:
        async with forwarding(spdy(talk)) as scene:
            assert await scene.get(b"x") in (b"", b"reset")
            (note,) = scene.notes
            assert note.endswith(": the runtime refused to forward the connection")

    run(scenario())


def test_a_client_that_leaves_before_its_connection_is_taken() -> None:
    async def talk(peer: SpdyPeer) -> None:
        first = await peer.next_frame()
        await asyncio.sleep(0.1)
        peer.send(SynReply(first.stream_id) if isinstance(first, SynStream) else Ping(2))
        while await peer.next_frame():
            pass

    async def scenario() -> None:
        async with forwarding(spdy(talk), timeout_s=1000) as scene:
            _, writer = await scene.connect()
            await until(lambda: scene.handled)
            linger = struct.pack("ii", 1, 0)  # close by RST
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
            await until(lambda: not scene.forwarder._tasks)
            assert scene.notes == []

    run(scenario())


def test_a_server_without_the_transport() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

    async def scenario() -> None:
        async with serve(handle) as address:
            scene = Scene(address)
            with pytest.raises(UpgradeRefused, match="403"):
                await asyncio.wait_for(scene.running, LIMIT_S)
            assert not scene.is_ready.is_set()

    run(scenario())


def test_a_runtime_that_stops_and_returns() -> None:
    """Connections fail meanwhile, and are forwarded again afterwards."""

    async def scenario() -> None:
        async with forwarding(spdy(answering)) as scene:
            scene.refusal = ConnectError("nobody there")
            assert await scene.get(b"x") == b""
            assert scene.notes == [f"forwarding {scene.port} -> 80: nobody there"]
            scene.refusal = None
            assert await scene.get(b"x") == b"got x"

    run(scenario())


# Local ports


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
    with pytest.raises(UsageError, match="is not an IP address"):
        listen(["node.test"], [PortPair(0, 80)], note=print)


@pytest.mark.parametrize(
    ("addresses", "hosts"),
    [
        (["127.0.0.1", "127.0.0.1"], ["127.0.0.1"]),
        (["localhost", "::1", "0:0:0:0:0:0:0:1"], ["127.0.0.1", "[::1]"]),
    ],
)
def test_an_address_is_listened_on_once(addresses: list[str], hosts: list[str]) -> None:
    notes: list[str] = []
    listeners = listen(addresses, [PortPair(0, 80)], note=notes.append)
    try:
        port = listeners[0].port
        assert [listener.label for listener in listeners] == [f"{host}:{port}" for host in hosts]
        assert notes == []
    finally:
        for listener in listeners:
            listener.socket.close()


def test_an_address_of_several_that_cannot_be_had() -> None:
    notes: list[str] = []
    (only,) = listen(["127.0.0.1", "192.0.2.1"], [PortPair(0, 80)], note=notes.append)
    with only.socket:
        reason = "cannot assign requested address"
        assert notes == [f"cannot listen on 192.0.2.1:{only.port}: {reason}"]
