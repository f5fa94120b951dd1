"""Heads of HTTP/1.1 requests and responses, as ``h11`` reads them (RFC 9110 and 9112). Pure.

A stream's connection carries one request without a body and one response: no reuse, no
pipelining, no content coding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, NamedTuple

import h11
from websockets.datastructures import Headers

from pycrictl.base.errors import RemoteProtocolError

MAX_HEAD_BYTES: Final = 16384
"""The longest request head accepted."""

SWITCHING_PROTOCOLS: Final = 101


def headers_of(event: h11.Request | h11.Response | h11.InformationalResponse) -> Headers:
    """Return the fields of a head, decoded as ISO 8859-1."""
    return Headers(
        [(name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers]
    )


def tokens(headers: Headers, name: str) -> list[str]:
    """Return the elements of a comma-separated list, in lower case, without empty ones."""
    elements = ",".join(headers.get_all(name)).lower().split(",")
    return [element.strip(" \t") for element in elements if element.strip(" \t")]


class ResponseHead(NamedTuple):
    """The head of a final response, or of a 101. Texts are decoded as ISO 8859-1."""

    status: int
    reason: str
    headers: Headers


@dataclass(frozen=True, slots=True)
class Request:
    """The head of a request; ``target`` may hold a secret."""

    method: str
    target: str = field(repr=False)
    headers: Headers = field(repr=False)

    @property
    def wants_websocket(self) -> bool:
        """Return whether the request asks for an upgrade to WebSocket."""
        upgrade, connection = (tokens(self.headers, name) for name in ("Upgrade", "Connection"))
        return "websocket" in upgrade and "upgrade" in connection


class Exchange:
    """A server's side: one request, and its response."""

    def __init__(self) -> None:
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)

    @property
    def early(self) -> bytes:
        """The bytes that have arrived after the head of the request."""
        return bytes(self._http.trailing_data[0])

    def receive(self, data: bytes) -> Request | None:
        """Read bytes; return the request once its head is complete.

        A malformed head, or one that announces a body, raises RemoteProtocolError.
        """
        try:
            self._http.receive_data(data)
            event = self._http.next_event()
        except h11.RemoteProtocolError:
            raise RemoteProtocolError("not an HTTP/1.1 request") from None
        if event is h11.NEED_DATA:
            return None
        if not isinstance(event, h11.Request) or not event.http_version.startswith(b"1."):
            raise RemoteProtocolError("not an HTTP/1.1 request")
        headers = headers_of(event)
        if len(headers.get_all("Host")) != 1:
            raise RemoteProtocolError("an HTTP request needs one Host")
        if tokens(headers, "Transfer-Encoding") or set(tokens(headers, "Content-Length")) - {"0"}:
            raise RemoteProtocolError("an HTTP request with a body")
        return Request(event.method.decode("ascii"), event.target.decode("ascii"), headers)

    def head(self, status: HTTPStatus, headers: Iterable[tuple[str, str]]) -> bytes:
        """Return the head of the response, after which the connection is closed."""
        fields = [*headers, ("Cache-Control", "no-store"), ("Connection", "close")]
        response = h11.Response(status_code=status, reason=status.phrase.encode(), headers=fields)
        return self._http.send(response) or b""

    def body(self, data: bytes) -> bytes:
        """Return the bytes for a part of the body: a chunk, unless its length was given."""
        return self._http.send(h11.Data(data)) or b""

    def end(self) -> bytes:
        """Return the bytes for the end of the body."""
        return self._http.send(h11.EndOfMessage()) or b""
