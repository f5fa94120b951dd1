"""The agent's end of the connection of a copy: whole messages in and out, by ``wire.websocket``.

The library's server has read the request; from then on its connection is ours. Content is decrypted
into one buffer, unmasked once, and written from there: the library takes twice the time for it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from typing import Any, Final

from aiohttp import web

from pycrictl.agent.copies.refusals import Refused
from pycrictl.copy.archive.pieces import MAX_MESSAGE_BYTES, PROTOCOL, Message
from pycrictl.errors import RemoteProtocolError
from pycrictl.wire.http1 import Headers
from pycrictl.wire.http1_server import Request
from pycrictl.wire.websocket import Side, WebSocket
from pycrictl.wire.websocket_handshake import accept_key, serialize_acceptance

IDLE_S: Final = 60.0
"""How long a client may send nothing, or take nothing."""

GOODBYE_S: Final = 5.0
TLS_BYTES: Final = 256 * 1024
"""What is decrypted at once; other connections, of which there may be many, have less."""

_REST_BYTES: Final = 4096
"""Where goes what nobody takes any more."""

_WAITING: Final = 2
"""Messages that may wait to be taken before no more is read."""


class Unread(Exception):
    """The client has gone, or is too slow."""


class Connection(asyncio.BufferedProtocol):
    """A connection that the library's server has accepted. One task receives, one sends.

    Args:
        request: an upgrade.
        transport: of that request's connection.
    """

    def __init__(self, request: web.BaseRequest, transport: asyncio.Transport) -> None:
        self._library = request.protocol
        self._transport = transport
        self._core = WebSocket(Side.SERVER, peer="the client")
        self._buffer = memoryview(bytearray(MAX_MESSAGE_BYTES))
        self._expect()
        self._message = Message()
        self._messages: deque[tuple[int, memoryview]] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._error: RemoteProtocolError | None = None
        self._is_lost = False
        self._is_returned = False

    async def receive(self) -> tuple[int, memoryview]:
        """Return what kind of message comes next, and its content.

        Raises:
            Unread: there is none.
            RemoteProtocolError: the client broke the protocol.
        """
        while not self._messages:
            if self._error is not None:
                raise self._error
            if self._is_over:
                raise Unread
            self._news.clear()
            await _within(IDLE_S, self._news)
        if len(self._messages) >= _WAITING and not self._is_lost:
            self._transport.resume_reading()
        return self._messages.popleft()

    async def send(self, kind: int, content: bytes | memoryview) -> None:
        """Send a message; return when its content is not needed any more.

        Raises:
            Unread: the client has gone, or takes nothing.
        """
        if self._is_over:
            raise Unread
        self._core.send(kind, content)
        del content  # an error that is raised below may outlive it
        self._flush()
        await _within(IDLE_S, self._room)

    async def close(self) -> None:
        """Close in good order, as far as the client lets us, and let the library know."""
        self._core.close()
        self._flush()
        with suppress(Unread):
            while not self._is_over:
                if self._messages:
                    self._messages.clear()
                    self._transport.resume_reading()
                self._news.clear()
                await _within(GOODBYE_S, self._news)
        self._is_returned = True
        self._buffer = self._wanted = self._rest = memoryview(bytearray(_REST_BYTES))
        self._message = Message()
        self._messages.clear()
        if self._is_lost:
            self._end(None)
        else:
            self._library.force_close()  # what still comes is no request, whatever it looks like

    def _end(self, exc: Exception | None) -> None:
        self._library.connection_lost(exc)
        # The transport has a hold on this, too, and they would keep its buffers for a while.
        del self._transport, self._library

    @property
    def _is_over(self) -> bool:
        return self._is_lost or self._core.is_over

    def _flush(self) -> None:
        output = self._core.data_to_send()
        if output and not self._is_lost:
            # Not by writelines, which holds nobody back in some versions (CVE-2024-12254).
            for part in output:
                self._transport.write(part)

    def _expect(self) -> None:
        """Want the rest of a head, or as much of a payload as the buffer takes."""
        self._wanted = self._rest = self._buffer[: self._core.bytes_wanted]

    # What the transport calls

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        return self._rest

    def buffer_updated(self, nbytes: int) -> None:
        """Take in bytes that are there now."""
        if self._is_returned:
            return
        self._rest = self._rest[nbytes:]
        if self._rest:
            return
        self._core.receive_data(self._wanted, time.monotonic())
        try:
            for piece in self._core.pieces_received():
                whole = self._message.add(piece.data, is_last=piece.is_last)
                if whole is not None:
                    self._take(piece.channel, whole)
        except RemoteProtocolError as exc:
            self._error = exc
            self._core.close()
        if isinstance(self._core.error, RemoteProtocolError):
            self._error = self._core.error
        self._expect()
        self._flush()
        self._news.set()

    def _take(self, kind: int, content: memoryview) -> None:
        if content.obj is self._buffer.obj:  # the client has masked it with nothing
            content = memoryview(bytes(content))
        self._messages.append((kind, content))
        if len(self._messages) >= _WAITING:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """Take in that the client sends no more."""
        self._core.receive_eof()
        self._news.set()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Take in that there is no connection any more."""
        self._is_lost = True
        self._news.set()
        self._room.set()
        if self._is_returned:
            self._end(exc)

    def pause_writing(self) -> None:
        """Take in that the client does not take what is sent."""
        self._room.clear()

    def resume_writing(self) -> None:
        """Take in that everything has been sent."""
        self._room.set()


class Upgraded(web.StreamResponse):
    """Stands for a response that the library does not have to send."""

    async def prepare(self, request: web.BaseRequest) -> None:
        """Do nothing."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing."""


def accept(request: web.BaseRequest) -> Connection:
    """Take the connection of a request that asks for an upgrade.

    Raises:
        Refused: it is not one that is served here.
        Unread: the client has gone.
    """
    headers = Headers(request.headers.items())
    asked = Request(request.method, request.path, 1, headers)
    key = accept_key(asked)
    offered = [one.strip() for one in (headers.get("Sec-WebSocket-Protocol") or "").split(",")]
    if not asked.wants_websocket or key is None or PROTOCOL not in offered:
        raise Refused(400, f"the bytes of a copy go over a WebSocket with {PROTOCOL}")
    transport = request.transport
    if transport is None or transport.is_closing():
        raise Unread
    request.protocol.keep_alive(False)
    tls: Any = getattr(transport, "_ssl_protocol", None)
    if tls is not None:
        tls.max_size = TLS_BYTES
    connection = Connection(request, transport)
    transport.set_write_buffer_limits(1, 0)  # what is sent may change once there is room again
    transport.set_protocol(connection)
    transport.write(serialize_acceptance(key, PROTOCOL))
    return connection


async def _within(limit_s: float, event: asyncio.Event) -> None:
    """Wait for something.

    Raises:
        Unread: it takes too long.
    """
    try:
        async with asyncio.timeout(limit_s):
            await event.wait()
    except TimeoutError:
        raise Unread from None
