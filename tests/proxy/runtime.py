"""A runtime with methods that are not in the CRI, a proxy in front of it, and client calls."""

from __future__ import annotations

import asyncio
import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest

from pycrictl.proxy.server import CriServer
from pycrictl.proxy.upstream import Handler, Upstream
from tests.fakecri import serve as serve_fake

MIB = 1024 * 1024
# Only a test that fails waits this long.
PATIENCE_S = 20.0
OWN = "/test.v1.Test/Own"
UNLIMITED = [
    ("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1),
    ("grpc.absolute_max_metadata_size", MIB), ("grpc.max_metadata_size", MIB),
]  # fmt: skip
T = TypeVar("T")


class Runtime(grpc.GenericRpcHandler):
    """The fake runtime with additional methods, found by the last part of their names.

    Attributes:
        seen: ``begin`` and ``end`` of each call of ``Hang`` or ``Events``, in order.
        sent_bytes: bytes that ``Flood`` passed to gRPC.
        release: ends ``Hang``, ``Events`` and ``Flood``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: queue.Queue[str] = queue.Queue()
        self.sent_bytes = 0
        self.release = threading.Event()
        self._stack = ExitStack()
        unary: Any = grpc.unary_unary_rpc_method_handler
        stream: Any = grpc.unary_stream_rpc_method_handler
        conversation: Any = grpc.stream_stream_rpc_method_handler
        join: Any = grpc.stream_unary_rpc_method_handler
        self._methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Echo": unary(lambda request, context: request),
            "Large": unary(lambda request, context: bytes(int(request))),
            "Metadata": unary(_metadata),
            "Fail": unary(_fail),
            "Deadline": unary(lambda request, context: str(context.time_remaining()).encode()),
            "Hang": unary(self._hang),
            "Count": stream(lambda request, context: (b"%d" % n for n in range(int(request)))),
            "Events": stream(self._events),
            "Flood": stream(self._flood),
            "Join": join(lambda requests, context: b",".join(requests)),
            "Chat": conversation(
                lambda requests, context: (b"<%b>" % request for request in requests)
            ),
            "HangUp": conversation(_hang_up),
        }

    def start(self) -> None:
        self._stack.enter_context(serve_fake(str(self.path), self))

    def stop(self) -> None:
        """Stop at once, as if killed."""
        self._stack.close()
        self.release.set()

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        return self._methods.get(handler_call_details.method.rpartition("/")[2])

    def _hang(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.add_callback(lambda: self.seen.put("end"))
        self.seen.put("begin")
        self.release.wait(100)
        return b"released"

    def _events(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield b"first"
        yield self._hang(request, context)

    def _flood(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        while not self.release.is_set():
            self.sent_bytes += len(request)
            yield request


def _metadata(request: bytes, context: grpc.ServicerContext) -> bytes:
    context.send_initial_metadata((("x-first", "1"), ("x-first-bin", b"\x00\xff")))
    context.set_trailing_metadata((("x-last", "2"), ("x-last-bin", b"\xfe\x00")))
    return json.dumps(
        [
            [key, value if isinstance(value, str) else value.hex()]
            for key, value in context.invocation_metadata()
        ]
    ).encode()


def _fail(request: bytes, context: grpc.ServicerContext) -> bytes:
    code, message = json.loads(request)
    context.set_trailing_metadata(
        (("grpc-status-details-bin", b"\x08\x05\x00\xff"), ("x-why", "w"))
    )
    context.set_details(message)
    context.set_code(next(status for status in grpc.StatusCode if status.value[0] == code))
    return b""


def _hang_up(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
    yield next(requests)
    context.abort(grpc.StatusCode.ABORTED, "enough")


class Proxy:
    """The proxy's server, with its own event loop in a thread."""

    def __init__(
        self,
        path: Path,
        upstream: Path,
        own: dict[str, Handler] | None = None,
        *,
        handshake_s: float = 5.0,
        **options: Any,
    ) -> None:
        self.path = path
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

        async def start() -> CriServer:
            self._upstream = Upstream(str(upstream), handshake_s=handshake_s)
            server = CriServer(self._upstream, own=own, **options)
            await server.start(str(path))
            return server

        self.server = self.run(start())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Stop the event loop while the block runs, as if the proxy were busy."""
        is_over = threading.Event()
        self._loop.call_soon_threadsafe(is_over.wait, PATIENCE_S)
        yield
        is_over.set()

    def close(self) -> None:
        async def end() -> None:
            await self.server.stop()
            await self._upstream.close()

        self.run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()


@contextmanager
def channel_to(path: Path) -> Iterator[grpc.Channel]:
    """Open a client's channel without size limits that reconnects soon after a failure."""
    options = [
        *UNLIMITED,
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 200),
    ]
    with grpc.insecure_channel(f"unix://{path}", options=options) as channel:
        yield channel


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
    """Return the RpcError of a call, which has code, details and trailing metadata."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value


def pairs(metadata: Any) -> list[tuple[str, str | bytes]]:
    return [(key, value) for key, value in metadata or ()]


def unavailable(channel: grpc.Channel, path: Path) -> str:
    """Return why the runtime is unavailable; calls must fail without delay."""
    for _ in range(10):
        began = time.monotonic()
        error = failure(lambda: unary(channel, "Echo")(b"", timeout=PATIENCE_S))
        assert time.monotonic() - began < PATIENCE_S / 2
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        # The connection may have closed during this call.
        if error.details() != "Socket closed":
            break
    prefix = f'pycrictl proxy: the runtime at "unix://{path}" '
    assert error.details().startswith(prefix)
    return str(error.details().removeprefix(prefix))


def back_again(channel: grpc.Channel) -> None:
    """Check that calls succeed again within 2 s."""
    until = time.monotonic() + 2.0
    while True:
        try:
            assert unary(channel, "Echo")(b"back", timeout=PATIENCE_S) == b"back"
            return
        except grpc.RpcError:
            assert time.monotonic() < until


def hand_made(path: Path, stack: ExitStack, answer: bytes, count: int) -> None:
    """Start a server that sends ``answer`` to ``count`` clients, or hangs if it is empty."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    listener.settimeout(PATIENCE_S)

    def run() -> None:
        with listener:
            for number in range(count):
                connection, _ = listener.accept()
                connection.settimeout(PATIENCE_S)
                if number == count - 1:
                    listener.close()  # further clients are refused at once
                with connection, suppress(ConnectionResetError):
                    connection.sendall(answer)
                    while not answer and connection.recv(65536):
                        pass

    thread = threading.Thread(target=run)
    thread.start()
    stack.callback(listener.close)
    stack.callback(thread.join, PATIENCE_S)
