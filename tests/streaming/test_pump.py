"""Standard streams of every kind as ends of a command."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from pycrictl.streaming.pump import HELD_BYTES, Input, Output

from .servers import run


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)))

    async def scenario() -> bytes:
        with path.open() as source, (tmp_path / "copy").open("w") as target:
            stdin, stdout = Input(source), Output(target)
            while data := await stdin.read():
                await stdout.write(data)
            await stdout.finish()
        return (tmp_path / "copy").read_bytes()

    assert run(scenario()) == bytes(range(256))


def test_a_slow_pipe_holds_the_writer_back_and_loses_nothing() -> None:
    """Meanwhile the loop goes on, which the reading end needs."""
    reading, writing = os.pipe()
    data = os.urandom(HELD_BYTES * 4)

    async def copy() -> bytes:
        with os.fdopen(reading) as source, os.fdopen(writing, "w") as target:
            stdin, stdout = Input(source), Output(target)

            async def write() -> None:
                for start in range(0, len(data), 100_000):
                    await stdout.write(data[start : start + 100_000])
                await stdout.finish()
                os.close(os.dup(target.fileno()))

            task = asyncio.create_task(write())
            await asyncio.sleep(0.05)
            assert not task.done()
            got = b""
            while len(got) < len(data):
                got += await stdin.read()
            await task
            return got

    assert run(copy()) == data
    assert all(not thread.name.startswith("asyncio") for thread in threading.enumerate())


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
