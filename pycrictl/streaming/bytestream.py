"""An open connection that is read piece by piece: what TCP or TLS gives, without a copy of it."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from pycrictl.errors import StreamError
from pycrictl.streaming.target import (
    Target,
    TlsFiles,
    cannot_connect,
    connection_broke,
    tls_of,
)

HELD_BYTES: Final = 512 << 10
"""Most that waits to be read, apart from one piece, before the peer is held back."""

READ_BYTES: Final = 512 << 10
_GOODBYE_S: Final = 1.0


class ByteStream(asyncio.Protocol):
    """An open connection, whose failures are StreamErrors that name the peer by its label.

    A server's ``accepted`` is called when it is open.
    """

    def __init__(
        self, label: str, accepted: Callable[[ByteStream], object] = lambda stream: None
    ) -> None:
        self.label = label
        self._accepted = accepted
        self._pieces: deque[bytes] = deque()
        self._held_bytes = 0
        self._is_ended = False
        self._error: OSError | None = None
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._lost = asyncio.Event()

    async def read(self) -> bytes:
        """Return the next bytes, empty at the end. May be cancelled without losing any."""
        if not self._pieces:
            if not self._is_ended:
                self._arrived.clear()
                await self._arrived.wait()
            if not self._pieces:
                if self._error is not None:
                    raise self._broken(self._error)
                return b""
        piece = self._pieces.popleft()
        is_held_back = self._held_bytes > HELD_BYTES
        self._held_bytes -= len(piece)
        if is_held_back and self._held_bytes <= HELD_BYTES and not self._is_ended:
            self._transport.resume_reading()
        return piece

    def unread(self, data: bytes) -> None:
        if data:
            self._pieces.appendleft(data)
            self._held_bytes += len(data)

    async def write(self, data: bytes) -> None:
        self.send([data])
        await self.drain()

    def send(self, pieces: Iterable[bytes | memoryview]) -> None:
        """Send pieces as the peer takes them, without waiting; see ``drain``.

        On a connection that is closed or lost it has no effect.
        """
        if not self._transport.is_closing():  # asyncio would print a warning for each such write
            # Not by writelines, which holds nobody back in some versions (CVE-2024-12254).
            self._transport.write(b"".join(pieces))

    @property
    def is_full(self) -> bool:
        return not self._writable.is_set()

    async def drain(self) -> None:
        """Wait while much of what was sent is not taken by the peer."""
        if self._transport.is_closing():
            await asyncio.sleep(0)  # that it is lost becomes known in the next round of the loop
        await self._writable.wait()
        if self._lost.is_set():
            raise self._broken(self._error or ConnectionResetError("connection lost"))

    def end(self) -> None:
        """Send no more, but go on reading. Not possible with TLS."""
        if not self._transport.is_closing():
            self._transport.write_eof()

    async def close(self, *, within_s: float | None = _GOODBYE_S) -> None:
        """Close in good order, within a time in seconds or however long that takes."""
        if not self._transport.is_closing():  # a second time, Python 3.11.2 could not abort TLS
            self._transport.close()
        try:
            async with asyncio.timeout(within_s):
                await self._lost.wait()
        except TimeoutError:
            self.abort()

    def abort(self) -> None:
        """Close at once, without waiting. Has no effect on a closed connection."""
        if not self._lost.is_set():  # Python 3.11.2 could not, after what was unsent has gone out
            self._transport.abort()

    def _broken(self, exc: OSError) -> StreamError:
        error = connection_broke(self.label, exc)
        error.__cause__ = exc
        return error

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # How asyncio's transports for sockets call it. Others go on with a size of their own.
        if hasattr(transport, "max_size"):
            transport.max_size = READ_BYTES
        transport.set_write_buffer_limits(HELD_BYTES)  # so that more can be made meanwhile
        self._accepted(self)

    def data_received(self, data: bytes) -> None:
        was_held_back = self._held_bytes > HELD_BYTES
        self._pieces.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > HELD_BYTES and not was_held_back:
            self._transport.pause_reading()
        self._arrived.set()

    def eof_received(self) -> bool:
        self._is_ended = True
        self._arrived.set()
        # We may go on sending, which TLS does not know.
        return self._transport.get_extra_info("sslcontext") is None

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._read_rest()
        self._is_ended = True
        self._error = exc if isinstance(exc, OSError) else None
        self._lost.set()
        self._arrived.set()
        self._writable.set()

    def _read_rest(self) -> None:
        """Take in what the peer said before it reset the connection.

        A write that fails makes the loop close the socket with that unread, and it may be the
        outcome of a command that has left input unread. What TLS holds back cannot be read here.
        """
        if self._transport.get_extra_info("sslcontext") is not None:
            return
        descriptor = self._transport.get_extra_info("socket").fileno()
        with suppress(OSError):
            while piece := os.read(descriptor, HELD_BYTES):
                self._pieces.append(piece)
                self._held_bytes += len(piece)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()


async def dial(target: Target, *, timeout_s: float, tls: TlsFiles | None = None) -> ByteStream:
    """Open a connection, which the caller must close or abort."""
    context, server_name = tls_of(target, tls) or (None, None)
    loop = asyncio.get_running_loop()

    def make() -> ByteStream:
        return ByteStream(target.label)

    try:
        async with asyncio.timeout(timeout_s):
            if target.socket:
                _, connection = await loop.create_unix_connection(
                    make, target.socket, ssl=context, server_hostname=server_name
                )
            else:
                _, connection = await loop.create_connection(
                    make, target.host, target.port, ssl=context, server_hostname=server_name
                )
    except (OSError, UnicodeError) as exc:
        raise cannot_connect(target, exc, timeout_s) from exc
    return connection
