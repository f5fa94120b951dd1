"""The agent's end of the connection of a copy, which the library's server has accepted.

From the upgrade on the connection is ours: the library's own WebSocket takes twice the time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from aiohttp import web

from pycrictl.agent.copies.http_errors import Refused
from pycrictl.copy.rules.quotas import IDLE_S
from pycrictl.copy.transfer.link import keep_freed_memory
from pycrictl.copy.transfer.messages import MAX_PIECE_MESSAGE_BYTES, PIECES_PROTOCOL
from pycrictl.errors import StreamError
from pycrictl.wire.upgrade import accepted
from pycrictl.wire.websocket import SERVER, ChannelMessage, Messages, by_channel

GOODBYE_S: Final = 5.0
_WAITING: Final = 2
"""Messages that may wait to be taken before no more is read."""


class UpgradedLink(asyncio.Protocol):
    """A ``Link`` for a thread, whose bytes move in the loop."""

    def __init__(self, request: web.BaseRequest, transport: asyncio.Transport) -> None:
        self._library = request.protocol
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._core = Messages(SERVER, max_bytes=MAX_PIECE_MESSAGE_BYTES, peer="the client")
        self._messages: deque[ChannelMessage] = deque()
        self._arrived = threading.Condition()
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._closed = asyncio.Event()
        self._is_lost = False
        self._is_returned = False
        keep_freed_memory()

    # For the thread

    def receive(self) -> ChannelMessage | None:
        with self._arrived:
            if not self._arrived.wait_for(self.can_receive, IDLE_S):
                raise StreamError(f"the client was silent for {IDLE_S:g} s")
            if self._messages:
                message = self._messages.popleft()
                if len(self._messages) < _WAITING:
                    self._call(self._resume_reading)
                return message
        if self._core.error is not None:
            raise self._core.error
        return None

    def can_receive(self) -> bool:
        return bool(self._messages) or self._is_over

    def send(self, kind: int, head: bytes | memoryview, data: bytes | memoryview = b"") -> None:
        message = b"".join((bytes((kind,)), head, data))
        sending = self._send(message)
        try:
            sent = asyncio.run_coroutine_threadsafe(sending, self._loop)
        except RuntimeError:  # the loop has ended
            sending.close()
            raise StreamError("the agent ends") from None
        try:
            sent.result(IDLE_S)
        except TimeoutError:
            sent.cancel()
            raise StreamError(f"the client was silent for {IDLE_S:g} s") from None

    def close(self) -> None:
        """See ``Link``; it is ``finish`` that waits."""
        self._call(self._closed.set)

    def abort(self) -> None:
        self.interrupt()

    def interrupt(self) -> None:
        self._call(self._drop)

    def _call(self, function: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function)

    # In the loop

    async def finish(self) -> None:
        """Wait until the thread has closed it, close in good order, and let the library know."""
        try:
            await self._closed.wait()
            self._core.close()
            self._flush()
            with suppress(TimeoutError):
                while not self._is_over:
                    if self._messages:
                        self._messages.clear()
                        self._resume_reading()
                    self._changed.clear()
                    async with asyncio.timeout(GOODBYE_S):
                        await self._changed.wait()
        except asyncio.CancelledError:
            self._drop()
            raise
        finally:
            self._is_returned = True
            self._messages.clear()
            if self._is_lost:
                self._end(None)
            else:
                self._library.force_close()  # what still comes is no request

    async def _send(self, message: bytes) -> None:
        if self._is_over:
            raise StreamError("the client has gone")
        self._core.send(message)
        self._flush()
        await self._room.wait()

    def _drop(self) -> None:
        if not self._is_lost:
            self._transport.abort()

    def _resume_reading(self) -> None:
        if not self._is_lost:
            self._transport.resume_reading()

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

    def _notify(self) -> None:
        self._changed.set()
        with self._arrived:
            self._arrived.notify_all()

    # What the transport calls

    def data_received(self, data: bytes) -> None:
        if self._is_returned:
            return
        self._core.receive_data(data, time.monotonic())
        self._messages += by_channel(self._core.messages_received())
        if len(self._messages) >= _WAITING and not self._is_lost:
            self._transport.pause_reading()
        if self._room.is_set():  # a client that reads nothing gets no answers to its pings
            self._flush()
        self._notify()

    def eof_received(self) -> bool:
        self._core.receive_eof()
        self._notify()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._room.set()
        self._notify()
        if self._is_returned:
            self._end(exc)

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()
        self._flush()


class Upgraded(web.StreamResponse):
    """Stands for a response that the library does not have to send."""

    async def prepare(self, request: web.BaseRequest) -> None:
        """Do nothing."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing."""


def wants_stream(request: web.BaseRequest) -> bool:
    return "upgrade" in request.headers.get("Connection", "").lower()


def accept(request: web.BaseRequest) -> UpgradedLink | None:
    """Take the connection of a request that asks for an upgrade; None if the client has gone."""
    answer = accepted(request.headers.items(), PIECES_PROTOCOL)
    if answer is None:
        raise Refused(400, f"the bytes of a copy go over a WebSocket with {PIECES_PROTOCOL}")
    transport = request.transport
    if transport is None or transport.is_closing():
        return None
    request.protocol.keep_alive(False)
    link = UpgradedLink(request, transport)
    transport.set_protocol(link)
    transport.write(answer)
    return link
