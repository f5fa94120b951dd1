"""Listening: connections and their limits, TLS, and certificates that change meanwhile."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from pycrictl.agent import certificate
from pycrictl.agent.frontproxy import Trust, certificates
from pycrictl.errors import ConfigError, UsageError
from pycrictl.streaming.loop import end_tasks
from pycrictl.units import quote

MAX_CONNECTIONS: Final = 1500
MAX_STRANGERS: Final = 256
"""How many connections may be open of which nobody knows yet that they may ask for something."""

ACCEPT_REST_S: Final = 0.1
HANDSHAKE_S: Final = 10.0
FIRST_REQUEST_S: Final = 15.0
"""How long a new connection may take to send the head of its first request."""

KEEP_ALIVE_S: Final = 90.0
"""Longer than the API server's own limit, so that it is the API server that ends connections."""

MAX_LINE_BYTES: Final = 20 * 1024
MAX_HEADERS: Final = 600
"""A user's groups have a header each."""

MAX_HEADER_BYTES: Final = 16 * 1024
STOP_S: Final = 5.0

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class _Server(web.Server):
    """Takes connections while there are not too many, and not for ever without a request.

    A connection is a stranger's until a request of it has been accepted. Strangers have few places:
    who comes takes one of the address that holds the most, so that nobody keeps others out.
    """

    def __init__(self, handler: Handler) -> None:
        self._asked: set[Any] = set()
        self._strangers: dict[Any, tuple[socket.socket, str]] = {}

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            self._asked.add(request.protocol)
            return await handler(request)

        super().__init__(
            handle,
            handler_cancellation=True,
            keepalive_timeout=KEEP_ALIVE_S,
            max_line_size=MAX_LINE_BYTES,
            max_headers=MAX_HEADERS,
            max_field_size=MAX_HEADER_BYTES,
            lingering_time=0,
            access_log=None,
        )
        self.turned_away = 0

    async def take(self, client: socket.socket, host: str, context: ssl.SSLContext | None) -> None:
        """Make a connection of a socket that was accepted from ``host``."""
        if len(self._strangers) >= MAX_STRANGERS:
            self.turned_away += 1
            ((most, _),) = Counter(at for _, at in self._strangers.values()).most_common(1)
            self._drop(next(one for one, (_, at) in self._strangers.items() if at == most))
        elif len(self.connections) >= MAX_CONNECTIONS:
            self.turned_away += 1
            client.close()
            return
        protocol, loop = self(), asyncio.get_running_loop()
        self._strangers[protocol] = client, host
        loop.call_later(HANDSHAKE_S + FIRST_REQUEST_S, self._check, protocol)
        try:
            await loop.connect_accepted_socket(
                lambda: protocol,
                client,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_S if context is not None else None,
            )
        except (OSError, ssl.SSLError):  # no TLS, or no time for it
            self._strangers.pop(protocol, None)
            client.close()

    def know(self, request: web.BaseRequest) -> None:
        """Note that who asks may ask for something."""
        self._strangers.pop(request.protocol, None)

    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        self._asked.discard(handler)
        self._strangers.pop(handler, None)
        super().connection_lost(handler, exc)

    def drop_strangers(self) -> None:
        """End the connections of those who may not ask for anything as far as is known."""
        for protocol in list(self._strangers):
            self._drop(protocol)

    def _drop(self, protocol: Any) -> None:
        client, _ = self._strangers.pop(protocol)
        with suppress(OSError):  # it has just ended
            client.shutdown(socket.SHUT_RDWR)

    def _check(self, protocol: Any) -> None:
        if protocol not in self._asked and protocol.transport is not None:
            protocol.transport.abort()


class Door:
    """One address to listen on.

    Args:
        handler: answers requests; in no case raises but for lost connections.
        address: host and port; the port 0 is any.
    """

    def __init__(self, handler: Handler, address: tuple[str, int]) -> None:
        self._server = _Server(handler)
        self._socket = _listen(*address)
        self._context: ssl.SSLContext | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._greeted: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self._socket.getsockname()[:2]
        return host, port

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._server.connections)

    @property
    def turned_away(self) -> int:
        """How many connections were too many."""
        return self._server.turned_away

    def know(self, request: web.BaseRequest) -> None:
        """Note that who asks may ask for something: their connection is not ended for others."""
        self._server.know(request)

    async def open(self, context: ssl.SSLContext | None) -> None:
        """Accept connections, from now on with these TLS settings; those that are open go on."""
        self._context = context
        if self._accepting is None:
            self._accepting = asyncio.create_task(self._accept())

    async def close(self) -> None:
        """Accept no more, and end what is open."""
        if self._accepting is not None:
            await end_tasks([self._accepting])
        self._socket.close()
        self._server.drop_strangers()  # a handshake that is cancelled leaves its connection open
        await asyncio.gather(*self._greeted, return_exceptions=True)
        await self._server.shutdown(STOP_S)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, address = await loop.sock_accept(self._socket)
            except OSError:  # no descriptor is left, or the client has gone again
                await asyncio.sleep(ACCEPT_REST_S)
                continue
            task = asyncio.create_task(self._server.take(client, str(address[0]), self._context))
            self._greeted.add(task)
            task.add_done_callback(self._greeted.discard)


class Certificates:
    """The serving certificate: of files that may be renewed, else self-signed.

    Args:
        certificate_file, key_file: PEM; both empty for a self-signed one.
        names: what a self-signed one is for.

    Raises:
        UsageError: only one of the files is named.
        ConfigError: they cannot be used.
    """

    def __init__(self, certificate_file: str, key_file: str, names: list[str]) -> None:
        if bool(certificate_file) != bool(key_file):
            raise UsageError("--tls-cert and --tls-key go together")
        self._files = certificate_file, key_file
        self._names = names
        self._stamp = self._stamped()
        self._pair = (
            certificate.read(*self._files) if certificate_file else certificate.serving(names)
        )

    def sign(self, authority: certificate.Pair) -> None:
        """Serve with a certificate of this authority in place of a self-signed one."""
        self._pair = certificate.serving(self._names, authority)

    def renew(self) -> bool:
        """Read the files again if they have changed; return whether they have.

        Raises:
            ConfigError: they cannot be used; what was read before stays in use.
        """
        before, self._stamp = self._stamp, self._stamped()
        if self._stamp == before:
            return False
        self._pair = certificate.read(*self._files)
        return True

    def _stamped(self) -> tuple[int, ...]:
        """Return what changes when the files do."""
        try:
            found = [Path(one).stat() for one in self._files if one]
        except OSError:
            return ()
        # The clock of a file system has steps of milliseconds, in which a file may still grow.
        return tuple(n for one in found for n in (one.st_ino, one.st_size, one.st_mtime_ns))

    def context(self, trust: Trust | None) -> ssl.SSLContext:
        """Return TLS settings that ask for a client's certificate of one of the CAs."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        # A session that is resumed would bring back a certificate that was verified earlier.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        certificate.load(context, self._pair)
        if trust is not None and trust.authorities:
            context.load_verify_locations(cadata=trust.authorities)
            context.verify_mode = ssl.CERT_OPTIONAL
        return context


def authorities(path: str, option: str) -> str:
    """Return the certificates of a file that an option names, in PEM.

    Raises:
        ConfigError: it cannot be read, or has none.
    """
    found = certificates(certificate.content(path, option).decode("utf-8", "replace"))
    if not found:
        raise ConfigError(f"--{option} {quote(path, 4096)} is not a file of PEM certificates")
    return found


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
        found.bind(address)
        found.listen(256)
        found.setblocking(False)
    except OSError as exc:
        found.close()
        reason = (exc.strerror or str(exc)).lower()
        raise ConfigError(f"cannot listen on {quote(f'{host}:{port}')}: {reason}") from None
    return found
