"""Sending and receiving an archive over one connection, for both ends and both protocols."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Final, Protocol

from pycrictl.base.errors import CopyError, StreamError
from pycrictl.copy.transfer.messages import (
    TRY_AGAIN,
    Acknowledgement,
    Arriving,
    Content,
    CopyProtocol,
    EndOfArchive,
    Event,
    StatusText,
)

if TYPE_CHECKING:
    from pycrictl.streams.wire.websocket import ChannelMessage

_PAUSE_S: Final = 0.2
"""The minimum time between two acknowledgements."""


class Link(Protocol):
    """A connection for one thread; every failure is a ``StreamError`` that names the peer.

    Attributes:
        deadline: of the whole connection, on the monotonic clock; None for no deadline.
    """

    deadline: float | None

    def receive(self) -> ChannelMessage | None:
        """Return the next message, valid until the one after; None once the peer has closed."""

    def can_receive(self) -> bool:
        """Return whether ``receive`` would return or raise without blocking."""

    def send(self, kind: int, head: bytes | memoryview, data: bytes | memoryview = b"") -> None:
        """Send a message, made of its type and the two parts of its body."""

    def close(self) -> None:
        """Close in good order; never raises."""

    def interrupt(self) -> None:
        """Interrupt another thread's read or write; the connection is unusable afterwards."""


def ignore(_: object) -> None:
    """Do nothing."""


def next_event(link: Link, protocol: CopyProtocol) -> Event:
    message = link.receive()
    if message is None:
        raise StreamError(f"{protocol.peer} ended the connection before the outcome of the copy")
    return protocol.decode(message)


def send(
    link: Link,
    protocol: CopyProtocol,
    pieces: Iterable[memoryview],
    on_event: Callable[[Event], None],
    *,
    offset: int = 0,
    size_bytes: int | None = None,
    on_sent: Callable[[int], None] = ignore,
) -> None:
    """Send the rest of an archive.

    Args:
        pieces: of it, one message each; an empty one means that the next is not ready yet.
        on_event: called with each event that arrives meanwhile.
        offset: where the pieces begin.
        size_bytes: of the whole, if that was announced.
        on_sent: called with the size of each piece.

    Raises:
        CopyError: its size has changed.
        StreamError: the connection broke.
    """
    for piece in pieces:
        # Not after the last piece: a peer that has everything may close the connection.
        while link.can_receive():
            on_event(next_event(link, protocol))
        if not piece:
            link.send(*protocol.heartbeat(offset))
        else:
            if size_bytes is not None and offset + len(piece) > size_bytes:
                raise _changed()
            link.send(*protocol.content(offset, piece))
            offset += len(piece)
        on_sent(len(piece))
    if size_bytes is not None and offset != size_bytes:
        raise _changed()


def receive(
    link: Link,
    protocol: CopyProtocol,
    arriving: Arriving,
    *,
    on_status: Callable[[StatusText], object] = ignore,
    admit: Callable[[int], None] = ignore,
    on_taken: Callable[[int], None] = ignore,
) -> Generator[memoryview, None, None]:
    """Yield the rest of an archive, each piece valid until the next is requested.

    Args:
        arriving: checks it; the pieces begin at its offset.
        on_status: called with the status from a server, which ends the transfer.
        admit: called with the new size before the archive grows; may raise an error.
        on_taken: called with the number of archive bytes consumed so far.
    """
    said_s = time.monotonic()
    while not (protocol.resumes and arriving.is_whole):
        event = next_event(link, protocol)
        match event:
            case Content():
                admit(arriving.offset + len(event.data))
                yield arriving.take(event)
                on_taken(arriving.offset)
            case EndOfArchive() if protocol.resumes:
                arriving.end(event)
            case EndOfArchive() if not protocol.is_client:
                return
            case StatusText():
                on_status(event)
                return
        if not protocol.resumes:
            continue
        is_due = arriving.is_whole or time.monotonic() - said_s >= _PAUSE_S
        if is_due or isinstance(event, Acknowledgement):
            said_s = time.monotonic()
            link.send(*protocol.heartbeat(arriving.offset))


def _changed() -> CopyError:
    return CopyError("the source changed while it was copied", hint=TRY_AGAIN)
