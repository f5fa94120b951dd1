"""The WebSocket of a copy: its server in the event loop, and the link for the copy's thread.

The library's server also accepts frames without a mask, which RFC 6455 (5.1) forbids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, TypeVar

import aiohttp
from aiohttp import WSMsgType, web

from pycrictl.base import limits
from pycrictl.base.errors import StreamError
from pycrictl.base.memory import reuse_blocks
from pycrictl.cluster.agent.copies.documents import Refused
from pycrictl.copy.service.slots import CLIENT_IDLE_S
from pycrictl.copy.transfer.messages import (
    MAX_PIECE_MESSAGE_BYTES,
    PIECES_PROTOCOL,
    ChannelMessage,
)

MESSAGE_BYTES: Final = MAX_PIECE_MESSAGE_BYTES + 1
"""aiohttp refuses messages of this size and larger ones."""

T = TypeVar("T")


async def accept(request: web.BaseRequest) -> web.WebSocketResponse:
    """Upgrade the connection of a request."""
    if request.transport is None:
        raise ConnectionResetError("the client has disconnected")
    socket = web.WebSocketResponse(
        protocols=(PIECES_PROTOCOL,),
        compress=False,
        max_msg_size=MESSAGE_BYTES,
        timeout=limits.GOODBYE_S,
    )
    if socket.can_prepare(request).protocol != PIECES_PROTOCOL:
        raise Refused(400, f"a copy needs a WebSocket with {PIECES_PROTOCOL}")
    await socket.prepare(request)
    return socket


class StreamLink:
    """A ``Link`` to a client over a WebSocket, for one thread."""

    deadline: float | None = None

    def __init__(self, socket: web.WebSocketResponse, request: web.BaseRequest) -> None:
        reuse_blocks()
        self.closed = asyncio.Event()  # Set when the thread has closed it, or has lost it
        self._socket = socket
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._arriving: Future[aiohttp.WSMessage] | None = None

    def receive(self) -> ChannelMessage | None:
        message = self._result(self._next())
        self._arriving = None
        if message.type is WSMsgType.BINARY and message.data:
            return ChannelMessage(message.data[0], memoryview(message.data)[1:])
        return None  # closed, or something else: over in any case

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
        self._loop.call_soon_threadsafe(self.abort)

    def abort(self) -> None:
        transport = self._request.transport
        # After a close, Python 3.11.2 cannot abort TLS.
        if transport is not None and not transport.is_closing():
            transport.abort()

    def _next(self) -> Future[aiohttp.WSMessage]:
        if self._arriving is None:
            self._arriving = self._call(self._socket.receive())
        return self._arriving

    def _call(self, action: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(action, self._loop)

    def _result(self, future: Future[T]) -> T:
        try:
            return future.result(CLIENT_IDLE_S)
        except (OSError, RuntimeError, aiohttp.ClientError) as exc:  # silence is an OSError
            future.cancel()
            raise StreamError(f"the connection to the client broke: {exc!r}") from exc
