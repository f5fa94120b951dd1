"""HTTP servers on which a connection costs little until the head of its request has arrived.

Any user of the node can connect, so a pending connection is only a socket and the bytes of its
head; a task and buffers are created once its token has been accepted. If there are too many
connections, the user with the most pending ones loses the oldest of them; root loses one only if
nobody else has any. So no user can lock out others, and the newest connections, which may be about
to send, are kept.

All listeners together leave an eighth of the file descriptors for the requested work. If none is
left anyway, clients wait in the kernel's queue; an asyncio server would log a traceback for each.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, NamedTuple, TypeAlias

from pycrictl.errors import ConfigError, RemoteProtocolError
from pycrictl.servicelog import Log, Seldom
from pycrictl.serviceoptions import Address
from pycrictl.streaming.loop import end_tasks
from pycrictl.units import quote
from pycrictl.wire import limits
from pycrictl.wire.http1 import MAX_HEAD_BYTES, Request, parse_request, serialize_response

ROOT: Final = 0

PAGE_S: Final = 30.0
"""Timeout for making and sending a page."""

_HEAD_END: Final = b"\r\n\r\n"
_SWEEP_S: Final = 0.25
_RETRY_S: Final = 0.1
_RESET: Final = struct.pack("ii", 1, 0)  # struct linger: reset; nothing stays in the kernel


class Page(NamedTuple):
    """A small response, after which its connection is closed."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"

    def response(self) -> bytes:
        headers = [
            ("Content-Type", self.content_type),
            ("Content-Length", str(len(self.body))),
            ("Cache-Control", "no-store"),
            ("Connection", "close"),
        ]
        if self.status == HTTPStatus.METHOD_NOT_ALLOWED:
            headers.append(("Allow", "GET"))
        return serialize_response(self.status, HTTPStatus(self.status).phrase, headers, self.body)


class RequestRefused(Exception):
    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.page = Page(status, f"{status.phrase.lower()}\n".encode())


MakePage: TypeAlias = Callable[[], Awaitable[Page]]


@dataclass(eq=False, slots=True)
class Pending:
    sock: socket.socket
    owner: int
    since: float
    data: bytearray = field(default_factory=bytearray)
    is_answered: bool = False


class Shares:
    """Decides which connections a server drops when there are too many. Pure."""

    def __init__(self, count: int) -> None:
        self.settled = 0
        self.waiting: dict[Pending, None] = {}  # the oldest first
        self._held = Counter[int]()  # by user
        self._count = count

    def enter(self, pending: Pending) -> Pending | None:
        """Add a connection; return the one to drop if there are too many, possibly the same one."""
        self.waiting[pending] = None
        self._held[pending.owner] += 1
        if self.settled + len(self.waiting) <= self._count:
            return None
        most = max(self._held, key=lambda uid: (uid != ROOT, self._held[uid]))
        oldest = next(each for each in self.waiting if each.owner == most)
        self.leave(oldest)
        return oldest

    def leave(self, pending: Pending) -> None:
        del self.waiting[pending]
        self._held -= Counter((pending.owner,))  # removes users without any

    def settle(self, pending: Pending) -> None:
        """Count a connection as accepted; the caller decrements ``settled`` when it is closed."""
        self.leave(pending)
        self.settled += 1

    def overdue(self, now: float) -> list[Pending]:
        """Return connections past their timeout, which is shorter while half the places are taken.

        For root, only root's pending connections count as taken places.
        """
        taken = self.settled + len(self.waiting)

        def patience_s(owner: int) -> float:
            is_crowded = 2 * (self._held[ROOT] if owner == ROOT else taken) >= self._count
            return limits.CROWDED_HEAD_S if is_crowded else limits.HEAD_S

        return [each for each in self.waiting if now - each.since >= patience_s(each.owner)]


class HttpServer:
    """Serves on one or more bound sockets, with at most ``places`` connections at once."""

    def __init__(self, places: int, log: Log) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._shares = Shares(places)
        self.dropped = Seldom(log.warning, "stream_dropped")
        self._sweep: asyncio.TimerHandle | None = None
        self._paused = Seldom(log.warning, "accept_paused")
        self._listeners: list[socket.socket] = []

    def listen(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        listener.listen(limits.BACKLOG)
        self._listeners.append(listener)
        self._loop.add_reader(listener, self._accept, listener)

    def _route(
        self, request: Request, sock: socket.socket, early: bytes
    ) -> Coroutine[Any, Any, None]:
        """Return the coroutine that serves a request on ``sock`` and closes it.

        ``early`` is the data after the head. Raises ``RequestRefused`` or RemoteProtocolError.
        """
        raise NotImplementedError

    def pause(self) -> None:
        """Stop listening on the port; pending connections are kept."""
        self._close([one for one in self._listeners if one.family != socket.AF_UNIX])

    def _close(self, listeners: list[socket.socket]) -> None:
        for one in listeners:
            self._listeners.remove(one)
            self._loop.remove_reader(one)
            one.close()

    @property
    def open_count(self) -> int:
        return len(self._tasks)

    async def stop(self) -> None:
        self._close([*self._listeners])
        if self._sweep is not None:
            self._sweep.cancel()
        for pending in self._shares.waiting:
            self._drop(pending)
        await end_tasks(self._tasks)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(limits.ACCEPTED_AT_ONCE):
            try:
                sock, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                self._paused(reason=exc.strerror or str(exc))
                self._loop.remove_reader(listener)
                self._loop.call_later(_RETRY_S, self._accept_again, listener)
                return
            sock.setblocking(False)
            self._accepted(sock)

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener, self._accept, listener)

    def _accepted(self, sock: socket.socket) -> None:
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pending = Pending(sock, owner(sock), self._loop.time())
        loser = self._shares.enter(pending)
        if loser is not pending:
            self._loop.add_reader(sock, self._read, pending)
        if loser is not None:
            self.dropped(why="too many connections", uid=loser.owner)
            self._drop(loser)
        if self._sweep is None:
            self._sweep = self._loop.call_later(_SWEEP_S, self._drop_overdue)

    def _read(self, pending: Pending) -> None:
        try:
            data = pending.sock.recv(MAX_HEAD_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._leave(pending)
        if not data or pending.is_answered:
            return
        start = max(len(pending.data) - len(_HEAD_END) + 1, 0)
        pending.data += data
        end = pending.data.find(_HEAD_END, start)
        if end >= 0:
            end += len(_HEAD_END)
            self._begin(pending, bytes(pending.data[:end]), bytes(pending.data[end:]))
        elif len(pending.data) > MAX_HEAD_BYTES:
            self._answer(pending, b"")

    def _begin(self, pending: Pending, head: bytes, early: bytes) -> None:
        try:
            work = self._route(parse_request(head), pending.sock, early)
        except RemoteProtocolError:
            self._answer(pending, RequestRefused(HTTPStatus.BAD_REQUEST).page.response())
        except RequestRefused as refused:
            self._answer(pending, refused.page.response())
        else:
            self._loop.remove_reader(pending.sock)
            self._shares.settle(pending)
            task = self._loop.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._shares.settled -= 1

    def _answer(self, pending: Pending, data: bytes) -> None:
        """Send a short last response, and leave the client a moment to read it."""
        pending.is_answered = True
        pending.data.clear()
        try:
            pending.sock.send(data)
            # Closing now would make the kernel drop the response if the client is still sending.
            pending.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._leave(pending)

    def _drop_overdue(self) -> None:
        self._sweep = None
        for pending in self._shares.overdue(self._loop.time()):
            if not pending.is_answered:
                self.dropped(why="no request", uid=pending.owner)
            self._leave(pending)
        if self._shares.waiting:
            self._sweep = self._loop.call_later(_SWEEP_S, self._drop_overdue)

    def _leave(self, pending: Pending) -> None:
        self._shares.leave(pending)
        self._drop(pending)

    def _drop(self, pending: Pending) -> None:
        self._loop.remove_reader(pending.sock)
        with suppress(OSError):
            if not pending.is_answered:
                pending.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        pending.sock.close()


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

    def _route(
        self, request: Request, sock: socket.socket, early: bytes
    ) -> Coroutine[Any, Any, None]:
        make = self._pages.get(request.target.partition("?")[0])
        if make is None:
            raise RequestRefused(HTTPStatus.NOT_FOUND)
        if request.method != "GET":
            raise RequestRefused(HTTPStatus.METHOD_NOT_ALLOWED)
        return _send(sock, make)


async def _send(sock: socket.socket, make: MakePage) -> None:
    with sock, suppress(OSError):  # the client has disconnected or does not read
        async with asyncio.timeout(PAGE_S):
            data = (await make()).response()
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


# The user of a local connection


UNKNOWN: Final = -1

_SOCK_DIAG: Final = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY: Final = 20  # SOCK_DIAG_BY_FAMILY
_REQUEST: Final = 1  # NLM_F_REQUEST
_ANY_COOKIE: Final = b"\xff" * 8

# struct nlmsghdr, struct inet_diag_req_v2
_ASK: Final = struct.Struct("=IHHIIBBBxIHH16s16sI8s")
_CREDENTIALS: Final = struct.Struct("=iII")  # struct ucred
# struct nlmsghdr, struct inet_diag_msg: the kind of response, the user and the inode
_ANSWER: Final = struct.Struct("=4xH2x4x4x4x48x12xII")


def owner(sock: socket.socket) -> int:
    """Return the ID of the user at the other end, or ``UNKNOWN``.

    TCP has no ``SO_PEERCRED``. A query for that one socket (sock_diag(7)) takes the kernel some
    microseconds; reading ``/proc/net/tcp`` takes milliseconds, and longer the more connections the
    node has. The user is unknown if the other end is remote or already closed, and in a strict
    sandbox.
    """
    if sock.family == socket.AF_UNIX:
        found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(found)[1])
    try:
        near, far = sock.getsockname(), sock.getpeername()
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as kernel:
            kernel.settimeout(0.1)  # responses are immediate
            kernel.send(
                _ASK.pack(
                    *(_ASK.size, _BY_FAMILY, _REQUEST, 0, 0),
                    *(sock.family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF),
                    *(socket.htons(far[1]), socket.htons(near[1])),
                    *(socket.inet_pton(sock.family, end[0]) for end in (far, near)),
                    *(0, _ANY_COOKIE),
                )
            )
            answer = kernel.recv(1024)
    except OSError:
        return UNKNOWN
    if len(answer) < _ANSWER.size:
        return UNKNOWN
    kind, uid, inode = _ANSWER.unpack_from(answer)
    # A socket that its process has closed has no owner, and its uid is given as root's.
    return int(uid) if kind == _BY_FAMILY and inode else UNKNOWN
