"""The opening handshake of a WebSocket (RFC 6455, 4), of both sides. Pure.

It is our own because the runtimes' server answers with an empty ``Sec-WebSocket-Protocol`` field,
and because a server without WebSocket may go on with a plain response.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Sequence
from typing import Final

from pycrictl.errors import RemoteProtocolError
from pycrictl.wire.http1 import ResponseReceived
from pycrictl.wire.http1_server import Request, serialize_response

_GUID: Final = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3
_KEY_BYTES: Final = 16


class ClientHandshake:
    """A client's side: what to send, and whether the answer fits it.

    Args:
        protocols: the subprotocols to offer, best first.
    """

    def __init__(self, protocols: Sequence[str] = ()) -> None:
        self._protocols = tuple(protocols)
        self._key = base64.b64encode(os.urandom(_KEY_BYTES)).decode()

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The header fields of the request, which is a GET."""
        fields = [
            ("Connection", "Upgrade"),
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", self._key),
        ]
        if self._protocols:
            fields.append(("Sec-WebSocket-Protocol", ", ".join(self._protocols)))
        return fields

    def check(self, response: ResponseReceived) -> str:
        """Check a 101 (RFC 6455, 4.1); return the subprotocol chosen, empty for none.

        Raises:
            RemoteProtocolError: it is not an answer to this request.
        """
        headers = response.headers
        if (
            "websocket" not in headers.tokens("Upgrade")
            or "upgrade" not in headers.tokens("Connection")
            or headers.get("Sec-WebSocket-Accept") != _digest(self._key)
        ):
            raise RemoteProtocolError("the server's WebSocket handshake is wrong")
        if headers.tokens("Sec-WebSocket-Extensions"):
            raise RemoteProtocolError("the server chose a WebSocket extension that was not offered")
        protocol = headers.get("Sec-WebSocket-Protocol") or ""
        if protocol and protocol not in self._protocols:
            raise RemoteProtocolError("the server chose a subprotocol that was not offered")
        return protocol


def accept_key(request: Request) -> str | None:
    """Return ``Sec-WebSocket-Accept`` for a request (RFC 6455, 4.2.2); None for a bad one."""
    key = request.headers.get("Sec-WebSocket-Key") or ""
    try:
        is_valid = len(base64.b64decode(key, validate=True)) == _KEY_BYTES
    except (binascii.Error, ValueError):
        is_valid = False
    is_right_version = request.headers.get("Sec-WebSocket-Version") == "13"
    return _digest(key) if is_valid and is_right_version else None


def serialize_acceptance(accept: str, protocol: str = "") -> bytes:
    """Write the answer that makes a connection a WebSocket.

    Args:
        accept: see ``accept_key``.
        protocol: the subprotocol chosen; empty for none.
    """
    fields = [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Accept", accept),
    ]
    if protocol:
        fields.append(("Sec-WebSocket-Protocol", protocol))
    return serialize_response(101, "Switching Protocols", fields)


def _digest(key: str) -> str:
    # A key is not a secret: SHA-1 only proves that the peer has read the request.
    digest = hashlib.sha1((key + _GUID).encode(), usedforsecurity=False).digest()
    return base64.b64encode(digest).decode()
