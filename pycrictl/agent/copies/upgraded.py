"""What becomes of a connection that was upgraded for a copy: its bytes are handed on, both ways.

They go to the agent of another node, or to a thread here, which reads and writes the other end of a
pair of sockets as any client does (``copy.transfer.link``). The library's own WebSocket takes twice
the time.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Final

from aiohttp import web

from pycrictl.agent.copies.http_errors import Refused
from pycrictl.copy.rules.quotas import IDLE_S
from pycrictl.copy.transfer.link import SocketLink
from pycrictl.copy.transfer.messages import MAX_PIECE_MESSAGE_BYTES, PIECES_PROTOCOL
from pycrictl.wire.upgrade import accepted

_GOODBYE_S: Final = 5.0
_BUFFER_BYTES: Final = 256 * 1024


class Upgraded(web.StreamResponse):
    """Stands for a response that the library does not have to send."""

    async def prepare(self, request: web.BaseRequest) -> None:
        """Do nothing."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing."""


class Pipe(asyncio.BufferedProtocol):
    """Hands on what comes over a connection, to another, as fast as that takes it.

    Args:
        target: the other connection, which ends with this one.

    Attributes:
        over: is set when this connection is.
    """

    def __init__(self, target: asyncio.Transport) -> None:
        self.over = asyncio.Event()
        self._target = target
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))

    def feed_data(self, data: bytes | memoryview) -> tuple[bool, bytes]:
        """Hand on what has come; return what the library wants of a parser."""
        if not self._target.is_closing():
            self._target.write(bytes(data))
        return False, b""

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.feed_data(self._buffer[:nbytes])

    def pause_writing(self) -> None:
        self._target.pause_reading()

    def resume_writing(self) -> None:
        self._target.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the other connection as well, once what it was sent is there."""
        if not self._target.is_closing():  # a second time, Python 3.11.2 could not abort TLS
            self._target.close()
        self.over.set()


@asynccontextmanager
async def joined(
    request: web.BaseRequest, downstream: asyncio.Transport, upstream: asyncio.Transport, back: Pipe
) -> AsyncIterator[None]:
    """Hand on what a client sends until one of both connections ends; ``back`` is the other way."""
    library = request.protocol
    library.keep_alive(False)
    forth = Pipe(upstream)
    downstream.set_protocol(forth)
    try:
        yield
        await back.over.wait()  # it ends with the other, too
        with suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                await forth.over.wait()
    finally:
        upstream.abort()
        downstream.abort()
        library.connection_lost(None)


def wants_stream(request: web.BaseRequest) -> bool:
    return "upgrade" in request.headers.get("Connection", "").lower()


async def serve_link(
    request: web.BaseRequest, connect: Callable[[SocketLink], Awaitable[None]]
) -> web.StreamResponse:
    """Take the connection of a request that asks for an upgrade, unless the client has gone.

    Args:
        connect: is given the end for a thread, which closes it.
    """
    answer = accepted(request.headers.items(), PIECES_PROTOCOL)
    if answer is None:
        raise Refused(400, f"the bytes of a copy go over a WebSocket with {PIECES_PROTOCOL}")
    downstream = request.transport
    if downstream is None or downstream.is_closing():
        return Upgraded()
    here, there = socket.socketpair()
    link = SocketLink(there, idle_s=IDLE_S, max_bytes=MAX_PIECE_MESSAGE_BYTES)
    back = Pipe(downstream)
    loop = asyncio.get_running_loop()
    with ExitStack() as until_connected:
        until_connected.callback(link.abort)
        upstream, _ = await loop.create_unix_connection(lambda: back, sock=here)
        async with joined(request, downstream, upstream, back):
            downstream.write(answer)
            await connect(link)
            until_connected.pop_all()  # a thread has it
    return Upgraded()
