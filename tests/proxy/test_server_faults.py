"""Calls through the proxy while the runtime or a client is gone, hangs or talks nonsense."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from pycrictl.proxy import upstream
from tests.proxy.forwarding import (
    PATIENCE_S,
    back_again,
    failure,
    fake,
    stream,
    unary,
    unavailable,
    wait_for_end,
)
from tests.proxy.runtime import Proxy, Runtime, channel_to

# A runtime that is gone


def test_runtime_that_starts_after_the_proxy(
    folder: Path, serve: Callable[..., Proxy], stack: ExitStack
) -> None:
    runtime = Runtime(folder / "runtime.sock")
    stack.callback(runtime.stop)
    channel = stack.enter_context(channel_to(serve().path))
    for _ in range(3):
        reason = unavailable(channel, runtime.path)
        assert reason == "cannot be reached: No such file or directory"
    runtime.start()
    back_again(channel)


def test_runtime_killed_during_calls(
    runtime: Runtime, channel: grpc.Channel, stack: ExitStack
) -> None:
    waiting = unary(channel, "Hang").future(b"")
    events = stream(channel, "Events")(b"")
    assert next(events) == b"first"
    for _ in range(2):
        runtime.seen.get(timeout=PATIENCE_S)
    runtime.stop()
    for call in (lambda: waiting.result(timeout=PATIENCE_S), lambda: next(events)):
        error = failure(call)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "cannot be reached" in unavailable(channel, runtime.path)
    again = Runtime(runtime.path)
    stack.callback(again.stop)
    again.start()
    back_again(channel)


@pytest.mark.parametrize(
    "garbage",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(9), b"\xff" * 4096, b"SSH-2.0-x\r\n", b"\0\0"],
    ids=["http", "zeros", "ones", "text", "short"],
)
def test_runtime_that_answers_garbage(
    folder: Path, serve: Callable[..., Proxy], stack: ExitStack, garbage: bytes
) -> None:
    path = folder / "runtime.sock"
    fake(path, stack, [lambda connection: connection.sendall(garbage)] * 2)
    channel = stack.enter_context(channel_to(serve().path))
    for _ in range(2):
        assert unavailable(channel, path).startswith("cannot be reached: ")


def test_runtime_that_hangs(
    folder: Path,
    serve: Callable[..., Proxy],
    stack: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upstream, "HANDSHAKE_TIMEOUT_S", 0.2)
    path = folder / "runtime.sock"
    fake(path, stack, [lambda connection: wait_for_end(connection)])
    channel = stack.enter_context(channel_to(serve().path))
    assert unavailable(channel, path).startswith("cannot be reached: ")
