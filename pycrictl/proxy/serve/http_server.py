"""HTTP servers for one request per connection; too many clients cannot lock others out.

Requests are read, and responses made, by ``websockets`` without IO: the connection of a copy is
passed on as a socket, to threads.

Any user of the node can connect. If there are too many connections, the one that has waited longest
for the head of its request is dropped: the newest, which may be about to send, are kept, and so are
those whose request was accepted.

All listeners together leave an eighth of the file descriptors for the requested work. If no
descriptor is left anyway, clients wait in the kernel's queue.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final, NamedTuple, TypeAlias

from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from pycrictl.base import limits
from pycrictl.base.address import Address
from pycrictl.base.errors import ConfigError
from pycrictl.base.servicelog import Log, RateLimitedLog
from pycrictl.base.units import quote
from pycrictl.copy.transfer.messages import STREAM_PROTOCOL
from pycrictl.streams.loop import end_tasks

PAGE_S: Final = 30.0
"""Timeout for making and sending a page."""

MAX_HEAD_BYTES: Final = 16384
"""The longest request head accepted."""

MAX_MESSAGE_BYTES: Final = 4096
"""The longest message accepted on a progress stream, where the content is ignored."""

LAST: Final = {"Cache-Control": "no-store", "Connection": "close"}
"""Header fields of each response, after which its connection is closed."""

_HEAD_END: Final = b"\r\n\r\n"
_RETRY_S: Final = 0.1
_RESET: Final = struct.pack("ii", 1, 0)  # struct linger: reset; nothing stays in the kernel


class Connection(NamedTuple):
    """A connection whose request was read; ``early`` are the bytes that came after the request."""

    sock: socket.socket
    protocol: ServerProtocol
    early: bytes


MakePage: TypeAlias = Callable[[], Awaitable[Response]]
Work: TypeAlias = Coroutine[Any, Any, None]


class RequestRefused(Exception):
    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


def page(status: int, body: bytes, content_type: str = "text/plain; charset=utf-8") -> Response:
    fields = {"Content-Type": content_type, "Content-Length": str(len(body)), **LAST}
    return Response(status, HTTPStatus(status).phrase, Headers(fields), body)


class HttpServer:
    """Serves on one or more bound sockets, with at most ``places`` connections at once.

    ``head_s`` is how long a connection may take to send its request head.
    """

    def __init__(self, places: int, log: Log, *, head_s: float = limits.HEAD_S) -> None:
        self._loop = asyncio.get_running_loop()
        self._places = places
        self._head_s = head_s
        self._listeners: dict[socket.socket, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: dict[asyncio.Task[None], socket.socket] = {}  # for a request; oldest first
        self.dropped = RateLimitedLog(log.warning, "stream_dropped")
        self._paused = RateLimitedLog(log.warning, "accept_paused")

    def listen(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        listener.listen(limits.BACKLOG)
        self._listeners[listener] = self._loop.create_task(self._accept(listener))

    def _route(self, request: Request, connection: Connection) -> Work:
        """Return the coroutine that serves a GET request and closes its socket.

        Raises ``RequestRefused``.
        """
        raise NotImplementedError

    async def leave_port(self) -> None:
        """Stop listening on the port; open connections are kept."""
        await self._close(
            [listener for listener in self._listeners if listener.family != socket.AF_UNIX]
        )

    async def _close(self, listeners: list[socket.socket]) -> None:
        await end_tasks([self._listeners.pop(listener) for listener in listeners])
        for listener in listeners:
            listener.close()

    @property
    def open_count(self) -> int:
        """The number of connections with an accepted request."""
        return len(self._tasks) - len(self._waiting)

    async def stop(self) -> None:
        await self._close([*self._listeners])
        await end_tasks(self._tasks)

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = await self._loop.sock_accept(listener)
            except ConnectionAbortedError:
                continue
            except OSError as exc:
                self._paused(reason=exc.strerror or str(exc))
                await asyncio.sleep(_RETRY_S)
                continue
            self._began(sock)
            await asyncio.sleep(0)  # accepting a waiting connection does not suspend this task

    def _began(self, sock: socket.socket) -> None:
        task = self._loop.create_task(self._connection(sock))
        self._waiting[task] = sock
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        if len(self._tasks) > self._places:
            self.dropped(why="too many connections")
            oldest = next(iter(self._waiting))
            loser = self._waiting.pop(oldest)
            self._tasks.discard(oldest)
            # Not before its task has ended: until then the loop still knows the descriptor.
            oldest.add_done_callback(lambda _: _reset(loser))
            oldest.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if (sock := self._waiting.pop(task, None)) is not None:
            _reset(sock)

    async def _connection(self, sock: socket.socket) -> None:
        with suppress(OSError):  # the client has disconnected or does not read
            sock.setblocking(False)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                async with asyncio.timeout(self._head_s):
                    head, early = await self._head(sock)
            except TimeoutError:
                self.dropped(why="no request")
                return
            try:
                protocol, request = _parsed(head)
                work = self._route(request, Connection(sock, protocol, early))
            except RequestRefused as refused:
                await self._refuse(sock, refused.status)
                return
            task = asyncio.current_task()
            assert task is not None
            del self._waiting[task]
            await work

    async def _head(self, sock: socket.socket) -> tuple[bytes, bytes]:
        """Return the head of the request, cut off if it is too long, and the bytes after it."""
        received = b""
        while _HEAD_END not in received and len(received) <= MAX_HEAD_BYTES:
            if not (data := await self._loop.sock_recv(sock, MAX_HEAD_BYTES)):
                raise ConnectionResetError
            received += data
        head, end, early = received.partition(_HEAD_END)
        return head + end, early

    async def _refuse(self, sock: socket.socket, status: HTTPStatus) -> None:
        refusal = page(status, f"{status.phrase.lower()}\n".encode())
        async with asyncio.timeout(self._head_s):
            await self._loop.sock_sendall(sock, refusal.serialize())
            # Closing now would make the kernel drop the response if the client still sends.
            sock.shutdown(socket.SHUT_WR)
            while await self._loop.sock_recv(sock, MAX_HEAD_BYTES):
                pass
            sock.close()


def _parsed(head: bytes) -> tuple[ServerProtocol, Request]:
    protocol = ServerProtocol(select_subprotocol=_channels, max_size=MAX_MESSAGE_BYTES)
    protocol.receive_data(head)
    for event in protocol.events_received() if head.startswith(b"GET ") else ():
        if isinstance(event, Request) and len(event.headers.get_all("Host")) == 1:
            return protocol, event
    raise RequestRefused(HTTPStatus.BAD_REQUEST)


def _channels(protocol: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    """Choose the protocol of copies; progress streams have none."""
    return Subprotocol(STREAM_PROTOCOL) if STREAM_PROTOCOL in offered else None


def _reset(sock: socket.socket) -> None:
    with suppress(OSError), sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


class PageServer(HttpServer):
    """Serves small pages, each made on request; then the connection is closed."""

    def __init__(self, pages: Mapping[str, MakePage], address: Address, log: Log) -> None:
        super().__init__(places(limits.PAGE_CONNECTIONS, limits.PAGE_SHARE), log)
        self._pages = pages
        self._address = address

    def start(self) -> Address:
        """Start listening, and return the address with the actual port."""
        listener = listening(self._address)
        self.listen(listener)
        return Address(self._address.host, listener.getsockname()[1])

    def _route(self, request: Request, connection: Connection) -> Work:
        if (make := self._pages.get(request.path.partition("?")[0])) is None:
            raise RequestRefused(HTTPStatus.NOT_FOUND)
        return _send(connection.sock, make)


async def _send(sock: socket.socket, make: MakePage) -> None:
    with sock, suppress(OSError):  # the client has disconnected or does not read
        async with asyncio.timeout(PAGE_S):
            data = (await make()).serialize()
            await asyncio.get_running_loop().sock_sendall(sock, data)


def listening(address: Address) -> socket.socket:
    """Bind a socket to an address.

    A process that takes over, which has the same user, may bind it before this one has stopped.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server(address, family=family, reuse_port=True)
    except OSError as exc:
        reason = os.strerror(exc.errno or 0).lower()
        raise ConfigError(f"cannot listen on {quote(address.authority)}: {reason}") from None


def places(most: int, share: int) -> int:
    """Return the connection limit: ``most``, but at most one per ``share`` file descriptors."""
    return min(most, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // share)
