"""A gRPC server of raw bytes in place of a runtime, and a proxy in front of it."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc

from pycrictl.proxy.calls import Handler
from pycrictl.proxy.server import CriServer
from pycrictl.proxy.upstream import Upstream

UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
T = TypeVar("T")


class Runtime(grpc.GenericRpcHandler):
    """Answers by the last part of the method's name; see ``service``.

    Attributes:
        seen: ``begin`` and ``end`` of calls of ``Hang`` or ``Events``, as they come.
        sent_bytes: what ``Flood`` handed to gRPC.
        release: lets the calls end that wait for it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: queue.Queue[str] = queue.Queue()
        self.sent_bytes = 0
        self.release = threading.Event()
        self._server: grpc.Server | None = None

    def start(self) -> None:
        self.path.unlink(missing_ok=True)
        self._server = grpc.server(ThreadPoolExecutor(32), options=UNLIMITED)
        self._server.add_generic_rpc_handlers((self,))
        self._server.add_insecure_port(f"unix://{self.path}")
        self._server.start()

    def stop(self) -> None:
        """Goes at once, as if killed."""
        if self._server is not None:
            self._server.stop(0).wait(60)
            self._server = None
        self.release.set()

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        match handler_call_details.method.rpartition("/")[2]:
            case "Echo":
                return grpc.unary_unary_rpc_method_handler(lambda request, context: request)
            case "Large":
                return grpc.unary_unary_rpc_method_handler(
                    lambda request, context: bytes(int(request))
                )
            case "Metadata":
                return grpc.unary_unary_rpc_method_handler(self._metadata)
            case "Fail":
                return grpc.unary_unary_rpc_method_handler(_fail)
            case "Deadline":
                return grpc.unary_unary_rpc_method_handler(
                    lambda request, context: str(context.time_remaining()).encode()
                )
            case "Hang":
                return grpc.unary_unary_rpc_method_handler(self._hang)
            case "Count":
                return grpc.unary_stream_rpc_method_handler(
                    lambda request, context: (b"%d" % n for n in range(int(request)))
                )
            case "Events":
                return grpc.unary_stream_rpc_method_handler(self._events)
            case "Flood":
                return grpc.unary_stream_rpc_method_handler(self._flood)
            case "Join":
                return grpc.stream_unary_rpc_method_handler(
                    lambda requests, context: b",".join(requests)
                )
            case "Chat":
                return grpc.stream_stream_rpc_method_handler(
                    lambda requests, context: (b"<%b>" % request for request in requests)
                )
            case "HangUp":
                return grpc.stream_stream_rpc_method_handler(_hang_up)
        return None

    def _metadata(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.send_initial_metadata((("x-first", "1"), ("x-first-bin", b"\x00\xff")))
        context.set_trailing_metadata((("x-last", "2"), ("x-last-bin", b"\xfe\x00")))
        return json.dumps(
            [
                [key, value if isinstance(value, str) else value.hex()]
                for key, value in context.invocation_metadata()
            ]
        ).encode()

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
    """A server of clients on an event loop of its own, in a thread.

    Args:
        path: of its socket.
        upstream: of the runtime's.
        own: handlers of its own.
        options: of ``CriServer``.
    """

    def __init__(
        self, path: Path, upstream: Path, own: dict[str, Handler] | None = None, **options: Any
    ) -> None:
        self.path = path
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

        async def start() -> CriServer:
            self._upstream = Upstream(str(upstream))
            server = CriServer(str(path), self._upstream, own=own, **options)
            await server.start()
            return server

        self.server = self.run(start())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

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
    """A client's channel without limits, that comes back soon after a failure."""
    options = [
        *UNLIMITED,
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 200),
    ]
    with grpc.insecure_channel(f"unix://{path}", options=options) as channel:
        yield channel
