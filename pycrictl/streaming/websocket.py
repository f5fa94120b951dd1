"""A client's end of a WebSocket (RFC 6455): the opening handshake, and reading messages.

The handshake is our own, on top of ``wire.http1``, because the runtimes' server answers with an
empty ``Sec-WebSocket-Protocol`` field, and because a server without WebSocket may go on with a
plain response. Frames are left to the sans-IO core of the ``websockets`` library.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Sequence
from typing import Final

from websockets.exceptions import PayloadTooBig
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import Protocol, Side, State

from pycrictl.errors import RemoteProtocolError, StreamError
from pycrictl.streaming.dial import Connection
from pycrictl.wire.http1 import ResponseReceived

__all__ = ["MessageReader", "Upgrade"]

_ACCEPT_GUID: Final = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3
_DATA_OPCODES: Final = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)
_NORMAL_CODES: Final = (CloseCode.NORMAL_CLOSURE, CloseCode.NO_STATUS_RCVD)


class Upgrade:
    """The opening handshake: what to send, and whether the answer fits it.

    Args:
        protocols: the subprotocols to offer, best first.
    """

    def __init__(self, protocols: Sequence[str] = ()) -> None:
        self._protocols = tuple(protocols)
        self._key = base64.b64encode(secrets.token_bytes(16)).decode()

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


class MessageReader:
    """Reads the messages of an open WebSocket; answers pings and the close.

    Text and binary messages are both returned as bytes; text is not checked to be UTF-8. Never more
    than one message and one read are held in memory, whatever sizes the peer announces.

    Args:
        leftover: what was read beyond the handshake.
        max_message_bytes: a longer message ends the connection.
    """

    def __init__(self, connection: Connection, leftover: bytes, *, max_message_bytes: int) -> None:
        self._connection = connection
        self._max_message_bytes = max_message_bytes
        self._protocol = Protocol(Side.CLIENT, state=State.OPEN, max_size=max_message_bytes)
        self._fragments = bytearray()
        self._messages: list[bytes] = []
        if leftover:
            self._receive(leftover)

    async def read(self) -> list[bytes]:
        """Return the next messages, at least one; none at the normal end.

        May be cancelled and repeated without losing any.

        Raises:
            RemoteProtocolError: the peer broke the protocol or sent too long a message.
            StreamError: the connection broke, or the peer closed it with a status of failure.
        """
        while not self._messages:
            await self._answer()
            if self._is_over:
                self._judge_end()
                break
            self._receive(await self._connection.read())
        messages, self._messages = self._messages, []
        return messages

    @property
    def _is_over(self) -> bool:
        return self._protocol.close_rcvd is not None or self._protocol.parser_exc is not None

    def _receive(self, data: bytes) -> None:
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        for frame in self._protocol.events_received():
            # Without a handshake of its own, the library has no other events.
            if isinstance(frame, Frame) and frame.opcode in _DATA_OPCODES:
                self._fragments += frame.data
                if frame.fin:
                    self._messages.append(bytes(self._fragments))
                    self._fragments.clear()

    async def _answer(self) -> None:
        """Send what the library wants sent: pongs, and the answer to a close."""
        data = b"".join(self._protocol.data_to_send())
        if data:
            try:
                await self._connection.write(data)
            except StreamError:
                if not self._is_over:  # else the outcome is known, and nobody needs the answer
                    raise

    def _judge_end(self) -> None:
        label = self._connection.label
        exc = self._protocol.parser_exc
        if isinstance(exc, PayloadTooBig):
            raise RemoteProtocolError(
                f'"{label}" sent a message of more than {self._max_message_bytes} bytes'
            )
        if isinstance(exc, EOFError):
            raise StreamError(f'"{label}" dropped the connection without closing the stream')
        if exc is not None:
            raise RemoteProtocolError(f'"{label}" broke the WebSocket protocol: {exc}')
        close = self._protocol.close_rcvd
        if close is not None and close.code not in _NORMAL_CODES:
            reason = f": {close.reason!r}" if close.reason else ""
            raise StreamError(f'"{label}" closed the stream with status {close.code:d}{reason}')
