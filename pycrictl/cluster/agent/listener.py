"""The listener: serves aiohttp's requests, and limits the cost of unauthenticated connections.

Anyone who reaches the port could fill the agent's memory with connections that wait for TLS, and
with heads of requests. So connections are accepted here, not by the library: each has little time
and few bytes until it is authenticated, and beyond a limit, each new one closes an older one.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from pycrictl.base.errors import ConfigError, reason_of
from pycrictl.base.memory import trim_memory
from pycrictl.base.servicelog import Log, RateLimitedLog
from pycrictl.base.tls import client_context, load_pair
from pycrictl.base.units import escape, quote, quote_path
from pycrictl.cluster.agent.access import ServerContext, Trust, checked
from pycrictl.cluster.agent.api.answers import refuse
from pycrictl.cluster.agent.api.names import SERVICE, Refusal
from pycrictl.streams.loop import end_tasks

UNAUTHENTICATED_BYTES: Final = 96 * 1024
"""How much is read before authentication: a request's head, and the body of another agent's."""

BACKLOG: Final = 2048
"""Connections that the kernel holds until they have sent data and are accepted."""

ACCEPTED_AT_ONCE: Final = 32
"""How many connections are accepted for each handshake that begins, so that strangers replace each
other before they cost a handshake."""

ACCEPT_REST_S: Final = 0.1
KEEP_ALIVE_S: Final = 90.0
"""Longer than the API server's own limit, so the API server is the one to close connections."""

TLS_BUFFER_BYTES: Final = 32 * 1024
"""The read buffer of a TLS connection. With asyncio's 256 KiB, 2,000 idle ones hold 500 MiB."""

TRIM_S: Final = 5.0
STOP_S: Final = 5.0

MAX_FILE_BYTES: Final = 1024 * 1024

_MESSAGE_CHARS: Final = 200
_LIMITS: Final[dict[str, Any]] = {
    "keepalive_timeout": KEEP_ALIVE_S,
    "max_line_size": 20 * 1024,
    "max_headers": 1200,  # each group of a user has its own header
    "max_field_size": 16 * 1024,
    "lingering_time": 2.0,  # a refused client may still be sending
    "access_log": None,
}

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
IsTrusted = Callable[[asyncio.BaseTransport], bool]


class _Connection(web.RequestHandler):
    """The library's connection, with limits until it is authenticated.

    ``transport`` is None until the TLS handshake is over.
    """

    def __init__(self, listener: Listener, client: socket.socket, host: str) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(listener.server, loop=loop, **_LIMITS)
        self.host = host
        self._listener = listener
        self._client = client
        self._received_bytes = 0
        self._timer = loop.call_later(listener.handshake_s + listener.first_request_s, self.drop)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._listener.is_trusted(transport):
            self.authenticated()
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._received_bytes += len(data)
        if self._received_bytes > UNAUTHENTICATED_BYTES and self in self._listener.unauthenticated:
            self._listener.unserved(peer=self.host, error="it sent too much unauthenticated data")
            self.drop()
        else:
            super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self.authenticated()
        self._listener.trim_later()

    def authenticated(self) -> None:
        """End the limits."""
        self._timer.cancel()
        self._listener.unauthenticated.pop(self, None)

    def drop(self) -> None:
        self.authenticated()
        if self.transport is not None:
            self.transport.abort()
        else:
            with suppress(OSError):  # it has just ended
                self._client.shutdown(socket.SHUT_RDWR)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer an invalid request, or one that failed; the log of them is rate-limited."""
        problem = message or (repr(exc) if exc is not None else "the request took too long")
        problem = problem.partition("\n")[0][:_MESSAGE_CHARS]
        if not isinstance(exc, ConnectionError):  # else the client has left
            self._listener.unserved(peer=request.remote or "", status=status, error=problem)
        if exc is not None:
            exc.__traceback__ = None  # as in Listener._serve
        if request.writer.output_size > 0:
            raise ConnectionError("a part of another answer has been sent")
        response = refuse(Refusal(status, problem))
        response.force_close()
        return response


class Listener:
    """Listens on one address, with a limit on unauthenticated connections.

    Beyond that limit, a new one replaces the oldest from the client address that has the most. A
    connection is authenticated by its certificate, or by a request that ``Access`` accepts.

    Args:
        handler: raises only for lost connections.
        is_trusted: whether a connection's client certificate authenticates all requests.
        handshake_s, first_request_s: time limits of a connection for TLS, and then for its
            authentication.
        max_connections, max_unauthenticated: how many may be open. Each that is not authenticated
            takes up to 100 KiB for TLS.
    """

    def __init__(
        self,
        handler: Handler,
        address: tuple[str, int],
        is_trusted: IsTrusted,
        *,
        handshake_s: float = 10.0,
        first_request_s: float = 15.0,
        max_connections: int = 1500,
        max_unauthenticated: int = 128,
    ) -> None:
        self.handshake_s, self.first_request_s = handshake_s, first_request_s
        self.max_connections, self.max_unauthenticated = max_connections, max_unauthenticated
        self.server = web.Server(self._answer, handler_cancellation=True)
        self.is_trusted = is_trusted
        self.unserved = RateLimitedLog(Log(__name__).warning, "unserved")
        self.unauthenticated: dict[_Connection, None] = {}
        self.turned_away = 0
        self._handler = handler
        self._socket = _listen(*address, int(handshake_s))
        self._context: ssl.SSLContext | None = None
        self._accepting: list[asyncio.Task[None]] = []
        self._accepted: asyncio.Queue[tuple[_Connection, socket.socket]] = asyncio.Queue()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._trimming: asyncio.TimerHandle | None = None

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._socket.getsockname()[:2]
        return host, port

    def open(self, context: ssl.SSLContext) -> None:
        """Accept connections, new ones with these TLS settings; open ones keep theirs."""
        self._context = context
        if not self._accepting:
            tasks = self._accept(), self._begin_handshakes()
            self._accepting = [asyncio.create_task(task) for task in tasks]

    async def close(self) -> None:
        await end_tasks(self._accepting)
        self._socket.close()
        for connection in [*self.unauthenticated]:
            connection.drop()
        while not self._accepted.empty():
            self._accepted.get_nowait()[1].close()
        if self._trimming is not None:
            self._trimming.cancel()
        # A cancelled handshake leaves its connection open.
        await asyncio.gather(*self._handshakes, return_exceptions=True)
        await self.server.shutdown(STOP_S)

    def authenticated(self, request: web.BaseRequest) -> None:
        if isinstance(request.protocol, _Connection):
            request.protocol.authenticated()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        response = await self._handler(request)
        # The data after a refused upgrade is no request, whatever it looks like.
        if request.protocol in self.unauthenticated or "Upgrade" in request.headers:
            response.force_close()
        return response

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        for count in itertools.count(1):
            try:
                client, address = await loop.sock_accept(self._socket)
            except OSError:  # out of descriptors, or the client has gone
                await asyncio.sleep(ACCEPT_REST_S)
                continue
            self._take(client, str(address[0]))
            if not count % ACCEPTED_AT_ONCE:
                await asyncio.sleep(0)  # accepting a waiting connection does not suspend this task

    async def _begin_handshakes(self) -> None:
        """Begin the handshakes in turn, except of connections that were replaced meanwhile."""
        while True:
            connection, client = await self._accepted.get()
            if connection in self.unauthenticated:
                task = asyncio.create_task(self._serve(connection, client))
                self._handshakes.add(task)
                task.add_done_callback(self._handshakes.discard)
                await asyncio.sleep(0)  # TLS takes a millisecond: others have their turn
            else:
                client.close()

    def _take(self, client: socket.socket, host: str) -> None:
        if len(self.server.connections) >= self.max_connections:
            self.turned_away += 1
            client.close()
            return
        if len(self.unauthenticated) >= self.max_unauthenticated:
            self.turned_away += 1
            held = Counter(connection.host for connection in self.unauthenticated)
            ((most, _),) = held.most_common(1)
            next(oldest for oldest in self.unauthenticated if oldest.host == most).drop()
        connection = _Connection(self, client, host)
        self.unauthenticated[connection] = None
        self._accepted.put_nowait((connection, client))

    async def _serve(self, connection: _Connection, client: socket.socket) -> None:
        loop, context = asyncio.get_running_loop(), self._context
        try:
            await loop.connect_accepted_socket(
                lambda: connection,
                client,
                ssl=context,
                ssl_handshake_timeout=self.handshake_s,
            )
        except (OSError, ssl.SSLError) as exc:  # not TLS, or too slow
            exc.__traceback__ = None  # a reference cycle: it would keep the 100 KiB of TLS
            connection.authenticated()
            client.close()
            self.trim_later()

    def trim_later(self) -> None:
        """Release memory soon that a flood of connections has fragmented."""
        if self._trimming is None:
            self._trimming = asyncio.get_running_loop().call_later(TRIM_S, self._trim)

    def _trim(self) -> None:
        self._trimming = None
        trim_memory()


def limit_tls_buffers() -> None:
    """Make the TLS connections of this process take less memory; asyncio has no option for it."""
    SSLProtocol.max_size = TLS_BUFFER_BYTES


def _listen(host: str, port: int, silent_s: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server(
            (host, port), family=family, backlog=BACKLOG, dualstack_ipv6=host == "::"
        )
    except OSError as exc:
        reason = os.strerror(exc.errno or 0).lower()
        raise ConfigError(f"cannot listen on {quote(f'{host}:{port}')}: {reason}") from None
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, silent_s)
    listener.setblocking(False)
    return listener


class Certificates:
    """The certificate with which the agent serves, its key, and the CA of all agents, from files.

    They are usually those of a Secret, which the kubelet replaces when they are renewed; new ones
    are used only if all of them are valid.

    Attributes:
        ca: PEM of the authorities by which agents verify each other.
        expiry_s: when the certificate expires, as wall time.

    Raises:
        ConfigError: the files cannot be used; ``renew`` raises it, too.
    """

    ca = ""
    expiry_s = 0.0

    def __init__(self, certificate_file: str, key_file: str, ca_file: str) -> None:
        self._files = {"tls-cert": certificate_file, "tls-key": key_file, "peer-ca": ca_file}
        self._contents: list[bytes] = []
        self.renew()

    def renew(self) -> bool:
        """Read the files; return whether they have changed since the last time."""
        contents = [_content(path, option) for option, path in self._files.items()]
        if contents == self._contents:
            return False
        self._contents = contents
        certificate, key, ca = contents
        certificate_file, key_file, ca_file = (quote_path(path) for path in self._files.values())
        if not (authorities := checked(ca.decode("utf-8", "replace"))):
            raise ConfigError(f"--peer-ca {ca_file} is not a file of PEM certificates")
        try:
            expiry_s = _expiry_s(certificate, key)
        except ssl.SSLCertVerificationError as exc:
            reason = escape(exc.verify_message)
            raise ConfigError(f"--tls-cert {certificate_file} cannot be used: {reason}") from None
        except (OSError, ValueError):  # ssl.SSLError is an OSError
            names = f"--tls-cert {certificate_file} and --tls-key {key_file}"
            problem = "are not a PEM certificate and its unencrypted key"
            raise ConfigError(f"{names} {problem}") from None
        self._pair, self.ca, self.expiry_s = (certificate, key), authorities, expiry_s
        return True

    def context(self, trust: Trust | None) -> ServerContext:
        context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        # A resumed session would bring back a certificate that was verified earlier.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        load_pair(context, *self._pair)
        if trust is not None and trust.proxy_ca:
            context.proxy_ca = trust.proxy_ca
            context.load_verify_locations(cadata=trust.proxy_ca)
            context.verify_mode = ssl.CERT_OPTIONAL
        return context


def _content(path: str, option: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(MAX_FILE_BYTES)
    except OSError as exc:
        reason = reason_of(exc)
        raise ConfigError(f"cannot read --{option} {quote_path(path)}: {reason}") from None


def _expiry_s(certificate: bytes, key: bytes) -> float:
    """Return when a certificate expires; raise OSError or ValueError if peers would refuse it.

    The library describes a certificate only to a client that has verified it, so there is a client
    here, which trusts this certificate alone.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_pair(server, certificate, key)
    client = client_context(ca_data=certificate.decode("ascii", "ignore"))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_end = client.wrap_bio(to_client, to_server, server_hostname=SERVICE)
    server_end = server.wrap_bio(to_server, to_client, server_side=True)
    for end in (client_end, server_end, client_end):
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    described = client_end.getpeercert()
    assert described is not None
    return ssl.cert_time_to_seconds(str(described["notAfter"]))
