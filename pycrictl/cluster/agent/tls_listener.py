"""The listener: accepts connections, and limits the cost of unauthenticated ones.

aiohttp limits single fields of a request's head, but neither a whole head nor how many connections
may wait for TLS, and anyone who reaches the port could fill the agent's memory. So connections are
accepted here, and the head of the first request is measured before the library sees it: by an
``asyncio.Protocol``'s own methods, which its request handler has as well.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from pycrictl.base.errors import ConfigError
from pycrictl.base.memory import trim_memory
from pycrictl.base.servicelog import Log, Seldom
from pycrictl.base.units import quote
from pycrictl.cluster.agent.api.answers import refuse
from pycrictl.cluster.agent.api.names import Refusal

MAX_CONNECTIONS: Final = 1500
MAX_UNAUTHENTICATED: Final = 128
"""How many unauthenticated connections may be open. Each takes up to 100 KiB, mostly for TLS."""

MAX_WAITING: Final = 256
"""How many more may wait for their TLS handshake: each takes no more than a socket."""

HEAD_BYTES: Final = 16 * 1024
MAX_FIELDS: Final = 100
"""The limits of the whole head of an unauthenticated request."""

BACKLOG: Final = 2048
"""Connections that the kernel holds until they have sent data and are accepted."""

ACCEPT_AT_ONCE: Final = 32
HANDSHAKES_AT_ONCE: Final = 4
"""Handshakes begun before other tasks get a turn: one takes some ten times as long as an accept."""

ACCEPT_REST_S: Final = 0.1
HANDSHAKE_S: Final = 10.0
FIRST_REQUEST_S: Final = 15.0
"""Time limits of a connection for TLS, and then for its authentication."""

KEEP_ALIVE_S: Final = 90.0
"""Longer than the API server's own limit, so the API server is the one to close connections."""

TLS_BUFFER_BYTES: Final = 32 * 1024
"""The read buffer of a TLS connection. With asyncio's 256 KiB, 2,000 idle ones hold 500 MiB."""

MAX_LINE_BYTES: Final = 20 * 1024
MAX_HEADERS: Final = 1200
"""The limits for the front proxy's requests: each group of a user has its own header."""

MAX_HEADER_BYTES: Final = 16 * 1024
TRIM_S: Final = 5.0
STOP_S: Final = 5.0

_HEAD_END: Final = b"\r\n\r\n"
_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"Connection: close\r\nContent-Length: 0\r\n\r\n"
)

_MESSAGE_CHARS: Final = 200
_LIMITS: Final[dict[str, Any]] = {
    "keepalive_timeout": KEEP_ALIVE_S,
    "max_line_size": MAX_LINE_BYTES,
    "max_headers": MAX_HEADERS,
    "max_field_size": MAX_HEADER_BYTES,
    "lingering_time": 0,
    "access_log": None,
}

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
IsTrusted = Callable[[asyncio.BaseTransport], bool]


@dataclass(eq=False, slots=True)
class _Pending:
    """An unauthenticated connection; ``transport`` is None until the handshake is over."""

    client: socket.socket
    host: str
    context: ssl.SSLContext | None
    timer: asyncio.TimerHandle | None = None
    transport: asyncio.Transport | None = None


class _HttpConnection(web.RequestHandler):
    """The library's connection, with a limit on the head of an unauthenticated request.

    The library only limits each single field of a head. The data after the head is read once the
    request is authenticated.
    """

    def __init__(self, server: TlsListener, pending: _Pending) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **_LIMITS)
        self.pending: _Pending | None = pending
        self._server = server
        self._head = bytearray()
        self._rest: bytes | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start serving after the TLS handshake, unless it was turned away meanwhile."""
        assert isinstance(transport, asyncio.Transport)
        assert self.pending is not None
        if not self._server.is_expected(self.pending):
            transport.abort()
            return
        if self._server.is_trusted(transport):
            self._server.forget(self.pending)
            self.pending = None
        else:
            self.pending.transport = transport
            if hasattr(transport, "set_read_buffer_limits"):  # TLS only: limits encrypted input
                transport.set_read_buffer_limits(HEAD_BYTES)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self.pending is None:
            super().data_received(data)
        elif self._rest is not None:
            self._rest += data
        else:
            self._head += data
            head, end, rest = self._head.partition(_HEAD_END)
            if len(head) > HEAD_BYTES or head.count(b"\n") > MAX_FIELDS:
                self._refuse()
            elif end:
                self._head.clear()
                self._rest = bytes(rest)
                if self.transport is not None:
                    self.transport.pause_reading()
                super().data_received(bytes(head + end))

    def authenticated(self) -> None:
        rest, self._rest, self.pending = self._rest, None, None
        if rest is not None and self.transport is not None:
            self.transport.resume_reading()
            if rest:
                super().data_received(rest)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer an invalid request, or one that failed; of many, only some are logged."""
        what = message or (repr(exc) if exc is not None else "it takes too long")
        what = what.partition("\n")[0][:_MESSAGE_CHARS]
        if not isinstance(exc, ConnectionError):  # else the client has left
            self._server.unserved(peer=request.remote or "", status=status, error=what)
        if exc is not None:
            exc.__traceback__ = None  # as in TlsListener._handshake
        if request.writer.output_size > 0:
            raise ConnectionError("a part of another answer has been sent")
        response = refuse(Refusal(status, what))
        response.force_close()
        return response

    def _refuse(self) -> None:
        self._head.clear()
        if self.transport is not None and self.pending is not None:
            self._server.unserved(peer=self.pending.host, status=431)
            self.transport.write(_TOO_LARGE)
        self.force_close()


class TlsListener(web.Server):
    """Listens on one address, with a limit on unauthenticated connections.

    Beyond that limit, a new one replaces the oldest from the client address that has the most. A
    connection is authenticated by its certificate, or by a request that ``Access`` accepts.

    Args:
        handler: raises only for lost connections.
        is_trusted: whether a connection's client certificate authenticates all requests.
    """

    def __init__(
        self,
        handler: Handler,
        address: tuple[str, int],
        is_trusted: IsTrusted = lambda transport: False,
    ) -> None:
        super().__init__(self._answer, handler_cancellation=True)
        self.is_trusted = is_trusted
        self.unserved = Seldom(Log(__name__).warning, "unserved")
        self.turned_away = 0
        self._handler = handler
        self._socket = _listen(*address)
        self._context: ssl.SSLContext | None = None
        self._silent: dict[_Pending, None] = {}
        self._readable: dict[_Pending, None] = {}
        self._unauthenticated: dict[_Pending, None] = {}
        self._handshakes: set[asyncio.Task[None]] = set()
        self._trimming: asyncio.TimerHandle | None = None

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._socket.getsockname()[:2]
        return host, port

    def open(self, context: ssl.SSLContext | None) -> None:
        """Accept connections, new ones with these TLS settings; open ones keep theirs."""
        self._context = context
        self._listen()

    async def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        for pending in (*self._silent, *self._readable, *self._unauthenticated):
            self._drop(pending)
        if self._trimming is not None:
            self._trimming.cancel()
        # A cancelled handshake leaves its connection open.
        await asyncio.gather(*self._handshakes, return_exceptions=True)
        await self.shutdown(STOP_S)

    def authenticated(self, request: web.BaseRequest) -> None:
        connection = request.protocol
        if isinstance(connection, _HttpConnection) and connection.pending is not None:
            self.forget(connection.pending)
            connection.authenticated()

    def is_expected(self, pending: _Pending) -> bool:
        return pending in self._unauthenticated

    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        if handler.pending is not None:
            self.forget(handler.pending)
        super().connection_lost(handler, exc)
        self._trim_later()

    def forget(self, pending: _Pending) -> None:
        for connections in (self._silent, self._readable, self._unauthenticated):
            connections.pop(pending, None)
        if pending.timer is not None:
            pending.timer.cancel()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        response = await self._handler(request)
        # The data after a refused upgrade is no request, whatever it looks like.
        connection = request.protocol
        is_authenticated = isinstance(connection, _HttpConnection) and connection.pending is None
        if not is_authenticated or "Upgrade" in request.headers:
            response.force_close()
        return response

    def _listen(self) -> None:
        if self._socket.fileno() >= 0:  # it is not closed
            asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPT_AT_ONCE):
            try:
                client, address = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):  # none left, or it was aborted
                return
            except OSError:  # out of descriptors
                loop.remove_reader(self._socket)
                loop.call_later(ACCEPT_REST_S, self._listen)
                return
            client.setblocking(False)
            self._take(client, str(address[0]))

    def _take(self, client: socket.socket, host: str) -> None:
        """Serve a socket that was accepted from ``host``, once it has sent data."""
        if len(self._silent) + len(self._readable) >= MAX_WAITING:
            self._turn_away(self._silent or self._readable)
        elif len(self.connections) >= MAX_CONNECTIONS:
            self.turned_away += 1
            client.close()
            return
        loop = asyncio.get_running_loop()
        pending = _Pending(client, host, self._context)
        pending.timer = loop.call_later(HANDSHAKE_S + FIRST_REQUEST_S, self._drop, pending)
        self._silent[pending] = None
        if not self._on_readable(pending):
            loop.add_reader(client.fileno(), self._on_readable, pending)

    def _on_readable(self, pending: _Pending) -> bool:
        """Queue a connection that has sent data for TLS; return whether it was queued or closed."""
        try:
            is_over = not pending.client.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            is_over = True
        if is_over:
            self._drop(pending)
            return True
        loop = asyncio.get_running_loop()
        loop.remove_reader(pending.client.fileno())
        del self._silent[pending]
        if not self._readable:
            loop.call_soon(self._start_handshakes)
        self._readable[pending] = None
        return True

    def _start_handshakes(self) -> None:
        """Begin some handshakes: from the addresses that have the fewest, the latest first."""
        held = Counter(one.host for one in self._unauthenticated)
        for _ in range(min(HANDSHAKES_AT_ONCE, len(self._readable))):
            pending = min(reversed(self._readable), key=lambda one: held[one.host])
            del self._readable[pending]
            if len(self._unauthenticated) >= MAX_UNAUTHENTICATED:
                self._turn_away(self._unauthenticated)
            self._unauthenticated[pending] = None
            held[pending.host] += 1
            task = asyncio.create_task(self._handshake(pending))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)
        if self._readable:
            asyncio.get_running_loop().call_soon(self._start_handshakes)

    async def _handshake(self, pending: _Pending) -> None:
        loop, context = asyncio.get_running_loop(), pending.context
        try:
            await loop.connect_accepted_socket(
                lambda: _HttpConnection(self, pending),
                pending.client,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_S if context is not None else None,
            )
        except (OSError, ssl.SSLError) as exc:  # not TLS, or too slow
            exc.__traceback__ = None  # a reference cycle: it would keep the 100 KiB of TLS
            self.forget(pending)
            pending.client.close()
            self._trim_later()

    def _trim_later(self) -> None:
        """Release memory soon that a flood of connections has fragmented."""
        if self._trimming is None:
            self._trimming = asyncio.get_running_loop().call_later(TRIM_S, self._trim)

    def _trim(self) -> None:
        self._trimming = None
        trim_memory()

    def _turn_away(self, connections: dict[_Pending, None]) -> None:
        self.turned_away += 1
        ((most, _),) = Counter(one.host for one in connections).most_common(1)
        self._drop(next(one for one in connections if one.host == most))

    def _drop(self, pending: _Pending) -> None:
        transport, has_begun = pending.transport, pending in self._unauthenticated
        if pending in self._silent:
            asyncio.get_running_loop().remove_reader(pending.client.fileno())
        self.forget(pending)
        if not has_begun:
            pending.client.close()
        elif transport is not None and not transport.is_closing():
            transport.abort()
        else:
            with suppress(OSError):  # it has just ended
                pending.client.shutdown(socket.SHUT_RDWR)


def limit_tls_buffers() -> None:
    """Make the TLS connections of this process take less memory; asyncio has no option for it."""
    SSLProtocol.max_size = TLS_BUFFER_BYTES


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        found = socket.create_server(
            (host, port), family=family, backlog=BACKLOG, dualstack_ipv6=host == "::"
        )
    except OSError as exc:
        reason = os.strerror(exc.errno or 0).lower()
        raise ConfigError(f"cannot listen on {quote(f'{host}:{port}')}: {reason}") from None
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, int(HANDSHAKE_S))
    found.setblocking(False)
    return found
