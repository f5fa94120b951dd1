"""The bytes of a session, there or back, over as many connections as it takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Final

from pycrictl.copy.archive.pack import PIECE_BYTES
from pycrictl.copy.archive.pieces import (
    ACKNOWLEDGEMENT,
    END,
    HEAD,
    PIECE,
    REFUSAL,
    Arriving,
    decode_acknowledgement,
    decode_refusal,
    encode_acknowledgement,
    head_of,
)
from pycrictl.copy.stream.connection import CopyConnection
from pycrictl.copy.stream.transfer import TRY_AGAIN
from pycrictl.errors import CopyError, PycrictlError, RemoteProtocolError, StreamError
from pycrictl.kubectl.copies.api import CopyApi, error_of
from pycrictl.kubectl.copies.patience import Patience
from pycrictl.wire.messages import ChannelMessage

OnBytes = Callable[[int], None]

_ACKNOWLEDGE_BYTES: Final = 8 * PIECE_BYTES
_ACKNOWLEDGE_S: Final = 5.0


class Transfer:
    """Moves the archive of a session.

    Args:
        api: of the pod.
        session: its name; may change.
        patience: says whether a connection is worth opening again.
        on_bytes: called with how much more is where it shall be.
        idle_s: how long the agent may be silent.
    """

    def __init__(
        self,
        api: CopyApi,
        session: str,
        patience: Patience,
        on_bytes: OnBytes,
        *,
        idle_s: float,
    ) -> None:
        self._api = api
        self.session = session
        self._patience = patience
        self._on_bytes = on_bytes
        self._idle_s = idle_s
        self._shown = 0

    def send(
        self, pieces: Callable[[int], Generator[memoryview, None, None]], size_bytes: int
    ) -> None:
        """Send an archive until the agent has all of it on its disk.

        Args:
            pieces: gives the archive from an offset on.
            size_bytes: of the archive.

        Raises:
            CopyError: it cannot go on.
            PycrictlError: the patience is over.
        """

        def attempt() -> None:
            connection = self._api.open(self.session, 0)
            try:
                _Sending(connection, size_bytes, self._acknowledged, self._idle_s).run(pieces)
            except BaseException:
                connection.abort()
                raise
            connection.close()

        self._patience.insist(attempt)

    def receive(self, arriving: Arriving) -> Iterator[memoryview]:
        """Yield the rest of an archive, each piece valid until the next; raises as ``send``.

        Args:
            arriving: where it goes on.
        """
        self._acknowledged(arriving.offset)
        while not arriving.is_whole:
            try:
                yield from self._received(arriving)
            except PycrictlError as exc:
                self._patience.bear(exc)

    def _received(self, arriving: Arriving) -> Iterator[memoryview]:
        connection = self._api.open(self.session, arriving.offset)
        said_bytes, said_s = arriving.offset, time.monotonic()
        try:
            while not arriving.is_whole:
                kind, message = _next(connection)
                if kind == PIECE:
                    yield arriving.take(message)
                    self._acknowledged(arriving.offset)
                elif kind == END:
                    arriving.end(message)
                elif kind != ACKNOWLEDGEMENT:
                    raise RemoteProtocolError("the agent sent what is not a piece")
                is_due = arriving.offset - said_bytes >= _ACKNOWLEDGE_BYTES
                if is_due or arriving.is_whole or time.monotonic() - said_s >= _ACKNOWLEDGE_S:
                    said_bytes, said_s = arriving.offset, time.monotonic()
                    connection.send(ACKNOWLEDGEMENT, encode_acknowledgement(said_bytes))
        except BaseException:
            connection.abort()
            raise
        connection.close()

    def _acknowledged(self, offset: int) -> None:
        if offset > self._shown:
            self._on_bytes(offset - self._shown)
            self._shown = offset
            self._patience.renew()


class _Sending:
    """One connection to send on."""

    def __init__(
        self,
        connection: CopyConnection,
        size_bytes: int,
        on_offset: Callable[[int], None],
        idle_s: float,
    ) -> None:
        self._connection = connection
        self._size_bytes = size_bytes
        self._on_offset = on_offset
        self._idle_s = idle_s
        self._has_bytes = 0
        self._heard_s = time.monotonic()

    def run(self, pieces: Callable[[int], Generator[memoryview, None, None]]) -> None:
        """Send what is missing, and wait until it is acknowledged."""
        self._hear()
        offset = self._has_bytes
        if offset > self._size_bytes:
            raise RemoteProtocolError("the agent has more than there is")
        message = bytearray(HEAD.size + PIECE_BYTES)
        view = memoryview(message)
        with closing(pieces(offset)) as found:
            for piece in found:
                if offset + len(piece) > self._size_bytes:
                    raise _changed()
                end = HEAD.size + len(piece)
                view[HEAD.size : end] = piece
                view[: HEAD.size] = head_of(offset, piece)
                self._connection.send(PIECE, view[:end])
                offset += len(piece)
                while self._connection.can_receive():
                    self._hear()
                if time.monotonic() - self._heard_s > self._idle_s:
                    raise StreamError(f"the agent was silent for {self._idle_s:g} s")
        if offset != self._size_bytes:
            raise _changed()
        while self._has_bytes < self._size_bytes:
            self._hear()

    def _hear(self) -> None:
        kind, message = _next(self._connection)
        if kind != ACKNOWLEDGEMENT:
            raise RemoteProtocolError("the agent sent what is not an acknowledgement")
        self._has_bytes = decode_acknowledgement(message)
        self._heard_s = time.monotonic()
        self._on_offset(self._has_bytes)


def _next(connection: CopyConnection) -> ChannelMessage:
    """Return the next message, whose channel is its kind.

    Raises:
        StreamError: there is none.
        PycrictlError: the agent refuses to go on; see ``error_of``.
    """
    message = connection.receive()
    if message is None:
        raise StreamError("the agent ended the connection")
    if message.channel == REFUSAL:
        status = decode_refusal(message.data)
        code = status.get("code")
        raise error_of(code if isinstance(code, int) else 500, bytes(message.data))
    return message


def _changed() -> CopyError:
    return CopyError("the source changed while it was copied", hint=TRY_AGAIN)
