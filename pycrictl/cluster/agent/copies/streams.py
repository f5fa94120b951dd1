"""The bytes of copies, over WebSockets of the event loop: to a thread here, or to another agent.

The library's server takes frames without a mask, too, which other servers refuse (RFC 6455, 5.1).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, TypeVar

import aiohttp
from aiohttp import WSMsgType, web

from pycrictl.base import limits
from pycrictl.base.errors import RemoteProtocolError, StreamError
from pycrictl.cluster.agent.copies.requests import Refused
from pycrictl.copy.service.slots import IDLE_S
from pycrictl.copy.transfer.messages import MAX_PIECE_MESSAGE_BYTES, PIECES_PROTOCOL
from pycrictl.streams.wire.websocket import ChannelMessage

MESSAGE_BYTES: Final = MAX_PIECE_MESSAGE_BYTES + 1
"""aiohttp refuses messages of this size and larger ones."""

_GOODBYE_S: Final = 1.0
_ENDS: Final = (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED)
_GOOD_ENDS: Final = (1000, 1005)  # RFC 6455, 7.4.1: normal, and none given

T = TypeVar("T")
Socket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


class StreamLink:
    """A ``Link`` to a client over a WebSocket, for one thread.

    Attributes:
        closed: set when the thread has closed it, or has lost it.
    """

    deadline: float | None = None

    def __init__(
        self, socket: web.WebSocketResponse, abort: Callable[[], None], idle_s: float = IDLE_S
    ) -> None:
        self.closed = asyncio.Event()
        self._socket = socket
        self._abort = abort
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._arriving: Future[aiohttp.WSMessage] | None = None
        self._idle = limits.Allowance(limits.STREAM_IDLE_FRAMES, limits.STREAM_IDLE_FRAMES_PER_S)

    def receive(self) -> ChannelMessage | None:
        while True:
            message = self._result(self._next())
            self._arriving = None
            data = message.data
            if message.type is WSMsgType.BINARY and len(data) > 1:
                self._idle.earned = limits.STREAM_IDLE_FRAMES
                return ChannelMessage(data[0], memoryview(data)[1:])
            if message.type in _ENDS:
                code = self._socket.close_code
                if code is None or code in _GOOD_ENDS:
                    return None
                raise StreamError(f"the client closed the stream with status {int(code)}")
            if message.type is WSMsgType.ERROR:
                raise StreamError(f"the connection to the client broke: {data}")
            if message.type is WSMsgType.TEXT or not self._idle.take(time.monotonic()):
                raise RemoteProtocolError("the client sent text, or too many empty messages")
            if message.type is WSMsgType.PING:
                self._result(self._call(self._socket.pong(data)))

    def can_receive(self) -> bool:
        return self._next().done()

    def send(self, kind: int, head: bytes | memoryview, data: bytes | memoryview = b"") -> None:
        message = b"".join((bytes((kind,)), head, data))
        self._result(self._call(self._socket.send_bytes(message)))

    def close(self) -> None:
        with suppress(StreamError):
            self._result(self._call(self._socket.close()))
        self._loop.call_soon_threadsafe(self.closed.set)

    def interrupt(self) -> None:
        self._loop.call_soon_threadsafe(self._abort)

    def _next(self) -> Future[aiohttp.WSMessage]:
        if self._arriving is None:
            self._arriving = self._call(self._socket.receive())
        return self._arriving

    def _call(self, action: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(action, self._loop)

    def _result(self, future: Future[T]) -> T:
        try:
            return future.result(self._idle_s)
        except TimeoutError:
            future.cancel()
            raise StreamError(f"the client was silent for {self._idle_s:g} s") from None
        except (OSError, RuntimeError, aiohttp.ClientError) as exc:
            raise StreamError(f"the connection to the client broke: {exc}") from exc


def wants_stream(request: web.BaseRequest) -> bool:
    return "upgrade" in request.headers.get("Connection", "").lower()


async def accept(request: web.BaseRequest, *, answers_pings: bool) -> web.WebSocketResponse:
    """Upgrade the connection of a request."""
    socket = web.WebSocketResponse(
        protocols=(PIECES_PROTOCOL,),
        compress=False,
        autoping=answers_pings,
        max_msg_size=MESSAGE_BYTES,
        timeout=_GOODBYE_S,
    )
    if socket.can_prepare(request).protocol != PIECES_PROTOCOL:
        raise Refused(400, f"the bytes of a copy go over a WebSocket with {PIECES_PROTOCOL}")
    await socket.prepare(request)
    return socket


async def serve_link(
    request: web.BaseRequest, connect: Callable[[StreamLink], Awaitable[None]]
) -> web.StreamResponse:
    """Upgrade the connection of a request, and serve it until its thread closes it.

    Args:
        connect: called with the thread's end of the connection.
    """
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client has disconnected")

    def abort() -> None:
        if not transport.is_closing():  # after a close, Python 3.11.2 cannot abort TLS
            transport.abort()

    socket = await accept(request, answers_pings=False)
    link = StreamLink(socket, abort)
    try:
        await connect(link)
        await link.closed.wait()
    finally:
        abort()
    return socket


async def relay(first: Socket, second: Socket) -> None:
    """Relay messages both ways until one of the connections ends; then close both."""

    async def pass_on(source: Socket, target: Socket) -> None:
        with suppress(ConnectionError, aiohttp.ClientError):
            async for message in source:
                if message.type is WSMsgType.BINARY:
                    await target.send_bytes(message.data)
        await target.close()

    await asyncio.gather(pass_on(first, second), pass_on(second, first))
