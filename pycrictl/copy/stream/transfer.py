"""A client's side of a copy stream, once it is open: an archive there or back, and the outcome."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final

from pycrictl.copy.archive.checksum import Checksum, wrong_checksum
from pycrictl.copy.rules import outcome
from pycrictl.copy.rules.outcome import Outcome
from pycrictl.copy.stream.connection import (
    CHANNEL_END,
    FROM_CONTAINER,
    OUTCOME,
    PIECE_BYTES,
    TO_CONTAINER,
    CopyConnection,
)
from pycrictl.errors import CopyError, RemoteProtocolError, StreamError
from pycrictl.units import plural
from pycrictl.wire.messages import ChannelMessage

log = logging.getLogger("pycrictl.copy")

TRY_AGAIN: Final = "nothing was changed; try again"

_MAX_TRIES: Final = 64
_LAST_WORD_S: Final = 2.0
_HASTE_S: Final = 3.0


class Verdict:
    """Gathers the outcome, which may come in pieces.

    Attributes:
        outcome: once it is complete.
    """

    def __init__(self) -> None:
        self.outcome: Outcome | None = None
        self._text = bytearray()
        self._tries_left = _MAX_TRIES

    def receive(self, piece: ChannelMessage | None) -> None:
        """Take in what came on any channel but that of content; None is the end of the stream.

        Raises:
            RemoteProtocolError: it is not an outcome, or comes on a channel that does not exist.
            StreamError: the stream ended without one.
        """
        if piece is None:
            if not self._text:
                raise StreamError("the stream ended before the outcome of the copy was known")
            self.outcome = outcome.decode(bytes(self._text))
        elif piece.channel == OUTCOME:
            self._text += piece.data
            if len(self._text) > outcome.MAX_BYTES:
                raise RemoteProtocolError("the outcome of the copy is too long")
            self._tries_left -= 1
            if self._tries_left >= 0:
                # Its own syntax shows where it ends.
                with suppress(RemoteProtocolError):
                    self.outcome = outcome.decode(bytes(self._text))
        elif piece.channel != CHANNEL_END:
            raise RemoteProtocolError("the server sent data on a channel that is not its own")


def receive(
    connection: CopyConnection, verdict: Verdict, *, size_bytes: int, crc32: int
) -> Iterator[memoryview]:
    """Yield the pieces of an archive, exactly what was announced, until its success.

    A piece is valid until the next is asked for.

    Args:
        verdict: gets the outcome.
        size_bytes: the announced size.
        crc32: the announced checksum.

    Raises:
        CopyError: the server reports a failure, or less arrived, or something else.
        StreamError: the connection broke, or more arrived, or no outcome.
    """
    left = size_bytes
    checksum = Checksum()
    while verdict.outcome is None:
        piece = connection.receive()
        if piece is None or piece.channel != FROM_CONTAINER:
            verdict.receive(piece)
            continue
        left -= len(piece.data)
        if left < 0:
            raise RemoteProtocolError(f"the server sent more than the {size_bytes} announced bytes")
        checksum.add(piece.data)
        yield piece.data
    check(verdict.outcome)
    if left:
        raise CopyError(
            f"{plural(size_bytes - left, 'byte')} arrived, and {size_bytes} were announced",
            hint=TRY_AGAIN,
        )
    if checksum.value != crc32:
        raise wrong_checksum()


def send(
    connection: CopyConnection,
    pieces: Iterable[memoryview],
    size_bytes: int,
    *,
    outcome_s: float,
    on_bytes: Callable[[int], None],
) -> Outcome:
    """Send an archive, and wait until the server has put it into its place.

    Args:
        pieces: of the archive.
        size_bytes: its size, as announced.
        outcome_s: how long the server may be silent at the end.
        on_bytes: called with the size of each piece.

    Raises:
        CopyError: the server reports a failure, or the archive has another size by now.
        StreamError: the connection broke, or there is no outcome.
        KeyboardInterrupt: nothing was changed, or a warning says that this is not known. It is
            dropped if the server has been as quick.
    """
    verdict = Verdict()

    def after(count: int) -> None:
        on_bytes(count)
        if connection.can_receive():
            verdict.receive(connection.receive())
        if verdict.outcome is not None:
            check(verdict.outcome)
            raise RemoteProtocolError("the server reports success before it has everything")

    try:
        send_content(connection, TO_CONTAINER, pieces, size_bytes, after=after)
    except StreamError as exc:
        _last_word(connection, verdict, exc)
    connection.set_idle(outcome_s)
    try:
        found = _await(connection, verdict)
    except Exception:
        raise
    except BaseException:
        # Interrupted, but the server has everything, and may be putting it into its place.
        found = _await_in_haste(connection, verdict)
        if found.failure:
            raise
    check(found)
    return found


def send_content(
    connection: CopyConnection,
    channel: int,
    pieces: Iterable[memoryview],
    size_bytes: int,
    *,
    after: Callable[[int], None],
) -> None:
    """Send an archive and close its channel, at either end of a copy stream.

    Args:
        channel: where it belongs.
        pieces: of the archive.
        size_bytes: its size, as announced.
        after: called with the size of each piece that was sent.

    Raises:
        CopyError: the archive has another size by now; its channel is still open.
        StreamError: the connection broke.
    """
    left = size_bytes
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            break
        for start in range(0, len(piece), PIECE_BYTES):
            connection.send(channel, piece[start : start + PIECE_BYTES])
        after(len(piece))
    if left:
        raise CopyError("the source changed while it was copied", hint=TRY_AGAIN)
    connection.end_channel(channel)


def check(found: Outcome) -> None:
    """Raise a CopyError if the outcome is a failure."""
    if found.failure:
        raise CopyError(found.failure)


def _await(connection: CopyConnection, verdict: Verdict) -> Outcome:
    while verdict.outcome is None:
        verdict.receive(connection.receive())
    return verdict.outcome


def _await_in_haste(connection: CopyConnection, verdict: Verdict) -> Outcome:
    """Wait a moment longer; if that is not enough, warn that nobody knows."""
    try:
        connection.set_idle(_HASTE_S)
        return _await(connection, verdict)
    except BaseException as exc:
        log.warning("the server did not report whether the copy was made; it may still be")
        if not isinstance(exc, Exception):
            raise
        return Outcome(failure="unknown")


def _last_word(connection: CopyConnection, verdict: Verdict, broken: StreamError) -> None:
    """Raise what a server that hung up gave as the reason, or else what happened."""
    with suppress(StreamError):
        connection.set_idle(_LAST_WORD_S)
        while verdict.outcome is None and not isinstance(broken, RemoteProtocolError):
            verdict.receive(connection.receive())
    if verdict.outcome is not None:
        check(verdict.outcome)
    raise broken
