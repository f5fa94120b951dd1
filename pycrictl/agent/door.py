"""Listening: who gets a connection, and what one may cost before it is known who asks."""

from __future__ import annotations

import asyncio
import ctypes
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from pycrictl.agent.api.answers import refuse
from pycrictl.agent.api.status import Refusal
from pycrictl.errors import ConfigError, UsageError
from pycrictl.servicelog import Log, Seldom
from pycrictl.units import quote

MAX_CONNECTIONS: Final = 1500
MAX_STRANGERS: Final = 128
"""How many connections may be open of which nobody knows yet that they may ask for something. One
takes up to 100 KiB, most of it TLS."""

MAX_WAITING: Final = 256
"""How many more there may be for which TLS has not begun: each is a socket, and no more."""

HEAD_BYTES: Final = 16 * 1024
MAX_FIELDS: Final = 100
"""How long the head of a stranger's request may be, in all."""

BACKLOG: Final = 2048
"""Connections that the kernel keeps until they say something, and until they are accepted."""

ACCEPT_AT_ONCE: Final = 32
GREET_AT_ONCE: Final = 4
"""With so many TLS is begun before others have a turn: it takes some ten times as long."""

ACCEPT_REST_S: Final = 0.1
HANDSHAKE_S: Final = 10.0
FIRST_REQUEST_S: Final = 15.0
"""How long a stranger has for TLS, and then until it is known."""

KEEP_ALIVE_S: Final = 90.0
"""Longer than the API server's own limit, so that it is the API server that ends connections."""

MAX_LINE_BYTES: Final = 20 * 1024
MAX_HEADERS: Final = 1200
"""Of the front proxy's requests: a user's groups have a header each."""

MAX_HEADER_BYTES: Final = 16 * 1024
TRIM_S: Final = 5.0
STOP_S: Final = 5.0

_HEAD_END: Final = b"\r\n\r\n"
_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"Connection: close\r\nContent-Length: 0\r\n\r\n"
)

_MESSAGE_CHARS: Final = 200

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass(eq=False, slots=True)
class _Stranger:
    """A connection of which nobody knows yet that it may ask for something.

    Attributes:
        client: its socket.
        host: where it comes from.
        context: of the TLS that it is to speak; None for none.
        timer: ends it.
        transport: what it is read by, once that is there.
    """

    client: socket.socket
    host: str
    context: ssl.SSLContext | None
    timer: asyncio.TimerHandle | None = None
    transport: asyncio.Transport | None = None


class _Connection(web.RequestHandler):
    """A connection as the library has it, which a stranger cannot fill.

    The library bounds each field of a head, and this a stranger's head as a whole. What comes
    behind it waits in the kernel until it is known who asks; if that stays unknown, never.

    Args:
        server: has accepted it.
        stranger: None where TLS has said who it is.
        limits: of the library's.
    """

    def __init__(self, server: _Server, stranger: _Stranger | None, **limits: Any) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **limits)
        self.stranger = stranger
        self._unserved = server.unserved
        self._head = bytearray()
        self._rest: bytes | None = None

    def data_received(self, data: bytes) -> None:
        """Take in bytes; those of a stranger once they are a head."""
        if self.stranger is None:
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

    def know(self) -> None:
        """Read on: who asks may."""
        rest, self._rest, self.stranger = self._rest, None, None
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
        """Answer what is no request, or could not be answered; of many there are some lines."""
        what = message or (repr(exc) if exc is not None else "it takes too long")
        what = what.partition("\n")[0][:_MESSAGE_CHARS]
        if not isinstance(exc, ConnectionError):  # the client has gone
            self._unserved(peer=request.remote or "", status=status, error=what)
        if exc is not None:
            exc.__traceback__ = None  # as in _Server._greet
        if request.writer.output_size > 0:
            raise ConnectionError("a part of another answer has been sent")
        response = refuse(Refusal(status, what))
        response.force_close()
        return response

    def _refuse(self) -> None:
        self._head.clear()
        if self.transport is not None:
            self._unserved(peer=_host_of(self.transport), status=431)
            self.transport.write(_TOO_LARGE)
        self.force_close()


class _Greeter(asyncio.Protocol):
    def __init__(self, server: _Server, stranger: _Stranger) -> None:
        self._server = server
        self._stranger = stranger

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._server.greet(self._stranger, transport)


class _Server(web.Server):
    """Takes connections while there are not too many, and not for ever without a request.

    A connection is a stranger's until a request of it has been accepted. Strangers have few places:
    who comes takes one of the address that holds the most, so that nobody keeps others out.

    Args:
        handler: answers requests.
        knows: says of a client's certificate in DER whether its requests are whose they say.
    """

    def __init__(self, handler: Handler, knows: Callable[[bytes], bool]) -> None:
        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            response = await handler(request)
            # What comes behind a refused upgrade is no request, whatever it looks like.
            connection = request.protocol
            is_known = isinstance(connection, _Connection) and connection.stranger is None
            if not is_known or "Upgrade" in request.headers:
                response.force_close()
            return response

        super().__init__(handle, handler_cancellation=True)
        self._knows = knows
        self._silent: dict[_Stranger, None] = {}
        self._speaking: dict[_Stranger, None] = {}
        self._strangers: dict[_Stranger, None] = {}
        self._greeted: set[asyncio.Task[None]] = set()
        self._trimming: asyncio.TimerHandle | None = None
        self.unserved = Seldom(Log(__name__).warning, "unserved")
        self.turned_away = 0

    def take(self, client: socket.socket, host: str, context: ssl.SSLContext | None) -> None:
        """Make a connection of a socket that was accepted from ``host``, once it says something."""
        if len(self._silent) + len(self._speaking) >= MAX_WAITING:
            self._turn_away(self._silent or self._speaking)
        elif len(self.connections) >= MAX_CONNECTIONS:
            self.turned_away += 1
            client.close()
            return
        loop = asyncio.get_running_loop()
        stranger = _Stranger(client, host, context)
        stranger.timer = loop.call_later(HANDSHAKE_S + FIRST_REQUEST_S, self._drop, stranger)
        self._silent[stranger] = None
        if not self._hear(stranger):
            loop.add_reader(client.fileno(), self._hear, stranger)

    def know(self, request: web.BaseRequest) -> None:
        connection = request.protocol
        if isinstance(connection, _Connection) and connection.stranger is not None:
            self._forget(connection.stranger)
            connection.know()

    def greet(self, stranger: _Stranger, transport: asyncio.Transport) -> None:
        is_known = self._knows(certificate_of(transport))
        if stranger not in self._strangers:  # it was turned away meanwhile
            transport.abort()
            return
        if is_known:
            self._forget(stranger)
        else:
            stranger.transport = transport
            if hasattr(transport, "set_read_buffer_limits"):  # of TLS: what waits encrypted
                transport.set_read_buffer_limits(HEAD_BYTES)
        connection = _Connection(
            self,
            None if is_known else stranger,
            keepalive_timeout=KEEP_ALIVE_S,
            max_line_size=MAX_LINE_BYTES,
            max_headers=MAX_HEADERS,
            max_field_size=MAX_HEADER_BYTES,
            lingering_time=0,
            access_log=None,
        )
        transport.set_protocol(connection)
        connection.connection_made(transport)

    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        if handler.stranger is not None:
            self._forget(handler.stranger)
        super().connection_lost(handler, exc)
        self._trim_later()

    async def drop_strangers(self) -> None:
        for stranger in (*self._silent, *self._speaking, *self._strangers):
            self._drop(stranger)
        if self._trimming is not None:
            self._trimming.cancel()
        # A handshake that is cancelled leaves its connection open.
        await asyncio.gather(*self._greeted, return_exceptions=True)

    def _hear(self, stranger: _Stranger) -> bool:
        """Have TLS begun with somebody who has said something; return whether that is known."""
        try:
            is_over = not stranger.client.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            is_over = True
        if is_over:
            self._drop(stranger)
            return True
        loop = asyncio.get_running_loop()
        loop.remove_reader(stranger.client.fileno())
        del self._silent[stranger]
        if not self._speaking:
            loop.call_soon(self._greet_some)
        self._speaking[stranger] = None
        return True

    def _greet_some(self) -> None:
        """Begin TLS with some: those of the addresses that hold least, the latest first."""
        held = Counter(one.host for one in self._strangers)
        for _ in range(min(GREET_AT_ONCE, len(self._speaking))):
            stranger = min(reversed(self._speaking), key=lambda one: held[one.host])
            del self._speaking[stranger]
            if len(self._strangers) >= MAX_STRANGERS:
                self._turn_away(self._strangers)
            self._strangers[stranger] = None
            held[stranger.host] += 1
            task = asyncio.create_task(self._greet(stranger))
            self._greeted.add(task)
            task.add_done_callback(self._greeted.discard)
        if self._speaking:
            asyncio.get_running_loop().call_soon(self._greet_some)

    async def _greet(self, stranger: _Stranger) -> None:
        loop, context = asyncio.get_running_loop(), stranger.context
        try:
            await loop.connect_accepted_socket(
                lambda: _Greeter(self, stranger),
                stranger.client,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_S if context is not None else None,
            )
        except (OSError, ssl.SSLError) as exc:  # no TLS, or no time for it
            exc.__traceback__ = None  # it holds what holds it: all that TLS needed, 100 KiB
            self._forget(stranger)
            stranger.client.close()
            self._trim_later()

    def _trim_later(self) -> None:
        """Give memory back soon, which a flood of connections has left in pieces."""
        if self._trimming is None:
            self._trimming = asyncio.get_running_loop().call_later(TRIM_S, self._trim)

    def _trim(self) -> None:
        self._trimming = None
        trim_memory()

    def _turn_away(self, strangers: dict[_Stranger, None]) -> None:
        self.turned_away += 1
        ((most, _),) = Counter(one.host for one in strangers).most_common(1)
        self._drop(next(one for one in strangers if one.host == most))

    def _drop(self, stranger: _Stranger) -> None:
        transport, has_begun = stranger.transport, stranger in self._strangers
        if stranger in self._silent:
            asyncio.get_running_loop().remove_reader(stranger.client.fileno())
        self._forget(stranger)
        if not has_begun:
            stranger.client.close()
        elif transport is not None and not transport.is_closing():
            transport.abort()
        else:
            with suppress(OSError):  # it has just ended
                stranger.client.shutdown(socket.SHUT_RDWR)

    def _forget(self, stranger: _Stranger) -> None:
        for strangers in (self._silent, self._speaking, self._strangers):
            strangers.pop(stranger, None)
        if stranger.timer is not None:
            stranger.timer.cancel()


class Door:
    """One address to listen on.

    Args:
        handler: answers requests; in no case raises but for lost connections.
        address: host and port; the port 0 is any.
        knows: says of a client's certificate in DER whether its requests are whose they say.
    """

    def __init__(
        self,
        handler: Handler,
        address: tuple[str, int],
        knows: Callable[[bytes], bool] = lambda certificate: False,
    ) -> None:
        self._server = _Server(handler, knows)
        self._socket = _listen(*address)
        self._context: ssl.SSLContext | None = None
        self._is_open = False

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._socket.getsockname()[:2]
        return host, port

    @property
    def connections(self) -> int:
        return len(self._server.connections)

    @property
    def turned_away(self) -> int:
        return self._server.turned_away

    def know(self, request: web.BaseRequest) -> None:
        """Note that who asks may ask for something: their connection is not ended for others."""
        self._server.know(request)

    def open(self, context: ssl.SSLContext | None) -> None:
        """Accept connections, from now on with these TLS settings; those that are open go on."""
        self._context = context
        if not self._is_open:
            self._is_open = True
            self._listen()

    async def close(self) -> None:
        self._is_open = False
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        await self._server.drop_strangers()
        await self._server.shutdown(STOP_S)

    def _listen(self) -> None:
        if self._is_open:
            asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPT_AT_ONCE):
            try:
                client, address = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):  # nobody, or one who has gone again
                return
            except OSError:  # no descriptor is left
                loop.remove_reader(self._socket)
                loop.call_later(ACCEPT_REST_S, self._listen)
                return
            client.setblocking(False)
            self._server.take(client, str(address[0]), self._context)


def certificate_of(transport: asyncio.BaseTransport | None) -> bytes:
    """Return the client's certificate in DER, which TLS has verified; empty without one."""
    found = transport.get_extra_info("ssl_object") if transport is not None else None
    if not isinstance(found, ssl.SSLObject):
        return b""
    return found.getpeercert(binary_form=True) or b""


def trim_memory() -> None:
    """Give free memory back to the system, where the C library can (malloc_trim(3))."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _host_of(transport: asyncio.BaseTransport) -> str:
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if peer else ""


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICHOST
        )[0]
        found = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        raise UsageError(f"{quote(host)} is not an IP address to listen on") from None
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, int(HANDSHAKE_S))
        found.bind(address)
        found.listen(BACKLOG)
        found.setblocking(False)
    except OSError as exc:
        found.close()
        reason = (exc.strerror or str(exc)).lower()
        raise ConfigError(f"cannot listen on {quote(f'{host}:{port}')}: {reason}") from None
    return found
