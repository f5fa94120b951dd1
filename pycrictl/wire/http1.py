"""Heads of HTTP/1.1 requests and responses, as ``h11`` reads them (RFC 9110 and 9112). Pure.

A stream's connection carries one request without a body and one response: no reuse, no
pipelining, no content coding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import h11
from websockets.datastructures import Headers

from pycrictl.errors import RemoteProtocolError

MAX_HEAD_BYTES: Final = 16384
"""The longest request head accepted."""

SWITCHING_PROTOCOLS: Final = 101
LAST_CHUNK: Final = b"0\r\n\r\n"


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
    minor_version: int
    headers: Headers = field(repr=False)

    @property
    def wants_websocket(self) -> bool:
        """Return whether the request asks for an upgrade to WebSocket."""
        upgrade, connection = (tokens(self.headers, name) for name in ("Upgrade", "Connection"))
        return "websocket" in upgrade and "upgrade" in connection


def parse_request(head: bytes) -> Request:
    """Parse a request's head; RemoteProtocolError if it is malformed or announces a body."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
    try:
        connection.receive_data(head)
        event = connection.next_event()
    except h11.RemoteProtocolError:
        event = None
    if not isinstance(event, h11.Request) or not event.http_version.startswith(b"1."):
        raise RemoteProtocolError("not an HTTP/1.1 request")
    headers = headers_of(event)
    if len(headers.get_all("Host")) != 1:
        raise RemoteProtocolError("an HTTP request needs one Host")
    if tokens(headers, "Transfer-Encoding") or set(tokens(headers, "Content-Length")) - {"0"}:
        raise RemoteProtocolError("an HTTP request with a body")
    method, target = event.method.decode("ascii"), event.target.decode("ascii")
    return Request(method, target, int(event.http_version[2:]), headers)


def serialize_response(
    status: int, reason: str, headers: Iterable[tuple[str, str]], body: bytes = b""
) -> bytes:
    """Return the bytes of a response: its head, and its body if there is one."""
    lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


def chunk(data: bytes) -> bytes:
    """Return one chunk of a body (RFC 9112, 7.1); ``data`` must not be empty."""
    return b"%x\r\n%b\r\n" % (len(data), data)
