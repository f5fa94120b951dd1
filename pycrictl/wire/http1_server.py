"""As much of HTTP/1.1 as a server of streams needs: one request without a body, one answer. Pure.

The counterpart of ``http1``, with the same strictness: what two readers could understand
differently is refused (RFC 9110, RFC 9112).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from pycrictl.errors import RemoteProtocolError
from pycrictl.wire.http1 import Headers

__all__ = [
    "MAX_HEAD_BYTES",
    "Request",
    "chunk",
    "parse_request",
    "serialize_response",
]

MAX_HEAD_BYTES: Final = 16384
LAST_CHUNK: Final = b"0\r\n\r\n"

_REQUEST_LINE: Final = re.compile(rb"([-!#$%&'*+.^_`|~0-9A-Za-z]+) ([\x21-\x7e]+) HTTP/1\.([01])")
_FIELD: Final = re.compile(rb"([-!#$%&'*+.^_`|~0-9A-Za-z]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_MAX_FIELDS: Final = 64


@dataclass(frozen=True, slots=True)
class Request:
    """The head of a request; ``target`` may hold a secret."""

    method: str
    target: str = field(repr=False)
    minor_version: int
    headers: Headers = field(repr=False)

    @property
    def wants_websocket(self) -> bool:
        """Return whether it asks to go on with the WebSocket protocol."""
        upgrade, connection = self.headers.tokens("Upgrade"), self.headers.tokens("Connection")
        return "websocket" in upgrade and "upgrade" in connection


def parse_request(head: bytes) -> Request:
    """Read a request's head, up to and including its empty line.

    Raises:
        RemoteProtocolError: it is malformed, or announces a body.
    """
    line, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(line)
    if match is None or len(lines) > _MAX_FIELDS:
        raise RemoteProtocolError("not an HTTP/1.1 request")
    fields = []
    for text in lines:
        # A folded line begins with a space and so has no valid name (RFC 9112, 5.2).
        found = _FIELD.fullmatch(text)
        if found is None:
            raise RemoteProtocolError("invalid header field in an HTTP request")
        name, value = (part.decode("iso-8859-1") for part in found.groups())
        fields.append((name, value.rstrip(" \t")))
    headers = Headers(fields)
    if len(headers.get_all("Host")) != 1:
        raise RemoteProtocolError("an HTTP request needs one Host")
    if headers.tokens("Transfer-Encoding") or set(headers.tokens("Content-Length")) - {"0"}:
        raise RemoteProtocolError("an HTTP request with a body")
    method, target, minor = (part.decode("ascii") for part in match.groups())
    return Request(method, target, int(minor), headers)


def serialize_response(
    status: int, reason: str, headers: Iterable[tuple[str, str]], body: bytes = b""
) -> bytes:
    """Write an answer's head, and a body if there is one."""
    lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


def chunk(data: bytes) -> bytes:
    """Return one chunk of a body (RFC 9112, 7.1); ``data`` is not empty."""
    return b"%x\r\n%b\r\n" % (len(data), data)
