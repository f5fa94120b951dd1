"""Calls as bytes: their requests and answers, and the proxy's connection to the runtime."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote

from grpc import aio

from pycrictl.base import limits
from pycrictl.streams.wire.codes import INTERNAL, OK

_OPTIONS: Final = (
    ("grpc.default_authority", "localhost"),  # what runtimes expect on a unix socket
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
    # Each Upstream has its own connection: a failure of one must not delay another.
    ("grpc.use_local_subchannel_pool", 1),
    # The socket is local: there is no reason to wait once the runtime is back.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 100),
    # The size of a response is limited by the client.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", limits.HEADER_LIST_BYTES),
    ("grpc.absolute_max_metadata_size", limits.HEADER_LIST_BYTES),
)
_ONE_REQUEST_S: Final = 0.02
"""How long to wait after the first request for the stream to end, in case it is the only one."""

_UNREACHED: Final = "failed to connect to all addresses"
_ERRNO: Final = re.compile(r" \(\d+\)$")


Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]


class Answer(NamedTuple):
    """The result of a call with one response; ``code`` and ``message`` are its gRPC status."""

    code: int = 0
    message: str = ""
    response: bytes | None = None
    initial_metadata: Metadata = ()
    trailing_metadata: Metadata = ()


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A client's call with one request message.

    ``message`` is still serialised and may contain credentials; ``metadata`` excludes the
    transport's; ``timeout_s`` counts from ``came``, the time of arrival on the loop's clock.
    """

    path: str
    message: bytes = field(repr=False)
    metadata: Metadata = field(default=(), repr=False)
    timeout_s: float | None = None
    came: float = 0.0


Handler: TypeAlias = Callable[[CallRequest], Awaitable[Answer]]
"""Answers one call; cancelled when the client gives up. Its exceptions become INTERNAL."""


def ends(path: str) -> bool:
    """Return whether calls of a method end by themselves; streams last as long as their clients."""
    name = path.rpartition("/")[2]
    return name != "GetContainerEvents" and not name.startswith("Stream")


def address(path: str) -> str:
    return f"unix:{quote(os.fsencode(path))}"


class Upstream:
    """Calls the runtime behind the socket at ``path`` over one connection.

    An unreachable runtime is retried several times a second; meanwhile, calls fail at once. An
    instance belongs to the event loop that runs when it is created. ``handshake_s`` limits the
    HTTP/2 handshake of a runtime that has accepted a connection.
    """

    def __init__(self, path: str, *, handshake_s: float = 5.0) -> None:
        self.path = path
        handshake = ("grpc.min_reconnect_backoff_ms", int(handshake_s * 1000))
        self._channel = aio.insecure_channel(address(path), options=(*_OPTIONS, handshake))
        self._methods: dict[str, Any] = {}

    async def close(self) -> None:
        await self._channel.close()

    async def unary(
        self,
        method: str,
        request: bytes,
        *,
        metadata: Metadata = (),
        timeout_s: float | None = None,
    ) -> Answer:
        """Make one call; cancelling this coroutine cancels the call in the runtime.

        If the runtime cannot be reached, the answer is UNAVAILABLE, with a message that begins
        with ``pycrictl proxy:``.
        """
        if (begin := self._methods.get(method)) is None:
            begin = self._methods[method] = self._channel.unary_unary(method)
        call = begin(request, timeout=timeout_s, metadata=metadata)
        try:
            response = await call
        except aio.AioRpcError:
            return await self.end(call)
        first, last = await call.initial_metadata(), await call.trailing_metadata()
        return Answer(OK, "", response, tuple(first or ()), tuple(last or ()))

    async def pass_on(self, request: CallRequest) -> Answer:
        """Forward a client's call, with the rest of its timeout."""
        timeout_s = request.timeout_s
        if timeout_s is not None:
            timeout_s = max(request.came + timeout_s - asyncio.get_running_loop().time(), 0.0)
        return await self.unary(
            request.path, request.message, metadata=request.metadata, timeout_s=timeout_s
        )

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        requests: AsyncIterator[bytes],
        *,
        metadata: Metadata = (),
        timeout_s: float | None = None,
    ) -> AsyncIterator[Any]:
        """Make a call of any kind, and yield gRPC's call object; its messages are bytes."""
        terms = {"timeout": timeout_s, "metadata": metadata}
        first = await anext(requests, None)
        tasks = [asyncio.create_task(_next(requests))]
        call: Any = None
        try:
            if first is not None:
                await asyncio.wait(tasks, timeout=_ONE_REQUEST_S)
            # If a message can no longer be written because the call has ended, gRPC reports that
            # as the call's end. So a single message is sent as a unary request: its end is then the
            # runtime's, such as UNIMPLEMENTED.
            begin: Any
            if first is not None and tasks[0].done() and tasks[0].result() is None:
                begin = self._channel.unary_stream(method)
                call = begin(first, **terms)
            else:
                begin = self._channel.stream_stream(method)
                call = begin(**terms)
                tasks.append(asyncio.create_task(_send(call, first, tasks[0], requests)))
            yield call
        finally:
            for task in tasks:
                task.cancel()
            if call is not None:
                call.cancel()

    async def end(self, call: Any) -> Answer:
        first, last = await call.initial_metadata(), await call.trailing_metadata()
        code, message = await call.code(), await call.details() or ""
        if message.startswith(_UNREACHED):
            reason = _ERRNO.sub("", message.rpartition(": ")[2])
            where = f'the runtime at "unix://{self.path}"'
            message = f"pycrictl proxy: {where} cannot be reached: {reason}"
        number = code.value[0] if code else INTERNAL
        return Answer(number, message, None, tuple(first or ()), tuple(last or ()))


async def _next(requests: AsyncIterator[bytes]) -> bytes | None:
    return await anext(requests, None)


async def _send(
    call: Any,
    first: bytes | None,
    second: asyncio.Task[bytes | None],
    requests: AsyncIterator[bytes],
) -> None:
    with suppress(aio.AioRpcError, asyncio.InvalidStateError):
        if first is not None:
            await call.write(first)
        request = await second
        while request is not None:
            await call.write(request)
            request = await anext(requests, None)
        await call.done_writing()
