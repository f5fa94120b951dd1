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

from pycrictl.streams.pump import READ_BYTES, DetachKeys, Input, Modes, Output, Terminal
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
            assert await stdin.read() == bytes(READ_BYTES)
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


def test_what_a_killed_program_switched_is_switched_back(pty: tuple[int, int]) -> None:
    with Terminal(pty[1], screen=pty[1]) as terminal:
        terminal.shows(b"\x1b[?1049h")
    assert os.read(pty[0], 100).startswith(b"\x1b[?1049l")


PLAIN = b"\x1b>\x1b[m"


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (b"plain \xff \x1b[31mtext", b""),
        (b"\x1b[?1049hscreen", b"\x1b[?1049l" + PLAIN),
        (b"\x1b[?1049hscreen\x1b[?1049l", b""),
        (b"\x1b[?25h", b""),
        (b"\x1b[?7l\x1b[?2004h", b"\x1b[?7h\x1b[?2004l" + PLAIN),
        (b"\x1b[?1000;1006h\x1b[?1000l", b"\x1b[?1006l" + PLAIN),
        (b"\x1b[?;25;l", b"\x1b[?25h" + PLAIN),
        (b"\x1b[?12h\x1b[?40h", b""),
    ],
)
def test_only_what_is_switched_is_undone(shown: bytes, expected: bytes) -> None:
    for pieces in ([shown], [bytes([byte]) for byte in shown]):
        modes = Modes()
        for piece in pieces:
            modes.feed(piece)
        assert modes.undoing() == expected
