"""The agent's end of the connection of a copy: messages in and out, by ``wire.messages``.

The library's server has read the request; from then on its connection is ours: its own WebSocket
takes twice the time.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from typing import Final

from aiohttp import web

from pycrictl.agent.copies.refusals import Refused
from pycrictl.copy.archive.pieces import MAX_MESSAGE_BYTES, PROTOCOL
from pycrictl.errors import RemoteProtocolError
from pycrictl.wire.messages import SERVER, ChannelMessage, Messages, by_channel
from pycrictl.wire.upgrade import accepted

IDLE_S: Final = 60.0
"""How long a client may send nothing, or take nothing."""

GOODBYE_S: Final = 5.0
_WAITING: Final = 2
"""Messages that may wait to be taken before no more is read."""


class Unread(Exception):
    """The client has gone, or is too slow."""


class Connection(asyncio.Protocol):
    """A connection that the library's server has accepted. One task receives, one sends.

    Args:
        request: an upgrade.
        transport: of that request's connection.
    """

    def __init__(self, request: web.BaseRequest, transport: asyncio.Transport) -> None:
        self._library = request.protocol
        self._transport = transport
        self._core = Messages(SERVER, max_bytes=MAX_MESSAGE_BYTES, peer="the client")
        self._messages: deque[ChannelMessage] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._is_lost = False
        self._is_returned = False

    async def receive(self) -> ChannelMessage:
        """Return the next message, whose channel is its kind.

        Raises:
            Unread: there is none.
            RemoteProtocolError: the client broke the protocol.
        """
        while not self._messages:
            if isinstance(self._core.error, RemoteProtocolError):
                raise self._core.error
            if self._is_over:
                raise Unread
            self._news.clear()
            await _within(IDLE_S, self._news)
        message = self._messages.popleft()
        if len(self._messages) < _WAITING and not self._is_lost:
            self._transport.resume_reading()
        return message

    async def send(self, kind: int, content: bytes | memoryview) -> None:
        """Send a message, and wait while the client does not take what it is sent.

        Raises:
            Unread: the client has gone, or takes nothing.
        """
        if self._is_over:
            raise Unread
        self._core.send(bytes((kind,)) + content)
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
        if not self._is_lost:
            # Not by writelines, which holds nobody back in some versions (CVE-2024-12254).
            for part in self._core.data_to_send():
                self._transport.write(part)

    # What the transport calls

    def data_received(self, data: bytes) -> None:
        """Take in what the client sends."""
        if self._is_returned:
            return
        self._core.receive_data(data, time.monotonic())
        self._messages += by_channel(self._core.messages_received())
        if len(self._messages) >= _WAITING and not self._is_lost:
            self._transport.pause_reading()
        if self._room.is_set():  # a client that reads nothing gets no answers to its pings
            self._flush()
        self._news.set()

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
        """Take in that it does again."""
        self._room.set()
        self._flush()


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
    answer = accepted(request.headers.items(), PROTOCOL)
    if answer is None:
        raise Refused(400, f"the bytes of a copy go over a WebSocket with {PROTOCOL}")
    transport = request.transport
    if transport is None or transport.is_closing():
        raise Unread
    request.protocol.keep_alive(False)
    connection = Connection(request, transport)
    transport.set_protocol(connection)
    transport.write(answer)
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
