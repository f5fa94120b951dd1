"""A proxy that forwards: fixtures that start one, its clients' calls, and runtimes made by hand."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from pycrictl.proxy.calls import Handler
from tests.proxy.runtime import Proxy, Runtime, channel_to

MIB = 1024 * 1024
# No test waits so long unless it fails.
PATIENCE_S = 20.0
OWN = "/test.v1.Test/Own"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def runtime(folder: Path, stack: ExitStack) -> Runtime:
    runtime = Runtime(folder / "runtime.sock")
    stack.callback(runtime.stop)
    runtime.start()
    return runtime


@pytest.fixture
def serve(folder: Path, stack: ExitStack) -> Callable[..., Proxy]:
    def start(own: dict[str, Handler] | None = None, **options: Any) -> Proxy:
        proxy = Proxy(folder / "proxy.sock", folder / "runtime.sock", own, **options)
        stack.callback(proxy.close)
        return proxy

    return start


@pytest.fixture
def channel(runtime: Runtime, serve: Callable[..., Proxy], stack: ExitStack) -> grpc.Channel:
    return stack.enter_context(channel_to(serve().path))


def unary(channel: grpc.Channel, name: str) -> grpc.UnaryUnaryMultiCallable[bytes, bytes]:
    return channel.unary_unary(f"/test.v1.Test/{name}")


def stream(channel: grpc.Channel, name: str) -> grpc.UnaryStreamMultiCallable[bytes, bytes]:
    return channel.unary_stream(f"/test.v1.Test/{name}")


def own(channel: grpc.Channel) -> grpc.UnaryUnaryMultiCallable[bytes, bytes]:
    return channel.unary_unary(OWN)


def failure(call: Callable[[], object]) -> Any:
    """The error, which is a call as well, with code, details and trailing metadata."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value


def pairs(metadata: Any) -> list[tuple[str, str | bytes]]:
    return [(key, value) for key, value in metadata or ()]


def unavailable(channel: grpc.Channel, path: Path) -> str:
    """The reason why the runtime is unavailable, which is told at once."""
    for _ in range(10):
        began = time.monotonic()
        error = failure(lambda: unary(channel, "Echo")(b"", timeout=PATIENCE_S))
        assert time.monotonic() - began < PATIENCE_S / 2
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        # The connection may have ended under this very call.
        if error.details() != "Socket closed":
            break
    prefix = f'pycrictl proxy: the runtime at "unix://{path}" '
    assert error.details().startswith(prefix)
    return str(error.details().removeprefix(prefix))


def back_again(channel: grpc.Channel) -> None:
    """Calls must succeed again within a moment."""
    until = time.monotonic() + 2.0
    while True:
        try:
            assert unary(channel, "Echo")(b"back", timeout=PATIENCE_S) == b"back"
            return
        except grpc.RpcError:
            assert time.monotonic() < until


def wait_for_end(connection: socket.socket) -> None:
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass


def fake(path: Path, stack: ExitStack, answers: list[Callable[[socket.socket], object]]) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    listener.settimeout(PATIENCE_S)

    def run() -> None:
        with listener:
            for number, answer in enumerate(answers, start=1):
                connection, _ = listener.accept()
                connection.settimeout(PATIENCE_S)
                if number == len(answers):
                    listener.close()  # who comes now is refused, and need not wait for an answer
                with connection:
                    answer(connection)

    thread = threading.Thread(target=run)
    thread.start()
    stack.callback(listener.close)
    stack.callback(thread.join, PATIENCE_S)
