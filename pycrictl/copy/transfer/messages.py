"""The messages of a copy in two protocols, and sending and receiving an archive with them.

The connection is a WebSocket. Each message is binary, and its first byte is its type, like the
channels of Kubernetes' streams.

``ChannelProtocol`` is for copies that cannot be resumed; the calls of KEP-4582 announce the
archive's size and checksum:

====  =====================================================================================
0     client to server: content of the archive that goes into the container
1     server to client: content of the archive that comes out of it
3     server to client: the outcome, a ``metav1.Status``
255   one byte: the channel that its sender closes
====  =====================================================================================

``ResumableProtocol`` is for the agents' API: a copy resumes over the next connection.

====  =====================================================================================
0     a piece of the archive: its offset (8 bytes, big endian), the CRC-32 of its content (4
      bytes), and the content
1     an acknowledgement: the number of archive bytes that its sender has (8 bytes)
2     the end of an archive out of a container: its size (8 bytes) and its CRC-32 (4 bytes)
3     a refusal: a ``metav1.Status``; the last message
====  =====================================================================================

The server begins with an acknowledgement, and sends more of them while it has nothing else to
send; a client that receives the archive answers each with its own. In a copy to a container, the
client resumes at the offset of the first. Pieces are sent in order, without gaps. After an
invalid one the receiver drops the connection, and the copy resumes at the last acknowledgement.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple, Protocol

from pycrictl.base.errors import CopyError, RemoteProtocolError, StreamError
from pycrictl.base.units import plural
from pycrictl.copy.archive.pack import PIECE_BYTES, crc32, wrong_checksum

STREAM_PROTOCOL: Final = "v5.channel.k8s.io"
TO_CONTAINER: Final = 0
FROM_CONTAINER: Final = 1
CHANNEL_END: Final = 255

PIECES_PROTOCOL: Final = "v1alpha1.containercopy.progress.pycrictl.dev"
PIECE: Final = 0
ACKNOWLEDGEMENT: Final = 1
END: Final = 2

STATUS: Final = 3
"""An outcome in ``ChannelProtocol``, a refusal in ``ResumableProtocol``."""

HEAD: Final = struct.Struct(">QI")
"""The head of a piece: offset and checksum. Also a whole end message: size and checksum."""

MAX_PIECE_MESSAGE_BYTES: Final = 1 + HEAD.size + PIECE_BYTES
TRY_AGAIN: Final = "nothing was changed; try again"

_OFFSET: Final = struct.Struct(">Q")


class ChannelMessage(NamedTuple):
    """A received message, split into its type and its body."""

    channel: int
    data: memoryview


class Content(NamedTuple):
    """A piece of the archive.

    Attributes:
        offset, crc32: its position and checksum, if the protocol has them.
    """

    data: memoryview
    offset: int | None = None
    crc32: int | None = None


class Acknowledgement(NamedTuple):
    """The peer has the archive up to ``offset``."""

    offset: int


class EndOfArchive(NamedTuple):
    """The end of the archive; its size and checksum, if the protocol has them."""

    size_bytes: int | None = None
    crc32: int | None = None


class StatusText(NamedTuple):
    """A ``metav1.Status``."""

    data: memoryview


Event = Content | Acknowledgement | EndOfArchive | StatusText


Message = tuple[int, bytes, memoryview]
"""A message to send: its type, and its body in two parts, so that it is copied only once."""

_NOTHING: Final = memoryview(b"")


@dataclass(frozen=True)
class ChannelProtocol:
    """The protocol of KEP-4582, at one end.

    Attributes:
        channel: the channel of the content.
    """

    channel: int
    is_client: bool = False
    resumes: ClassVar = False

    @property
    def peer(self) -> str:
        return "the server" if self.is_client else "the client"

    def content(self, offset: int, data: memoryview) -> Message:
        return self.channel, b"", data

    def end(self, size_bytes: int, checksum: int) -> Message:
        return CHANNEL_END, bytes((self.channel,)), _NOTHING

    def heartbeat(self, offset: int) -> Message:
        """Return a message that shows the peer that this end is alive."""
        return self.channel, b"", _NOTHING

    def decode(self, message: ChannelMessage) -> Event:
        channel, data = message
        is_sender = self.is_client == (self.channel == TO_CONTAINER)
        if channel == self.channel and not is_sender:
            return Content(data)
        if channel == STATUS and self.is_client:
            return StatusText(data)
        if channel == CHANNEL_END and (self.is_client or bytes(data) == bytes((self.channel,))):
            return EndOfArchive()
        raise RemoteProtocolError(f"{self.peer} sent data on a channel that is not its own")


@dataclass(frozen=True)
class ResumableProtocol:
    """The protocol of the agents' API, at one end.

    Attributes:
        is_sender: whether this end sends the archive.
    """

    is_client: bool
    is_sender: bool
    resumes: ClassVar = True

    @property
    def peer(self) -> str:
        return "the agent" if self.is_client else "the client"

    def content(self, offset: int, data: memoryview) -> Message:
        return PIECE, HEAD.pack(offset, crc32(data)), data

    def end(self, size_bytes: int, checksum: int) -> Message | None:
        """Return the message after all content; None for a client, which announced the size."""
        return None if self.is_client else (END, HEAD.pack(size_bytes, checksum), _NOTHING)

    def heartbeat(self, offset: int) -> Message:
        return ACKNOWLEDGEMENT, _OFFSET.pack(offset), _NOTHING

    def decode(self, message: ChannelMessage) -> Event:
        kind, data = message
        if kind == PIECE and not self.is_sender:
            if not HEAD.size < len(data) <= HEAD.size + PIECE_BYTES:
                raise RemoteProtocolError("a piece of the copy has an impossible length")
            return Content(data[HEAD.size :], *HEAD.unpack(data[: HEAD.size]))
        if kind == ACKNOWLEDGEMENT and (self.is_sender or self.is_client):
            if len(data) != _OFFSET.size:
                raise RemoteProtocolError("an acknowledgement of the copy is malformed")
            return Acknowledgement(*_OFFSET.unpack(data))
        if kind == END and self.is_client and not self.is_sender:
            if len(data) != HEAD.size:
                raise RemoteProtocolError("the end of the copy is malformed")
            return EndOfArchive(*HEAD.unpack(data))
        if kind == STATUS and self.is_client:
            return StatusText(data)
        raise RemoteProtocolError(f"{self.peer} sent a message that does not belong to the copy")


CopyProtocol = ChannelProtocol | ResumableProtocol


class Arriving:
    """Checks an arriving archive, piece by piece and as a whole.

    Args:
        size_bytes: total archive size; None until the end message arrives.
        crc32: its checksum, if known in advance.

    Attributes:
        offset: the number of bytes that have arrived.
    """

    def __init__(self, size_bytes: int | None = None, crc32: int | None = None) -> None:
        self.size_bytes = size_bytes
        self.offset = 0
        self._announced = crc32
        self._crc32 = 0

    @property
    def is_whole(self) -> bool:
        return self.offset == self.size_bytes

    def accept(self, content: Content) -> memoryview:
        """Check a piece, and count it as arrived; return its bytes."""
        data, offset, announced = content
        if offset is not None and offset != self.offset:
            raise RemoteProtocolError(f"a piece is at offset {offset} instead of {self.offset}")
        if self.size_bytes is not None and self.offset + len(data) > self.size_bytes:
            raise RemoteProtocolError(f"more than the {self.size_bytes} announced bytes arrived")
        if announced is not None and crc32(data) != announced:
            raise RemoteProtocolError(f"the piece at {offset} was damaged in transit")
        self._crc32 = crc32(data, self._crc32)
        self.offset += len(data)
        return data

    def end(self, ended: EndOfArchive) -> None:
        """Check the archive against the size and checksum at its end.

        Raises:
            RemoteProtocolError: the size differs.
            CopyError: the checksum differs.
        """
        if ended.size_bytes is not None and ended.size_bytes != self.offset:
            raise RemoteProtocolError(f"the copy ends at {self.offset} of {ended.size_bytes} bytes")
        self.size_bytes, self._announced = ended
        self.check()

    def check(self) -> None:
        if not self.is_whole:
            raise CopyError(
                f"{plural(self.offset, 'byte')} arrived, but {self.size_bytes} were announced",
                hint=TRY_AGAIN,
            )
        if self._crc32 != self._announced:
            raise wrong_checksum()


_PAUSE_S: Final = 0.2
"""The minimum time between two acknowledgements."""


class Link(Protocol):
    """A connection for one thread; every failure is a ``StreamError`` that names the peer.

    Attributes:
        deadline: when the connection ends, on the monotonic clock; None for no deadline.
    """

    deadline: float | None

    def receive(self) -> ChannelMessage | None:
        """Return the next message, valid until the next call; None once the peer has closed."""

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
        raise StreamError(
            f"{protocol.peer} ended the connection before it reported the outcome of the copy"
        )
    return protocol.decode(message)


def send(
    link: Link,
    protocol: CopyProtocol,
    pieces: Iterable[memoryview],
    on_event: Callable[[Event], object],
    *,
    offset: int = 0,
    size_bytes: int | None = None,
    on_sent: Callable[[int], None] = ignore,
) -> None:
    """Send the rest of an archive.

    Args:
        pieces: sent as one message each; an empty piece means that the next is not ready yet.
        on_event: called with each event that arrives meanwhile.
        offset: where the pieces begin.
        size_bytes: total archive size, if that was announced.
        on_sent: called with the size of each piece.

    Raises:
        CopyError: the archive's size has changed.
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
        arriving: checks the pieces, which begin at its offset.
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
                yield arriving.accept(event)
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
