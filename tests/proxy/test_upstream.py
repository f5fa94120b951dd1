"""The proxy's own calls to the runtime."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pycrictl.proxy.calls import Answer
from pycrictl.proxy.upstream import Upstream
from pycrictl.wire import limits
from tests.proxy.runtime import Runtime

PATIENCE_S = 60.0
METHOD = "/test.v1.Test/"


def call(path: Path, name: str, request: bytes = b"", **options: Any) -> Answer:
    async def run() -> Answer:
        upstream = Upstream(str(path))
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await upstream.unary(METHOD + name, request, **options)
        finally:
            await upstream.close()

    return asyncio.run(run())


@pytest.mark.parametrize("size", [0, 3, 65_530, 65_531, limits.MESSAGE_BYTES])
def test_answer(runtime: Runtime, size: int) -> None:
    message = bytes(size)
    assert call(runtime.path, "Echo", message) == Answer(response=message)


def test_metadata(runtime: Runtime) -> None:
    sent = (("traceparent", "00-1"), ("x-raw-bin", b"\x00\xff"))
    answer = call(runtime.path, "Metadata", metadata=sent)
    assert answer.response is not None
    assert json.loads(answer.response)[1:] == [["traceparent", "00-1"], ["x-raw-bin", "00ff"]]
    assert answer.initial_metadata == (("x-first", "1"), ("x-first-bin", b"\x00\xff"))
    assert answer.trailing_metadata == (("x-last", "2"), ("x-last-bin", b"\xfe\x00"))


def test_error(runtime: Runtime) -> None:
    answer = call(runtime.path, "Fail", json.dumps([14, "größer\n100%"]).encode())
    assert answer == Answer(
        14,
        "größer\n100%",
        trailing_metadata=(("grpc-status-details-bin", b"\x08\x05\x00\xff"), ("x-why", "w")),
    )


def test_many_at_once(runtime: Runtime) -> None:
    async def run() -> list[Answer]:
        client = Upstream(str(runtime.path))
        calls = [client.unary(METHOD + "Echo", b"%d" % n) for n in range(100)]
        answers = await asyncio.gather(*calls)
        await client.close()
        return answers

    assert asyncio.run(run()) == [Answer(response=b"%d" % n) for n in range(100)]


def test_deadline(runtime: Runtime) -> None:
    answer = call(runtime.path, "Deadline", timeout_s=100.0)
    assert answer.response is not None
    # Three digits of it are sent: gRPC rounds up.
    assert 90 < float(answer.response) <= 101
    answer = call(runtime.path, "Hang", timeout_s=1.0)
    assert answer.code == 4
    assert [runtime.seen.get(timeout=PATIENCE_S) for _ in range(2)] == ["begin", "end"]


def test_cancelling_reaches_the_runtime(runtime: Runtime) -> None:
    async def run() -> None:
        client = Upstream(str(runtime.path))
        task = asyncio.ensure_future(client.unary(METHOD + "Hang", b""))
        await asyncio.to_thread(runtime.seen.get, timeout=PATIENCE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(runtime.seen.get, timeout=PATIENCE_S) == "end"
        await client.close()

    asyncio.run(run())


def unavailable(path: Path) -> str:
    answer = call(path, "Echo")
    prefix = f'pycrictl proxy: the runtime at "unix://{path}" '
    assert answer.code == 14
    assert answer.message.startswith(prefix)
    return answer.message.removeprefix(prefix)


def test_runtime_that_is_down_and_back(folder: Path, runtime: Runtime) -> None:
    runtime.stop()
    assert unavailable(runtime.path) == "cannot be reached: No such file or directory"
    runtime.start()
    assert call(runtime.path, "Echo", b"x") == Answer(response=b"x")


def test_runtime_that_is_killed(runtime: Runtime) -> None:
    killing = threading.Timer(0.2, runtime.stop)
    killing.start()
    answer = call(runtime.path, "Hang")
    killing.join()
    assert answer.code == 14


def test_connections_are_closed(runtime: Runtime) -> None:
    async def run() -> None:
        client = Upstream(str(runtime.path))
        await client.unary(METHOD + "Echo", b"")
        await client.unary(METHOD + "Hang", b"", timeout_s=0.1)
        await client.close()

    asyncio.run(run())
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        entries = Path("/proc/net/unix").read_text().splitlines()
        if sum(str(runtime.path) in entry for entry in entries) == 1:  # the listening one
            return
        time.sleep(0.05)
    pytest.fail("a connection is still open")
