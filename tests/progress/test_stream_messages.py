"""The messages of a progress stream over WebSocket, good and bad."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc

import pytest

from pycrictl.errors import StreamError
from tests.progress.following import END, REPORTS, Watcher, failure, text, watch, websocket
from tests.streaming.servers import accept_upgrade, read_head, run, send, serve
from tests.wire.frames import CLOSE, PING, TEXT, close_frame, frame

MIB = 2**20
FIRST = text(REPORTS[0])
DATA = FIRST[2:]


def test_text_that_is_not_utf8_is_a_bad_message() -> None:
    watcher = watch(websocket(frame(TEXT, b"\xff"), FIRST, END))
    assert watcher.reports == [REPORTS[0]]
    assert "not valid UTF-8" in watcher.notes[0]


@pytest.mark.parametrize("end", [close_frame(1000), close_frame(1000, "done"), frame(CLOSE)])
def test_normal_ends(end: bytes) -> None:
    assert watch(websocket(FIRST, end)).reports == [REPORTS[0]]


# What goes wrong


@pytest.mark.parametrize("code", [1001, 1002, 1008, 1011, 1012, 4000])
def test_other_closes(code: int) -> None:
    error = failure(websocket(FIRST, close_frame(code)), reports=1)
    assert type(error) is StreamError
    assert error.message.endswith(f'" closed the stream with status {code}')


def test_the_reason_of_a_close_cannot_steer_a_terminal() -> None:
    error = failure(websocket(close_frame(1011, "\x1b[2Jsorry")))
    assert error.message.endswith("with status 1011: '\\x1b[2Jsorry'")


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
