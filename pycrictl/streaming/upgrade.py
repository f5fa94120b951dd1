"""The opening handshake of a WebSocket (RFC 6455), and the masking of what goes through it.

The handshake is our own, on top of ``wire.http1``, because the runtimes' server answers with an
empty ``Sec-WebSocket-Protocol`` field, and because a server without WebSocket may go on with a
plain response.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from typing import Final

from pycrictl.errors import RemoteProtocolError
from pycrictl.wire.http1 import ResponseReceived
from pycrictl.wire.websocket_frames import xor_mask

_ACCEPT_GUID: Final = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3
_SHORT_BYTES: Final = 1024


class Upgrade:
    """The opening handshake: what to send, and whether the answer fits it.

    Args:
        protocols: the subprotocols to offer, best first.
    """

    def __init__(self, protocols: Sequence[str] = ()) -> None:
        self._protocols = tuple(protocols)
        self._key = base64.b64encode(os.urandom(16)).decode()

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
            RemoteProtocolError: the answer is not one to this request.
        """
        headers = response.headers
        # A key is no secret: SHA-1 only proves that the peer read the request.
        digest = hashlib.sha1((self._key + _ACCEPT_GUID).encode(), usedforsecurity=False).digest()
        if (
            "websocket" not in headers.tokens("Upgrade")
            or "upgrade" not in headers.tokens("Connection")
            or headers.get("Sec-WebSocket-Accept") != base64.b64encode(digest).decode()
        ):
            raise RemoteProtocolError("the server's WebSocket handshake is wrong")
        if headers.tokens("Sec-WebSocket-Extensions"):
            raise RemoteProtocolError("the server chose a WebSocket extension that was not offered")
        protocol = headers.get("Sec-WebSocket-Protocol") or ""
        if protocol and protocol not in self._protocols:
            raise RemoteProtocolError("the server chose a subprotocol that was not offered")
        return protocol


def mask(payload: bytes | memoryview, key: bytes) -> bytes:
    """Mask a payload (RFC 6455, 5.3), by the library's C function if that pays."""
    if len(payload) <= _SHORT_BYTES:
        return xor_mask(payload, key)
    try:
        # Not for less: to import it takes longer than to mask any short message.
        from websockets.speedups import apply_mask
    except ImportError:  # where the library was not compiled
        return xor_mask(payload, key)
    return apply_mask(payload, key)
