"""One HTTP request and its response, by ``h11``: the opening of every stream."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from http import HTTPStatus
from typing import Final

import h11
from websockets.datastructures import Headers
from websockets.http11 import Response

from pycrictl.base.errors import (
    ConnectError,
    LocalProtocolError,
    RemoteProtocolError,
    StreamError,
    UpgradeRefused,
)
from pycrictl.base.units import quote
from pycrictl.streams.bytestream import ByteStream
from pycrictl.streams.target import Target, TlsFiles, cannot_connect, connection_broke, tls_of
from pycrictl.streams.wire.websocket import ClientHandshake

REFUSAL_S: Final = 1.0
"""How long to wait for the reason of a refusal."""

MAX_REFUSAL_BYTES: Final = 4096
MAX_HEAD_BYTES: Final = 65536
_MAX_REFUSAL_CHARACTERS: Final = 200
_READ_BYTES: Final = 16384


class Opening:
    """A request, with the usual headers added, and its response so far; does no IO.

    The caller takes the bytes of the response's body out of ``body``. No error quotes the request:
    it may hold a secret.
    """

    def __init__(
        self, target: Target, method: str, headers: Iterable[tuple[str, str]], body: bytes = b""
    ) -> None:
        self._label = target.label
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        fields = [("Host", target.authority), ("User-Agent", "pycrictl"), *headers]
        if body:
            fields.append(("Content-Length", str(len(body))))
        try:
            request = h11.Request(method=method, target=target.path, headers=fields)
            self.head = (self._http.send(request) or b"") + body
            self._http.send(h11.Data(data=body))
            self._http.send(h11.EndOfMessage())
        except (h11.LocalProtocolError, UnicodeError):
            raise LocalProtocolError("the HTTP request would contain invalid characters") from None
        self.response: Response | None = None
        self.body = b""
        self.is_complete = False

    @property
    def leftover(self) -> bytes:
        """The bytes after a 101 response, to be read before any others from the connection."""
        return bytes(self._http.trailing_data[0]) if self.is_complete else b""

    def receive(self, data: bytes) -> None:
        """Read bytes from the peer, or empty ``data`` once it has closed the connection.

        Not for a complete response. Raise a StreamError if it ends early or is malformed.
        """
        try:
            self._http.receive_data(data)
            event: object = None
            while event is not h11.NEED_DATA and not self.is_complete:
                begin = self._http.trailing_data[0][:5]
                if self.response is None and not b"HTTP/".startswith(begin):
                    raise h11.RemoteProtocolError("another protocol")  # its head may never end
                event = self._http.next_event()
                self._take(event)
        except h11.RemoteProtocolError:
            peer = f'(from "{self._label}")'
            if not data:
                why = "the connection ended before the HTTP response did"
                raise StreamError(f"{why} {peer}") from None
            is_http = self.response is not None
            why = (
                "the HTTP response is malformed" if is_http else "the peer does not speak HTTP/1.1"
            )
            raise RemoteProtocolError(f"{why} {peer}") from None

    def _take(self, event: object) -> None:
        match event:
            case h11.Response() | h11.InformationalResponse(status_code=101):
                reason = event.reason.decode("latin-1")
                fields = [(n.decode("latin-1"), v.decode("latin-1")) for n, v in event.headers]
                self.response = Response(event.status_code, reason, Headers(fields))
                self.is_complete = event.status_code == HTTPStatus.SWITCHING_PROTOCOLS
            case h11.Data():
                self.body += event.data
            case h11.EndOfMessage():
                self.is_complete = True

    def silence(self, timeout_s: float) -> ConnectError:
        return ConnectError(
            f'"{self._label}" accepts connections but does not answer within {timeout_s:g} s'
        )

    def refusal(self) -> UpgradeRefused:
        assert self.response is not None
        body = self.body[:MAX_REFUSAL_BYTES]
        text = body.decode(errors="replace").strip()
        text = text[:_MAX_REFUSAL_CHARACTERS] or self.response.reason_phrase
        status = self.response.status_code
        said = f"{status}: {quote(text, _MAX_REFUSAL_CHARACTERS)}" if text else f"{status}"
        message = f'"{self._label}" answered with status {said}'
        return UpgradeRefused(message, status=status, body=body)


class Exchange(Opening):
    """An opening over a connection."""

    def __init__(
        self,
        connection: ByteStream,
        target: Target,
        method: str,
        headers: Iterable[tuple[str, str]],
        body: bytes = b"",
    ) -> None:
        super().__init__(target, method, headers, body)
        self._connection = connection

    async def request(self, *, timeout_s: float) -> Response:
        """Send the request; return the response's head. Push back the bytes after a 101."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._connection.write(self.head)
                while self.response is None:
                    await self._advance()
        except TimeoutError as exc:
            raise self.silence(timeout_s) from exc
        self._connection.unread(self.leftover)
        return self.response

    async def read(self) -> bytes:
        """Return the next bytes of the body, empty at its end. May be cancelled and repeated."""
        while not self.body and await self._advance():
            pass
        data, self.body = self.body, b""
        return data

    async def refused(self) -> UpgradeRefused:
        """Return an error for a response that refuses the request, with the start of its body."""
        with suppress(TimeoutError, StreamError):  # what has arrived is enough
            async with asyncio.timeout(REFUSAL_S):
                while len(self.body) < MAX_REFUSAL_BYTES and await self._advance():
                    pass
        return self.refusal()

    async def _advance(self) -> bool:
        """Read once and process the bytes. Return False if the response was already complete."""
        if self.is_complete:
            return False
        self.receive(await self._connection.read())
        return True


# Without asyncio


def open_websocket(
    target: Target, protocol: str, *, timeout_s: float, tls: TlsFiles | None = None
) -> tuple[socket.socket, bytes]:
    """Connect and upgrade with blocking calls; the rules are those of ``open_transport``.

    Returns:
        The socket, and the bytes read beyond the handshake.
    """
    with ExitStack() as stack:
        sock = stack.enter_context(connect(target, timeout_s, tls))
        handshake = ClientHandshake(protocol)
        opening = Opening(target, "GET", handshake.headers)
        _exchange(sock, target, opening, timeout_s)
        if opening.response is None or opening.response.status_code != 101:
            raise opening.refusal()
        handshake.check(opening.response)
        stack.pop_all()
        return sock, opening.leftover


def connect(target: Target, timeout_s: float, tls: TlsFiles | None = None) -> socket.socket:
    secure = tls_of(target, tls)
    try:
        with ExitStack() as stack:
            if target.socket:
                sock = stack.enter_context(socket.socket(socket.AF_UNIX))
                sock.settimeout(timeout_s)
                sock.connect(target.socket)
            else:
                address = (target.host, target.port)
                sock = stack.enter_context(socket.create_connection(address, timeout_s))
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if secure is not None:
                sock = secure[0].wrap_socket(sock, server_hostname=secure[1])
            stack.pop_all()
            return sock
    except (OSError, UnicodeError) as exc:
        raise cannot_connect(target, exc, timeout_s) from exc


def _exchange(sock: socket.socket, target: Target, opening: Opening, timeout_s: float) -> None:
    give_up_at = time.monotonic() + timeout_s
    try:
        sock.sendall(opening.head)
        while len(opening.body) < MAX_REFUSAL_BYTES and not opening.is_complete:
            sock.settimeout(max(give_up_at - time.monotonic(), 0.001))
            opening.receive(sock.recv(_READ_BYTES))
            if opening.response is not None:
                give_up_at = min(give_up_at, time.monotonic() + REFUSAL_S)
    except (OSError, StreamError) as exc:
        if opening.response is not None:
            return  # what has arrived is enough
        if isinstance(exc, StreamError):
            raise
        if isinstance(exc, TimeoutError):
            raise opening.silence(timeout_s) from exc
        raise connection_broke(target.label, exc) from exc
