"""Frames of SPDY/3.1, as bytes and as data. Pure.

Every number is big-endian. A control frame begins with the bit 1, the version (15 bits) and the
type (16), a data frame with the bit 0 and the stream's number (31); flags (8) and the length of
what follows (24) come next in both. SYN_STREAM, SYN_REPLY and HEADERS end with a header block.

What a frame means for its stream is not known here; see ``pycrictl.wire.spdy.streams``. A client
does not need all of this: a server, as tests and benchmarks have one, is made of it as well.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from pycrictl.errors import RemoteProtocolError
from pycrictl.wire.spdy.headers import HeaderCompressor, HeaderDecompressor, HeaderFields

VERSION: Final = 3
HEAD_BYTES: Final = 8
MAX_STREAM_ID: Final = 2**31 - 1
MAX_CONTROL_BYTES: Final = 65536
"""Longest payload of a control frame that is accepted. Data is passed on as it comes."""

_FIN: Final = 0x01

_HEAD: Final = struct.Struct(">II")
_LONG: Final = struct.Struct(">I")
_TWO_LONGS: Final = struct.Struct(">II")
_SYN_STREAM_HEAD: Final = struct.Struct(">IIBB")


class _Kind(IntEnum):
    SYN_STREAM = 1
    SYN_REPLY = 2
    RST_STREAM = 3
    PING = 6
    GOAWAY = 7
    HEADERS = 8


@dataclass(frozen=True, slots=True)
class SynStream:
    """Opens a stream, in both directions and with the highest priority."""

    stream_id: int
    headers: HeaderFields = ()
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class SynReply:
    """Accepts a stream."""

    stream_id: int
    headers: HeaderFields = ()
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class RstStream:
    """Ends a stream in both directions; ``status`` says why (draft 3, 2.6.3)."""

    stream_id: int
    status: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks for, or is, the same frame in the other direction."""

    ping_id: int


@dataclass(frozen=True, slots=True)
class GoAway:
    """No stream after ``last_stream_id`` was or will be looked at (draft 3, 2.6.6)."""

    last_stream_id: int
    status: int = 0


@dataclass(slots=True)
class Data:
    """Bytes of a stream: a whole frame when encoded, a part of one when decoded."""

    stream_id: int
    data: bytes | memoryview
    is_last: bool = False


Frame = SynStream | SynReply | RstStream | Ping | GoAway | Data


class FrameEncoder:
    """Writes the frames of one direction of a connection, in the order in which they are sent."""

    def __init__(self) -> None:
        self._compressor = HeaderCompressor()

    def encode(self, frame: Frame) -> bytes:
        """Write one frame."""
        match frame:
            case Data():
                head = data_head(frame.stream_id, len(frame.data), is_last=frame.is_last)
                return head + frame.data
            case SynStream():
                head = _SYN_STREAM_HEAD.pack(frame.stream_id, 0, 0, 0)
                block = self._compressor.compress(frame.headers)
                return _control(_Kind.SYN_STREAM, head + block, frame.is_last)
            case SynReply():
                block = self._compressor.compress(frame.headers)
                return _control(_Kind.SYN_REPLY, _LONG.pack(frame.stream_id) + block, frame.is_last)
            case RstStream():
                return _control(_Kind.RST_STREAM, _TWO_LONGS.pack(frame.stream_id, frame.status))
            case Ping():
                return _control(_Kind.PING, _LONG.pack(frame.ping_id))
            case GoAway():
                return _control(_Kind.GOAWAY, _TWO_LONGS.pack(frame.last_stream_id, frame.status))


def data_head(stream_id: int, size_bytes: int, *, is_last: bool = False) -> bytes:
    """Write what stands before the data of a frame, for those who send it without a copy."""
    return _HEAD.pack(stream_id, is_last << 24 | size_bytes)


def _control(kind: int, payload: bytes, flags: int = 0) -> bytes:
    return _HEAD.pack(0x80000000 | VERSION << 16 | kind, flags << 24 | len(payload)) + payload


class FrameDecoder:
    """Reads the frames of one direction of a connection from pieces of any size.

    No input makes it raise, and it never holds more than one control frame. Control frames of
    unknown types are left out (draft 3, 2.2.1), and with them SETTINGS and WINDOW_UPDATE, which say
    nothing where there is no flow control. HEADERS become data without bytes: nothing needs more
    headers of a stream, but they may end it.

    Attributes:
        error: what the peer did wrong, or None. Nothing is read after it.
    """

    def __init__(self) -> None:
        self.error: RemoteProtocolError | None = None
        self._decompressor = HeaderDecompressor()
        self._buffer = b""
        self._data_stream_id = 0
        self._data_bytes_left = 0
        self._is_data_last = False

    def receive_data(self, data: bytes) -> list[Frame]:
        """Take in bytes; return the frames that are complete, and what there is of a data frame."""
        frames: list[Frame] = []
        if self.error is None:
            try:
                self._read(self._buffer + data if self._buffer else data, frames)
            except RemoteProtocolError as exc:
                self.error = exc
                self._buffer = b""
        return frames

    def _read(self, data: bytes, frames: list[Frame]) -> None:
        view, pos, end = memoryview(data), 0, len(data)
        while True:
            if self._data_bytes_left:
                piece = view[pos : pos + self._data_bytes_left]
                if not piece:
                    break
                pos += len(piece)
                self._data_bytes_left -= len(piece)
                is_last = self._is_data_last and not self._data_bytes_left
                frames.append(Data(self._data_stream_id, piece, is_last))
            if end - pos < HEAD_BYTES:
                break
            first, second = _HEAD.unpack_from(data, pos)
            flags, size = second >> 24, second & 0xFFFFFF
            if not first >> 31:
                pos += HEAD_BYTES
                self._begin_data(first, flags, size, frames)
                continue
            if first >> 16 & 0x7FFF != VERSION:
                raise RemoteProtocolError("the peer does not speak SPDY/3")
            if size > MAX_CONTROL_BYTES:
                raise RemoteProtocolError("too long a SPDY control frame")
            if end - pos < HEAD_BYTES + size:
                break
            pos += HEAD_BYTES
            frame = self._decode_control(first & 0xFFFF, flags, data[pos : pos + size])
            if frame is not None:
                frames.append(frame)
            pos += size
        self._buffer = data[pos:]

    def _begin_data(self, stream_id: int, flags: int, size: int, frames: list[Frame]) -> None:
        if size == 0:
            frames.append(Data(stream_id, b"", bool(flags & _FIN)))
        self._data_stream_id = stream_id
        self._data_bytes_left = size
        self._is_data_last = bool(flags & _FIN)

    def _decode_control(self, kind: int, flags: int, payload: bytes) -> Frame | None:
        is_last = bool(flags & _FIN)
        match kind:
            case _Kind.SYN_STREAM:
                stream_id = _unpack(_SYN_STREAM_HEAD, payload)[0]
                headers = self._decompressor.decompress(payload[_SYN_STREAM_HEAD.size :])
                return SynStream(stream_id & MAX_STREAM_ID, headers, is_last)
            case _Kind.SYN_REPLY | _Kind.HEADERS:
                stream_id = _unpack(_LONG, payload)[0] & MAX_STREAM_ID
                headers = self._decompressor.decompress(payload[_LONG.size :])
                if kind == _Kind.HEADERS:
                    return Data(stream_id, b"", is_last)
                return SynReply(stream_id, headers, is_last)
            case _Kind.RST_STREAM:
                stream_id, status = _unpack(_TWO_LONGS, payload)
                return RstStream(stream_id & MAX_STREAM_ID, status)
            case _Kind.PING:
                return Ping(*_unpack(_LONG, payload))
            case _Kind.GOAWAY:
                stream_id, status = _unpack(_TWO_LONGS, payload)
                return GoAway(stream_id & MAX_STREAM_ID, status)
        return None


def _unpack(form: struct.Struct, payload: bytes) -> tuple[int, ...]:
    if len(payload) < form.size:
        raise RemoteProtocolError("a SPDY frame is cut off")
    return form.unpack_from(payload)
