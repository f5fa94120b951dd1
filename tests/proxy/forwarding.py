"""A proxy that forwards: fixtures that start one, its clients' calls, and runtimes made by hand."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from pycrictl.proxy.relay.server import Handler, RelayServer
from pycrictl.wire import http2
from tests.frames import unit_end
from tests.proxy.runtime import Proxy, Runtime, channel_to

MIB = 1024 * 1024
# No test waits so long unless it fails.
PATIENCE_S = 20.0
OWN = "/test.v1.Test/Own"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closes what a test opened, in reverse order."""
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
    """Starts a proxy in front of `folder/runtime.sock`, with own handlers if given."""

    def start(own: dict[str, Handler] | None = None, **options: Any) -> Proxy:
        upstream = str(folder / "runtime.sock")
        proxy = Proxy(folder / "proxy.sock", lambda: RelayServer(upstream, own=own, **options))
        stack.callback(proxy.close)
        return proxy

    return start


@pytest.fixture
def channel(runtime: Runtime, serve: Callable[..., Proxy], stack: ExitStack) -> grpc.Channel:
    """A client of a proxy in front of a running runtime."""
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
    began = time.monotonic()
    error = failure(lambda: unary(channel, "Echo")(b"", timeout=PATIENCE_S))
    assert time.monotonic() - began < PATIENCE_S / 2
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    prefix = f'pycrictl proxy: the runtime at "unix://{path}" '
    assert error.details().startswith(prefix)
    return str(error.details().removeprefix(prefix))


def back_again(channel: grpc.Channel) -> None:
    """The very next call must succeed: nothing remembers that the runtime was away."""
    assert unary(channel, "Echo")(b"back", timeout=PATIENCE_S) == b"back"


def peer_of_this_process() -> tuple[int, int]:
    return os.getpid(), os.getuid()


def receive_request(connection: socket.socket) -> tuple[int, bytes]:
    """Reads until the end of a first call with one frame of data: its stream, and that data."""
    buffer, pos = b"", len(http2.PREFACE)
    while True:
        data = connection.recv(65536)
        if not data:
            raise ConnectionError
        buffer += data
        while len(buffer) > pos and (stop := unit_end(buffer, pos)):
            if buffer[pos + 3] == http2.DATA and buffer[pos + 4] & http2.END_STREAM:
                stream_id = int.from_bytes(buffer[pos + 5 : pos + 9], "big")
                return stream_id, http2.data_of(buffer, pos, stop)
            pos = stop


def wait_for_end(connection: socket.socket) -> None:
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass


def fake(path: Path, stack: ExitStack, answers: list[Callable[[socket.socket], object]]) -> None:
    """A server that treats each connection by the next of `answers`, then closes it."""
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
