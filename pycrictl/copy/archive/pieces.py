"""What goes over the connection of a copy that can be taken up again. Pure.

It is a WebSocket. Each message is binary, and its first byte says what it is, as the channels of
Kubernetes' streams do:

====  =====================================================================================
0     a piece of the archive: its offset (8 bytes, big endian), the CRC-32 of its content (4
      bytes), and the content
1     an acknowledgement: how much of the archive its sender has on its disk (8 bytes)
2     the end of an archive out of a container: its size (8 bytes) and its CRC-32 (4 bytes)
3     a refusal: a ``metav1.Status``; the last message
====  =====================================================================================

The server begins with an acknowledgement, and sends more of them while it has nothing else to
send; the client answers them. For a copy to a container the first is where the client goes on.
Pieces come in order, without gaps. Whoever gets a piece that is not what it should be drops the
connection: nothing of it counts, and the copy goes on at the last acknowledgement.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Final

from pycrictl.copy.archive.checksum import Checksum, crc32, joined, wrong_checksum
from pycrictl.copy.archive.pack import PIECE_BYTES
from pycrictl.errors import RemoteProtocolError

PROTOCOL: Final = "v1alpha1.containercopy.progress.pycrictl.dev"

PIECE: Final = 0
ACKNOWLEDGEMENT: Final = 1
END: Final = 2
REFUSAL: Final = 3

HEAD: Final = struct.Struct(">QI")
"""What stands before the content of a piece: offset and checksum. Also all that an end has."""

MAX_MESSAGE_BYTES: Final = 1 + HEAD.size + PIECE_BYTES

_OFFSET: Final = struct.Struct(">Q")


def head_of(offset: int, content: bytes | memoryview) -> bytes:
    """Return what stands before a piece's content."""
    return HEAD.pack(offset, crc32(content))


def encode_acknowledgement(offset: int) -> bytes:
    """Return the content of an acknowledgement."""
    return _OFFSET.pack(offset)


def decode_acknowledgement(data: bytes | memoryview) -> int:
    """Return the offset that is acknowledged.

    Raises:
        RemoteProtocolError: it is not an acknowledgement.
    """
    if len(data) != _OFFSET.size:
        raise RemoteProtocolError("an acknowledgement of the copy is malformed")
    return int(_OFFSET.unpack(data)[0])


def decode_refusal(data: bytes | memoryview) -> dict[str, Any]:
    """Return a ``Status``.

    Raises:
        RemoteProtocolError: it is not one.
    """
    try:
        status = json.loads(bytes(data))
    except (ValueError, RecursionError):
        status = None
    if not isinstance(status, dict):
        raise RemoteProtocolError("a refusal of the copy is not a Status object")
    return status


class Arriving:
    """Checks the pieces that arrive, and what they are together.

    Args:
        size_bytes: of the whole archive; None: its end says so.
        offset: how much of it there is already.
        value: the checksum of that.

    Attributes:
        size_bytes: of the whole archive; None until that is known.
        offset: where the next piece must begin.
    """

    def __init__(self, size_bytes: int | None = None, offset: int = 0, value: int = 0) -> None:
        self.size_bytes = size_bytes
        self.offset = offset
        self._checksum = Checksum()
        self._checksum.value = value

    @property
    def crc32(self) -> int:
        """The checksum of all that has arrived."""
        return self._checksum.value

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing."""
        return self.offset == self.size_bytes

    def take(self, message: memoryview) -> memoryview:
        """Return the content of a piece, which counts from now on.

        Args:
            message: without its first byte.

        Raises:
            RemoteProtocolError: it is damaged, or does not belong here.
        """
        if len(message) <= HEAD.size or len(message) > HEAD.size + PIECE_BYTES:
            raise RemoteProtocolError("a piece of the copy has an impossible length")
        offset, announced = HEAD.unpack(message[: HEAD.size])
        content = message[HEAD.size :]
        if offset != self.offset:
            raise RemoteProtocolError(f"a piece at {offset} where one at {self.offset} belongs")
        if self.size_bytes is not None and offset + len(content) > self.size_bytes:
            raise RemoteProtocolError(f"more than the {self.size_bytes} announced bytes arrived")
        found = crc32(content)
        if found != announced:
            raise RemoteProtocolError(f"the piece at {offset} was damaged on its way")
        self._checksum.value = joined(self._checksum.value, found, content)
        self.offset += len(content)
        return content

    def end(self, message: memoryview) -> None:
        """Take in the end of the archive, of which nothing may be missing.

        Raises:
            RemoteProtocolError: it is malformed, or something is.
            CopyError: what has arrived is not what was made.
        """
        if len(message) != HEAD.size:
            raise RemoteProtocolError("the end of the copy is malformed")
        size_bytes, announced = HEAD.unpack(message)
        if size_bytes != self.offset:
            raise RemoteProtocolError(f"the copy ends at {self.offset} of {size_bytes} bytes")
        if announced != self.crc32:
            raise wrong_checksum()
        self.size_bytes = size_bytes

    def add(self, content: memoryview) -> None:
        """Take in what had arrived before."""
        self._checksum.add(content)
        self.offset += len(content)
