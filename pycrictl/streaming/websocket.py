"""A client's end of an open WebSocket: reading its messages."""

from __future__ import annotations

import os

from pycrictl.streaming.connection import Connection
from pycrictl.streaming.upgrade import mask
from pycrictl.wire.websocket import WebSocket


class MessageReader:
    """Reads the messages of an open WebSocket; answers pings and the close.

    Never more than one message and one read are held in memory, whatever sizes the peer announces.

    Args:
        leftover: what was read beyond the handshake.
        max_message_bytes: a longer message ends the connection.

    Attributes:
        core: the WebSocket, for sending. What it has to send is up to the caller.
    """

    def __init__(self, connection: Connection, leftover: bytes, *, max_message_bytes: int) -> None:
        self.core = WebSocket(
            new_key=_new_key,
            mask=mask,
            max_message_bytes=max_message_bytes,
            peer=f'"{connection.label}"',
        )
        self._connection = connection
        self._messages: list[bytes | memoryview] = []
        if leftover:
            self.core.receive_data(leftover)

    async def read(self) -> list[bytes]:
        """Return copies of the next messages; the rest is as for ``read_views``."""
        return list(map(bytes, await self.read_views()))

    async def read_views(self) -> list[bytes | memoryview]:
        """Return the next messages, at least one; none at the normal end.

        May be cancelled and repeated without losing any.

        Raises:
            RemoteProtocolError: the peer broke the protocol or sent too long a message.
            StreamError: the connection broke, or the peer closed it with a status of failure.
        """
        core = self.core
        while True:
            self._messages += core.messages_received()
            self._answer()
            if self._messages or core.is_over:
                break
            data = await self._connection.read()
            if data:
                core.receive_data(data)
            else:
                core.receive_eof()
        messages, self._messages = self._messages, []
        if not messages and core.error is not None:
            raise core.error
        return messages

    def _answer(self) -> None:
        """Send what the protocol wants sent: pongs, and the answer to a close.

        A peer that takes nothing gets none, as it may itself wait until it is read from.
        """
        answers = b"".join(self.core.data_to_send())
        if not self._connection.is_full:
            self._connection.send(answers)


def _new_key() -> bytes:
    return os.urandom(4)
