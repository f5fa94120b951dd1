"""The messages of a progress stream over WebSocket, good and bad."""

from __future__ import annotations

import asyncio
import json
import socket
import tracemalloc

import pytest

from pycrictl.errors import RemoteProtocolError, StreamError
from pycrictl.wire.progress import MAX_MESSAGE_BYTES
from tests.progress.following import END, REPORTS, Watcher, failure, text, watch, websocket
from tests.streaming.servers import accept_upgrade, read_frame, read_head, run, send, serve
from tests.wire.frames import BINARY, CLOSE, PING, PONG, TEXT, close_frame, frame

MIB = 2**20
FIRST = text(REPORTS[0])
DATA = FIRST[2:]


def test_text_and_binary() -> None:
    assert watch(websocket(FIRST, frame(BINARY, DATA), END)).reports == [REPORTS[0]] * 2


def test_text_that_is_not_utf8_is_a_bad_message() -> None:
    watcher = watch(websocket(frame(TEXT, b"\xff"), FIRST, END))
    assert watcher.reports == [REPORTS[0]]
    assert "not valid UTF-8" in watcher.notes[0]


def test_fragments() -> None:
    parts = [
        *(frame(TEXT, DATA[:1], fin=False), frame(0, DATA[1:20], fin=False)),
        *(frame(PING), frame(0, DATA[20:], fin=False), frame(0), FIRST),
    ]
    assert watch(websocket(*parts, END)).reports == [REPORTS[0]] * 2


def test_byte_by_byte() -> None:
    pieces = [bytes([byte]) for byte in FIRST + END]
    assert watch(websocket(*pieces, pause_s=0.001)).reports == [REPORTS[0]]


@pytest.mark.parametrize("end", [close_frame(1000), close_frame(1000, "done"), frame(CLOSE)])
def test_normal_ends(end: bytes) -> None:
    assert watch(websocket(FIRST, end)).reports == [REPORTS[0]]


@pytest.mark.parametrize("stays", [True, False])
def test_nobody_has_to_read_the_answer_to_the_close(stays: bool) -> None:
    assert watch(websocket(FIRST, END, stays=stays)).reports == [REPORTS[0]]


async def answers(pieces: list[bytes]) -> list[tuple[int, bytes]]:
    """What a server gets that sends each piece once the one before is answered."""
    got: list[tuple[int, bytes]] = []
    is_answered = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(accept_upgrade(await read_head(reader)))
        try:
            for piece in pieces:
                writer.write(piece)
                got.append(await read_frame(reader))
        finally:
            is_answered.set()

    async with serve(handler) as address:
        await asyncio.gather(Watcher().follow(f"http://{address}/x"), return_exceptions=True)
        await is_answered.wait()
    return got


def test_pings_and_the_close_are_answered() -> None:
    pings = frame(PING, b"1") + frame(PONG, b"unasked")
    assert run(answers([pings, close_frame(1000, "bye")])) == [
        (PONG, b"1"),
        (CLOSE, b"\x03\xe8bye"),
    ]


def test_the_peer_is_told_of_too_long_a_message() -> None:
    ((opcode, payload),) = run(answers([frame(TEXT, length=MAX_MESSAGE_BYTES + 1)]))
    assert (opcode, payload[:2]) == (CLOSE, b"\x03\xf1")  # 1009


# What goes wrong


@pytest.mark.parametrize("code", [1001, 1002, 1008, 1011, 1012, 4000])
def test_other_closes(code: int) -> None:
    error = failure(websocket(FIRST, close_frame(code)), reports=1)
    assert type(error) is StreamError
    assert error.message.endswith(f'" closed the stream with status {code}')


def test_the_reason_of_a_close_cannot_steer_a_terminal() -> None:
    error = failure(websocket(close_frame(1011, "\x1b[2Jsorry")))
    assert error.message.endswith("with status 1011: '\\x1b[2Jsorry'")


@pytest.mark.parametrize("pieces", [[], [FIRST[:3]], [b"\x81"]])
def test_the_connection_ends_without_a_close(pieces: list[bytes]) -> None:
    error = failure(websocket(FIRST, *pieces, stays=False), reports=1)
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
    error = failure(websocket(FIRST, *pieces), reports=1)
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
    error = failure(websocket(FIRST, *pieces), reports=1)
    assert type(error) is RemoteProtocolError
    assert error.message.endswith('" sent a message of more than 1048576 bytes')


def test_the_longest_message() -> None:
    filler = {"x": "y" * (MIB - 30)}
    data = json.dumps({"progress": 1, **filler}).encode().ljust(MIB)
    (report,) = watch(websocket(frame(TEXT, data), END)).reports
    assert report.progress == 1


def test_a_peer_that_asks_for_pongs_and_takes_none() -> None:
    pings = frame(PING, b"x" * 100) * 1000 + frame(TEXT, b"  ")

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        writer.write(accept_upgrade(await read_head(reader)))
        for _ in range(60):  # more than any buffer on the way holds
            writer.write(pings)
            await writer.drain()
        writer.write(FIRST + END)
        await reader.read()  # what is left unread would break the connection

    assert watch(handler).reports == [REPORTS[0]]


@pytest.mark.parametrize(
    ("pieces", "count"),
    [
        ([frame(TEXT, length=100 * MIB), *[b"x" * MIB] * 100], 0),
        ([frame(TEXT, b"x" * 1000, fin=False), *[frame(0, b"x" * 1000, fin=False)] * 9000], 0),
        ([*[frame(TEXT, fin=False) + frame(0, fin=False) * 9000] * 2], 0),
        ([frame(PING, b"x" * 100) * 45_000, END], 0),
        ([frame(TEXT, DATA.ljust(MIB)) * 10, END], 10),
    ],
)
def test_memory_stays_small(pieces: list[bytes], count: int) -> None:
    watcher = Watcher()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(accept_upgrade(await read_head(reader)))
        await send(reader, writer, pieces, pause_s=0, stays=False)

    async def scenario() -> None:
        async with serve(handler) as address:
            await asyncio.gather(watcher.follow(f"http://{address}/x"), return_exceptions=True)

    tracemalloc.start()
    try:
        run(scenario())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(watcher.reports) == count
    # What the server of the test has in hand counts as well: at most one piece.
    assert peak < max(map(len, pieces)) + 8 * MIB
