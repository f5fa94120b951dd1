"""The standard streams and the terminal of a command."""

from __future__ import annotations

import asyncio
import os
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from pycrictl.streams.pump import PIECE_BYTES, DetachKeys, Input, Output, Terminal
from tests.streams.servers import run


def test_a_pipe_that_nobody_reads() -> None:
    reading, writing = os.pipe()
    os.close(reading)

    async def scenario() -> None:
        with os.fdopen(writing, "w") as target:
            stdout = Output(target)
            await stdout.write(b"x")
            await stdout.finish()

    with pytest.raises(BrokenPipeError):
        run(scenario())


def test_many_pieces_and_views_keep_their_order(tmp_path: Path) -> None:
    """There are more pieces than one system call can write."""
    data = os.urandom(5000)
    pieces = [memoryview(data)[start : start + 1] for start in range(len(data))]

    async def scenario() -> None:
        with (tmp_path / "copy").open("w") as target:
            stdout = Output(target)
            await stdout.write(*pieces)
            await stdout.write(b"", data, memoryview(data)[1:2], b"")
            await stdout.write()
            await stdout.finish()

    run(scenario())
    assert (tmp_path / "copy").read_bytes() == data + data + data[1:2]


@pytest.mark.parametrize("is_blocking", [True, False])
def test_pieces_through_a_pipe_that_is_full_at_times(is_blocking: bool) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, is_blocking)
    data = os.urandom(1 << 20)
    pieces = [data[start : start + 10_007] for start in range(0, len(data), 10_007)]
    got = bytearray()

    def read() -> None:
        while part := os.read(reading, 30_000):
            got.extend(part)

    thread = threading.Thread(target=read)

    async def scenario() -> None:
        with os.fdopen(writing, "w") as target:
            stdout = Output(target)
            await stdout.write(*pieces[:50])  # nobody reads yet
            thread.start()
            for piece in pieces[50:]:
                await stdout.write(piece)
            await stdout.finish()

    try:
        run(scenario())
        thread.join()
    finally:
        os.close(reading)
    assert bytes(got) == data


def test_always_some_input_leaves_others_their_turn() -> None:
    async def scenario(source: TextIO) -> int:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        stdin = Input(source)
        task = asyncio.create_task(other())
        for _ in range(5):
            assert await stdin.read() == bytes(PIECE_BYTES)
        task.cancel()
        return turns

    with Path("/dev/zero").open() as zeros:
        assert run(scenario(zeros)) >= 4


def test_waiting_for_input_can_be_cancelled() -> None:
    reading, writing = os.pipe()

    async def scenario() -> bytes:
        with os.fdopen(reading) as source, os.fdopen(writing, "wb", buffering=0) as target:
            stdin = Input(source)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(stdin.read(), 0.01)
            target.write(b"later")
            return await stdin.read()

    assert run(scenario()) == b"later"


# The terminal


@pytest.fixture
def pty() -> Iterator[tuple[int, int]]:
    ours, theirs = os.openpty()
    yield ours, theirs
    for descriptor in (ours, theirs):
        try:
            os.close(descriptor)
        except OSError:
            pass  # the test closed it


@pytest.mark.parametrize(
    ("typed", "sent", "leaves"),
    [
        ([b"ls\r"], b"ls\r", False),
        ([b"a\x10\x11b"], b"a", True),
        ([b"a\x10", b"\x11"], b"a", True),
        ([b"\x10", b"x"], b"\x10x", False),
        ([b"\x10", b"\x10", b"\x11"], b"\x10", True),
        ([b"\x11\x10"], b"\x11", False),
        ([b""], b"", False),
    ],
)
def test_detach_keys(typed: list[bytes], sent: bytes, leaves: bool) -> None:
    keys = DetachKeys()
    answers = [keys.feed(data) for data in typed]
    assert b"".join(data for data, _ in answers) == sent
    assert [is_left for _, is_left in answers] == [False] * (len(typed) - 1) + [leaves]


def test_a_raw_terminal_is_restored_whatever_happens(pty: tuple[int, int]) -> None:
    before = termios.tcgetattr(pty[1])

    def fail() -> None:
        with Terminal(pty[1]) as terminal:
            terminal.make_raw()
            local_modes = termios.tcgetattr(pty[1])[3]
            assert not local_modes & (termios.ECHO | termios.ICANON | termios.ISIG)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert termios.tcgetattr(pty[1]) == before


def test_a_terminal_that_is_gone(pty: tuple[int, int]) -> None:
    with Terminal(pty[1]) as terminal:
        os.close(pty[1])
        assert terminal.size() == (0, 0)
