"""Streams of messages that are no reports, and of too much of everything."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import Coroutine
from typing import Any

import pytest

from pycrictl.errors import RemoteProtocolError, StreamError
from pycrictl.progress.report_stream import follow
from pycrictl.pulls.model import Phase
from pycrictl.pulls.tracker import Tracker
from pycrictl.wire.progress import Report
from tests.progress.following import (
    CHUNKED,
    END,
    FRAMES,
    LINES,
    NDJSON,
    REPORTS,
    Watcher,
    chunk,
    plain,
    text,
    watch,
    websocket,
)
from tests.streaming.servers import accept_upgrade, read_head, run, serve, write
from tests.wire.frames import TEXT, frame

MIB = 2**20


# Messages that are no reports


@pytest.mark.parametrize("is_websocket", [True, False])
def test_bad_messages_are_told_once_and_counted(is_websocket: bool) -> None:
    bad = [b"oops\x1b[2J", b'{"progress":"1"}', b"[" * 100_000, b"\xff"]
    if is_websocket:
        watcher = watch(websocket(FRAMES, *[frame(TEXT, line) for line in bad], FRAMES, END))
    else:
        body = LINES + b"\n".join(bad) + b"\n" + LINES
        watcher = watch(plain(CHUNKED, chunk(body), b"0\r\n\r\n"))
    assert watcher.reports == REPORTS * 2
    assert watcher.notes == [
        r'skipped a message that is not a progress report: not valid JSON: "oops\x1b[2J"',
        "skipped 4 messages that are not progress reports",
    ]


def test_bad_messages_are_counted_when_the_stream_breaks() -> None:
    watcher = Watcher()

    async def scenario() -> None:
        async with serve(websocket(frame(TEXT, b"oops") * 3, stays=False)) as address:
            await watcher.follow(f"http://{address}/x")

    with pytest.raises(StreamError):
        run(scenario())
    assert watcher.notes[-1] == "skipped 3 messages that are not progress reports"


# Too much of everything


def peak_of(scenario: Coroutine[Any, Any, None]) -> int:
    """Return the most memory that was in use while the scenario ran, its server included."""
    tracemalloc.start()
    try:
        run(scenario)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_100_mb_in_one_message() -> None:
    zeros = bytes(MIB)

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(accept_upgrade(await read_head(reader)) + FRAMES)
        writer.write(frame(TEXT, length=100 * MIB))
        for _ in range(100):
            writer.write(zeros)
            await writer.drain()

    watcher = Watcher()

    async def scenario() -> None:
        async with serve(handler) as address:
            with pytest.raises(RemoteProtocolError, match="more than 1048576 bytes"):
                await watcher.follow(f"http://{address}/x")

    assert peak_of(scenario()) < 16 * MIB
    assert watcher.reports == REPORTS


def test_100_mb_in_one_line() -> None:
    zeros = bytes(MIB)

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        await write(writer, NDJSON + b"\r\n" + LINES)
        for _ in range(100):
            await write(writer, zeros)
        await write(writer, b"\n" + LINES)

    watcher = Watcher()

    async def scenario() -> None:
        async with serve(handler) as address:
            await watcher.follow(f"http://{address}/x")

    assert peak_of(scenario()) < 16 * MIB
    assert watcher.reports == REPORTS * 2
    assert len(watcher.notes) == 1
    assert watcher.notes[0].startswith(
        "skipped a message that is not a progress report: longer than"
    )


def test_a_flood_leaves_others_their_turn() -> None:
    count = 50_000
    flood = text(Report("a", "l", 1, 9)) * (count // 50)
    tracker = Tracker()
    gaps = []

    async def tick() -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0)
            now = time.monotonic()
            gaps.append(now - last)
            last = now

    def apply(report: Report) -> None:
        tracker.apply(report, now=time.monotonic())

    async def scenario() -> None:
        async with serve(websocket(*[flood] * 50, END)) as address:
            ticker = asyncio.ensure_future(tick())
            await follow(f"http://{address}/x", on_report=apply, on_note=print, timeout_s=10)
            ticker.cancel()
            await asyncio.gather(ticker, return_exceptions=True)

    run(scenario())
    assert tracker.view(time.monotonic()).items[0].phase is Phase.DOWNLOADING
    assert len(gaps) > 50
    assert max(gaps) < 1.0
