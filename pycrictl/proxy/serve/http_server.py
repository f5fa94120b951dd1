"""HTTP servers for one request a connection, which clients in excess cannot lock anybody out of.

Any user of the node can connect. If there are too many connections, the one that has waited longest
for the head of its request is dropped: the newest, which may be about to send, are kept, and so are
those whose request was accepted.

All listeners together leave an eighth of the file descriptors for the requested work. If none is
left anyway, clients wait in the kernel's queue.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final, NamedTuple, TypeAlias

from pycrictl.base import limits
from pycrictl.base.address import Address
from pycrictl.base.errors import ConfigError, RemoteProtocolError
from pycrictl.base.servicelog import Log, Seldom
from pycrictl.base.units import quote
from pycrictl.streams.loop import end_tasks
from pycrictl.streams.wire.http1 import MAX_HEAD_BYTES, Exchange, Request

PAGE_S: Final = 30.0
"""Timeout for making and sending a page."""

_RETRY_S: Final = 0.1
_RESET: Final = struct.pack("ii", 1, 0)  # struct linger: reset; nothing stays in the kernel


class Page(NamedTuple):
    """A small response, after which its connection is closed."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"

    def response(self, http: Exchange, *, has_body: bool = True) -> bytes:
        size = str(len(self.body))
        headers = [("Content-Type", self.content_type), ("Content-Length", size)]
        if self.status == HTTPStatus.METHOD_NOT_ALLOWED:
            headers.append(("Allow", "GET"))
        return http.head(HTTPStatus(self.status), headers) + (
            http.body(self.body) if has_body else b""
        )


class RequestRefused(Exception):
    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.page = Page(status, f"{status.phrase.lower()}\n".encode())


MakePage: TypeAlias = Callable[[], Awaitable[Page]]
Work: TypeAlias = Coroutine[Any, Any, None]


class HttpServer:
    """Serves on one or more bound sockets, with at most ``places`` connections at once."""

    def __init__(self, places: int, log: Log) -> None:
        self._loop = asyncio.get_running_loop()
        self._places = places
        self._listeners: dict[socket.socket, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: dict[asyncio.Task[None], socket.socket] = {}  # for a request; oldest first
        self.dropped = Seldom(log.warning, "stream_dropped")
        self._paused = Seldom(log.warning, "accept_paused")

    def listen(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        listener.listen(limits.BACKLOG)
        self._listeners[listener] = self._loop.create_task(self._accept(listener))

    def _route(self, request: Request, http: Exchange, sock: socket.socket) -> Work:
        """Return the coroutine that serves a request on ``sock`` and closes it.

        Raises ``RequestRefused``.
        """
        raise NotImplementedError

    async def pause(self) -> None:
        """Stop listening on the port; pending connections are kept."""
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
            await asyncio.sleep(0)  # accepting a connection that waits already does not suspend

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
            http, request = Exchange(), None
            try:
                async with asyncio.timeout(limits.HEAD_S):
                    request = await self._request(sock, http)
                work = self._route(request, http, sock)
            except TimeoutError:
                self.dropped(why="no request")
                return
            except RemoteProtocolError:
                page = RequestRefused(HTTPStatus.BAD_REQUEST).page
            except RequestRefused as refused:
                page = refused.page
            else:
                task = asyncio.current_task()
                assert task is not None
                del self._waiting[task]
                await work
                return
            has_body = request is None or request.method != "HEAD"
            async with asyncio.timeout(limits.HEAD_S):
                await self._loop.sock_sendall(sock, page.response(http, has_body=has_body))
                # Closing now would make the kernel drop the response if the client still sends.
                sock.shutdown(socket.SHUT_WR)
                while await self._loop.sock_recv(sock, MAX_HEAD_BYTES):
                    pass
                sock.close()

    async def _request(self, sock: socket.socket, http: Exchange) -> Request:
        while data := await self._loop.sock_recv(sock, MAX_HEAD_BYTES):
            if (request := http.receive(data)) is not None:
                return request
        raise ConnectionResetError


def _reset(sock: socket.socket) -> None:
    with suppress(OSError), sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


class PageServer(HttpServer):
    """Serves small pages, each made on request; its connection is closed after it."""

    def __init__(self, pages: Mapping[str, MakePage], *, log: Log) -> None:
        super().__init__(places(limits.PAGE_CONNECTIONS, limits.PAGE_SHARE), log)
        self._pages = pages

    def start(self, address: Address) -> Address:
        # A process that takes over listens before this one has stopped.
        listener = listening(address, is_shared=True)
        self.listen(listener)
        return Address(address.host, listener.getsockname()[1])

    def _route(self, request: Request, http: Exchange, sock: socket.socket) -> Work:
        make = self._pages.get(request.target.partition("?")[0])
        if make is None:
            raise RequestRefused(HTTPStatus.NOT_FOUND)
        if request.method != "GET":
            raise RequestRefused(HTTPStatus.METHOD_NOT_ALLOWED)
        return _send(sock, http, make)


async def _send(sock: socket.socket, http: Exchange, make: MakePage) -> None:
    with sock, suppress(OSError):  # the client has disconnected or does not read
        async with asyncio.timeout(PAGE_S):
            data = (await make()).response(http)
            await asyncio.get_running_loop().sock_sendall(sock, data)


def listening(address: Address, *, is_shared: bool = False) -> socket.socket:
    """Bind a socket to an address, which this user's other sockets may share if ``is_shared``."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server(address, family=family, reuse_port=is_shared)
    except OSError as exc:
        reason = os.strerror(exc.errno or 0).lower()
        raise ConfigError(f"cannot listen on {quote(address.authority)}: {reason}") from None


def places(most: int, share: int) -> int:
    """Return the connection limit: ``most``, but at most one per ``share`` file descriptors."""
    return min(most, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // share)
