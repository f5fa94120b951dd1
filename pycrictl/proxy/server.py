"""The proxy's CRI server: calls are forwarded to the runtime, or answered here.

Unary methods of the CRI are forwarded as unary, all other methods as streams, which fit any
method. Messages are forwarded as the client's bytes, so new methods and fields pass through;
metadata, deadlines, cancellation and statuses are forwarded, too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import grpc
from grpc import aio

from pycrictl._proto import cri_pb2
from pycrictl.base import limits
from pycrictl.base.memory import Reclaimer
from pycrictl.base.servicelog import Log
from pycrictl.proxy.events import CallEnded, Emit
from pycrictl.proxy.serve.http_server import places
from pycrictl.proxy.upstream import Answer, CallRequest, Handler, Metadata, Upstream, address
from pycrictl.streams.wire.codes import CANCELLED, INTERNAL, OK, UNAVAILABLE

AGE_S: Final = 60.0
"""Maximum age of a client's connection; then the client reconnects, and open calls finish.

So after a hand-over, all clients reconnect to the new process within that time.
"""

JITTER: Final = 0.1
"""The fraction by which gRPC varies the age."""

LEAVE_S: Final = 1.0
"""How long clients may take at shutdown to close their connections."""

STOPPING: Final = Answer(UNAVAILABLE, "pycrictl proxy: the proxy is stopping")

_GIVEN_UP: Final = Answer(CANCELLED)
_FOREVER_MS: Final = 2**31 - 1
_TRANSPORTS: Final = ("user-agent", "content-type", "te")
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


def _unary_paths() -> frozenset[str]:
    return frozenset(
        f"/{service.full_name}/{method.name}"
        for service in cri_pb2.DESCRIPTOR.services_by_name.values()
        for method in service.methods
        if not (method.client_streaming or method.server_streaming)
    )


class CriServer(grpc.GenericRpcHandler):
    """Serves clients until it is stopped.

    Args:
        own: the methods (full paths) that are answered here.
        emit: gets the end of each call.
        age_s: the maximum age of clients' connections.
        ping_s: the minimum interval between a client's pings; clients in Go ping at most every ten
            seconds.
    """

    def __init__(
        self,
        upstream: Upstream,
        *,
        own: Mapping[str, Handler] | None = None,
        emit: Emit = lambda event: None,
        age_s: float = AGE_S,
        ping_s: float = 5.0,
    ) -> None:
        self._upstream = upstream
        self._emit = emit
        self._open: dict[asyncio.Task[Any], str] = {}
        self._is_stopping = False
        self._log = Log(__name__)
        self._loop = asyncio.get_running_loop()
        self._memory = Reclaimer(self._loop)
        self._methods = {path: self._unary(path, upstream.pass_on) for path in _unary_paths()}
        self._own = dict(own or {})
        self._methods |= {path: self._unary(path, answer) for path, answer in self._own.items()}
        self._server = aio.server(
            options=(
                ("grpc.max_receive_message_length", limits.MESSAGE_BYTES),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", limits.HEADER_LIST_BYTES),
                ("grpc.absolute_max_metadata_size", limits.HEADER_LIST_BYTES),
                ("grpc.max_concurrent_streams", limits.STREAMS),
                (
                    "grpc.max_allowed_incoming_connections",
                    places(limits.CONNECTIONS, limits.CONNECTION_SHARE),
                ),
                # Beyond this, gRPC cancels calls of any client; by default, from 1000 on.
                ("grpc.server.max_pending_requests", limits.PENDING_CALLS),
                ("grpc.server.max_pending_requests_hard_limit", limits.PENDING_CALLS),
                ("grpc.http2.min_ping_interval_without_data_ms", int(ping_s * 1000)),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.max_connection_age_ms", int(age_s * 1000)),
                ("grpc.max_connection_age_grace_ms", _FOREVER_MS),
                ("grpc.so_reuseport", 0),
            )
        )
        self._server.add_generic_rpc_handlers((self,))

    async def start(self, path: str) -> None:
        self._server.add_insecure_port(address(path))
        await self._server.start()
        os.chmod(path, 0o600)  # noqa: PTH101

    def move_own_to(self, heir: Upstream) -> None:
        """Forward new calls of the methods answered here to another process from now on."""
        self._methods |= {path: self._unary(path, heir.pass_on) for path in self._own}

    def open_paths(self) -> list[str]:
        return list(self._open.values())

    async def stop(
        self, *, drain_s: float = 0.0, is_awaited: Callable[[str], bool] = lambda path: True
    ) -> None:
        """Accept no more calls, wait up to ``drain_s`` for open ones, and cancel the rest.

        ``is_awaited``: whether to wait for calls of a path; an endless stream would not end.
        """
        leaving = self._loop.create_task(self._server.stop(drain_s + LEAVE_S))
        if awaited := [task for task, path in self._open.items() if is_awaited(path)]:
            await asyncio.wait(awaited, timeout=drain_s)
        self._is_stopping = True
        for task in self._open:
            task.cancel()
        await leaving

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any]:
        self._memory.call_began()
        path = handler_call_details.method
        return self._methods.get(path) or self._stream(path)

    def _unary(self, path: str, handler: Handler) -> grpc.RpcMethodHandler[Any, Any]:
        async def serve(message: bytes, context: Any) -> bytes | None:
            request = CallRequest(
                path,
                message,
                _passed_on(context.invocation_metadata()),
                context.time_remaining(),
                self._loop.time(),
            )
            task, answer = self._begun(path), _GIVEN_UP
            try:
                answer = await handler(request)
            except asyncio.CancelledError:
                if not self._is_stopping:
                    raise
                answer = STOPPING
            except Exception as exc:
                self._log.failure("handler_failed", exc, path=path)
                answer = Answer(INTERNAL, "pycrictl proxy: internal error")
            finally:
                self._ended(task, answer.code)
            if answer.initial_metadata:
                await context.send_initial_metadata(answer.initial_metadata)
            return await _end(context, answer)

        return grpc.unary_unary_rpc_method_handler(serve)

    def _stream(self, path: str) -> grpc.RpcMethodHandler[Any, Any]:
        async def serve(requests: AsyncIterator[bytes], context: Any) -> None:
            stream = self._upstream.stream(
                path,
                requests,
                metadata=_passed_on(context.invocation_metadata()),
                timeout_s=context.time_remaining(),
            )
            task, answer = self._begun(path), _GIVEN_UP
            try:
                async with stream as call:
                    if first := tuple(await call.initial_metadata() or ()):
                        await context.send_initial_metadata(first)
                    with suppress(aio.AioRpcError):
                        async for message in call:
                            await context.write(message)
                    answer = await self._upstream.end(call)
            except asyncio.CancelledError:
                if not self._is_stopping:
                    raise
                answer = STOPPING
            finally:
                self._ended(task, answer.code)
            await _end(context, answer)

        return grpc.stream_stream_rpc_method_handler(serve)

    def _begun(self, path: str) -> asyncio.Task[Any]:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = path
        return task

    def _ended(self, task: asyncio.Task[Any], code: int) -> None:
        self._emit(CallEnded(self._open.pop(task), code))


async def _end(context: Any, answer: Answer) -> bytes | None:
    """Send the end of a call; return its last message."""
    if answer.code != OK:
        code = _CODES.get(answer.code, grpc.StatusCode.UNKNOWN)
        await context.abort(code, answer.message, answer.trailing_metadata)
    if answer.trailing_metadata:
        context.set_trailing_metadata(answer.trailing_metadata)
    return answer.response


def _passed_on(metadata: Any) -> Metadata:
    return tuple(pair for pair in metadata or () if pair[0] not in _TRANSPORTS)
