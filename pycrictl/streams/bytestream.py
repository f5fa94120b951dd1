"""An open connection over TCP, a Unix socket or TLS, read piece by piece without copies."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from pycrictl.base import limits
from pycrictl.base.errors import StreamError
from pycrictl.streams.target import Target, TlsFiles, cannot_connect, connection_broke, tls_of

HELD_BYTES: Final = 512 << 10
"""Reading from the peer pauses while more unread bytes than this are held."""

READ_BYTES: Final = 512 << 10


class ByteStream(asyncio.Protocol):
    """An open connection; its failures are StreamErrors that name the peer by ``label``.

    A server's ``accepted`` is called once the connection is open.
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
        """Queue pieces for sending, without waiting; see ``drain``.

        Has no effect on a connection that is closed or lost.
        """
        if not self._transport.is_closing():  # asyncio would print a warning for each such write
            # Not writelines, which lacks flow control in some versions (CVE-2024-12254).
            self._transport.write(b"".join(pieces))

    @property
    def is_full(self) -> bool:
        return not self._writable.is_set()

    async def drain(self) -> None:
        """Wait while too many queued bytes have not been accepted by the peer."""
        if self._transport.is_closing():
            await asyncio.sleep(0)  # the loop reports a loss in its next iteration
        await self._writable.wait()
        if self._lost.is_set():
            raise self._broken(self._error or ConnectionResetError("connection lost"))

    def end(self) -> None:
        """Stop sending, but keep reading. Not possible with TLS."""
        if not self._transport.is_closing():
            self._transport.write_eof()

    async def close(self, *, within_s: float | None = limits.GOODBYE_S) -> None:
        """Close in good order; abort after ``within_s`` seconds, or never if it is None."""
        if not self._transport.is_closing():  # after a second close, Python 3.11.2 cannot abort TLS
            self._transport.close()
        try:
            async with asyncio.timeout(within_s):
                await self._lost.wait()
        except TimeoutError:
            self.abort()

    def abort(self) -> None:
        """Close at once, without waiting. Has no effect on a closed connection."""
        if not self._lost.is_set():  # Python 3.11.2 fails here once all unsent data has gone out
            self._transport.abort()

    def _broken(self, exc: OSError) -> StreamError:
        error = connection_broke(self.label, exc)
        error.__cause__ = exc
        return error

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # An attribute of asyncio's socket transports; others keep a read size of their own.
        if hasattr(transport, "max_size"):
            transport.max_size = READ_BYTES
        transport.set_write_buffer_limits(HELD_BYTES)  # more can be produced meanwhile
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
        # True keeps our side open for sending, which TLS does not support.
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
        """Read the data that the peer sent before it reset the connection.

        After a failed write the loop closes the socket with that data unread. The data may be the
        outcome of a command that left input unread. Data buffered by TLS cannot be read here.
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
