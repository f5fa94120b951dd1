"""The streaming server: an HTTP listener on which a one-time URL becomes a stream.

It is at the port that URLs name, and on a Unix socket, for clients whose loopback is another one.

For a progress stream, a request that upgrades to a WebSocket gets a text message for each record
and, at the end, a normal close. Any other GET gets the same records as lines of a chunked body, so
that ``curl -N`` works. A copy stream is always a WebSocket, and its connection is handed over.

A web page must not reach this server through a browser: a request with another ``Origin`` or
``Host`` than this one is refused before its token is looked up.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar
from urllib.parse import urlsplit

from pycrictl.copy.transfer.messages import STREAM_PROTOCOL as PROTOCOL
from pycrictl.errors import ConfigError
from pycrictl.proxy.serve.http_server import HttpServer, RequestRefused, places
from pycrictl.proxy.serve.records import BUFFER_BYTES, LineRecords, MessageRecords, listen
from pycrictl.servicelog import Log
from pycrictl.serviceoptions import Address
from pycrictl.units import quote
from pycrictl.wire import limits
from pycrictl.wire.http1 import Request
from pycrictl.wire.progress import Report, encode_report
from pycrictl.wire.upgrade import accepted

PATH: Final = "/progress/"
COPY_PATH: Final = "/copy/"

STUCK_S: Final = 60.0
"""How long a client may take nothing of what it is sent."""

_GOODBYE_S: Final = 1.0

PayloadT = TypeVar("PayloadT")


def listening(address: Address, *, is_shared: bool = False) -> socket.socket:
    """Bind a socket to an address, which others of this user may share if it ``is_shared``."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server(address, family=family, reuse_port=is_shared)
    except OSError as exc:
        reason = os.strerror(exc.errno or 0).lower()
        raise ConfigError(f"cannot listen on {quote(address.authority)}: {reason}") from None


class Ticket(Protocol):
    async def serve(self, sock: socket.socket) -> None:
        """Serve it on a connection whose handshake is over, and close that."""

    def drop(self) -> None:
        """Give it up: it will not be served."""


class StreamServer(Generic[PayloadT]):
    """Serves the streams of ``offer``."""

    _redeem: Callable[[str], PayloadT | None]
    _follow: Callable[[PayloadT], AsyncGenerator[list[Report], None]]
    _redeem_copy: Callable[[str], Ticket | None]

    def __init__(self, log: Log) -> None:
        self._log = log
        self._address = Address("", 0)
        most = places(limits.STREAM_CONNECTIONS, limits.STREAM_SHARE)
        self._http = HttpServer(self._route, places=most, log=log)
        self._progress: dict[asyncio.Task[None], PayloadT] = {}
        self._is_elsewhere: Callable[[PayloadT], bool] = lambda payload: False

    def offer(
        self,
        redeem: Callable[[str], PayloadT | None],
        follow: Callable[[PayloadT], AsyncGenerator[list[Report], None]],
        redeem_copy: Callable[[str], Ticket | None] = lambda token: None,
    ) -> None:
        """Say what uses up tokens, and what yields the records of a progress stream."""
        self._redeem, self._follow, self._redeem_copy = redeem, follow, redeem_copy

    def start(self, address: Address) -> None:
        listener = listening(address)
        self._http.listen(listener)
        self._address = Address(address.host, listener.getsockname()[1])

    def listen_in(self, folder: Path) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(folder / str(self._address.port)))
        self._http.listen(listener)

    @property
    def address(self) -> Address:
        return self._address

    def url(self, token: str, path: str = PATH) -> str:
        return f"http://{self._address.authority}{path}{token}"

    @property
    def open_count(self) -> int:
        return self._http.open_count

    def pause(self) -> None:
        """Leave the port, which another program takes."""
        self._http.leave()

    def resume(self) -> None:
        self._http.listen(listening(self._address))

    @property
    def dropped_count(self) -> int:
        return self._http.dropped_count

    def leave(self, is_elsewhere: Callable[[PayloadT], bool]) -> None:
        """End progress streams that another program goes on with, now and when they are opened."""
        self._is_elsewhere = is_elsewhere
        for task, payload in self._progress.items():
            if is_elsewhere(payload):
                task.cancel()

    async def stop(self) -> None:
        await self._http.stop()

    def _route(
        self, request: Request, sock: socket.socket, early: bytes
    ) -> Coroutine[Any, Any, None]:
        """Use up the token of a request; only then is there something to be done for it."""
        self._check(request)
        if request.target.startswith(COPY_PATH):
            return self._copy(sock, *self._redeemed_copy(request, early))
        stream = _records(request)
        token = request.target.removeprefix(PATH)
        payload = self._redeem(token) if request.target.startswith(PATH) else None
        if payload is None:
            raise RequestRefused(HTTPStatus.NOT_FOUND)
        return self._follow_up(sock, stream, payload, early)

    def _redeemed_copy(self, request: Request, early: bytes) -> tuple[Ticket, bytes]:
        ticket = self._redeem_copy(request.target.removeprefix(COPY_PATH))
        if ticket is None:
            raise RequestRefused(HTTPStatus.NOT_FOUND)
        answer = accepted(request.headers.raw_items(), PROTOCOL)
        if early or answer is None:
            ticket.drop()
            raise RequestRefused(HTTPStatus.BAD_REQUEST)
        return ticket, answer

    async def _copy(self, sock: socket.socket, ticket: Ticket, answer: bytes) -> None:
        try:
            sock.send(answer)
            await ticket.serve(sock)
        except OSError:  # the client is gone
            ticket.drop()
            sock.close()

    async def _follow_up(
        self,
        sock: socket.socket,
        stream: MessageRecords | LineRecords,
        payload: PayloadT,
        early: bytes,
    ) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=BUFFER_BYTES)
        reader.feed_data(early)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, sock)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        # The kernel's buffer is the larger one; this only bounds what is written at once.
        transport.set_write_buffer_limits(high=BUFFER_BYTES)
        try:
            await self._run(stream, payload, reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client is gone
        finally:
            await _close(writer)

    def _check(self, request: Request) -> None:
        """Refuse what a page of another site could make a browser send (and DNS rebinding)."""
        names = {self._address.authority, f"localhost:{self._address.port}"}
        if (request.headers.get("Host") or "").lower() not in names:
            raise RequestRefused(HTTPStatus.FORBIDDEN)
        for origin in request.headers.get_all("Origin"):
            try:
                netloc = urlsplit(origin).netloc.lower()
            except ValueError:
                netloc = ""
            if netloc not in names:
                raise RequestRefused(HTTPStatus.FORBIDDEN)
        if request.method != "GET":
            raise RequestRefused(HTTPStatus.METHOD_NOT_ALLOWED)

    async def _run(
        self,
        stream: MessageRecords | LineRecords,
        payload: PayloadT,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        loop = asyncio.get_running_loop()
        began_at, end, records = loop.time(), "done", 0
        writer.write(stream.head())
        sender = asyncio.current_task()
        assert sender is not None
        listener = asyncio.create_task(listen(stream, reader, writer))

        def leave(_: asyncio.Task[None]) -> None:
            sender.cancel()

        listener.add_done_callback(leave)
        self._progress[sender] = payload
        if self._is_elsewhere(payload):
            sender.cancel()
        try:
            async with contextlib.aclosing(self._follow(payload)) as batches:
                async for batch in batches:
                    records += len(batch)
                    # In pieces, as a batch may hold thousands of records.
                    for report in batch:
                        writer.write(stream.record(encode_report(report)))
                        if _must_drain(writer.transport):
                            await _drain(writer)
                    await _drain(writer)
            writer.write(stream.end(is_whole=True))
            await _drain(writer)
            listener.remove_done_callback(leave)
            if stream.is_answered:
                await asyncio.wait({listener}, timeout=_GOODBYE_S)
        except asyncio.CancelledError:
            end = "gone" if listener.done() else "stopped"
            writer.write(stream.end(is_whole=False))
            if end == "stopped":
                raise
            sender.uncancel()
        except (OSError, TimeoutError) as exc:
            end = "stuck" if isinstance(exc, TimeoutError) else "gone"
            writer.transport.abort()
        finally:
            listener.remove_done_callback(leave)
            listener.cancel()
            del self._progress[sender]
            self._log.info(
                "stream",
                target=str(payload),
                kind=stream.kind,
                end=end,
                records=records,
                duration_s=round(loop.time() - began_at, 3),
            )


def _records(request: Request) -> MessageRecords | LineRecords:
    if not request.wants_websocket:
        return LineRecords(request.minor_version)
    answer = accepted(request.headers.raw_items())
    if answer is None:
        raise RequestRefused(HTTPStatus.BAD_REQUEST)
    return MessageRecords(answer)


def _must_drain(transport: asyncio.WriteTransport) -> bool:
    return transport.is_closing() or transport.get_write_buffer_size() > BUFFER_BYTES


async def _drain(writer: asyncio.StreamWriter) -> None:
    async with asyncio.timeout(STUCK_S):
        await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    try:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                writer.close()
                await writer.wait_closed()
    finally:  # also where this task is cancelled meanwhile
        writer.transport.abort()
