"""Frames of SPDY/3.1, as bytes and as data. Pure.

Every number is big-endian. A control frame begins with the bit 1, the version (15 bits) and the
type (16), a data frame with the bit 0 and the stream's number (31); flags (8) and the length of
what follows (24) come next in both. SYN_STREAM, SYN_REPLY and HEADERS end with a header block.

What a frame means for its stream is not known here; see ``pycrictl.wire.spdy.streams``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from pycrictl.errors import LocalProtocolError, RemoteProtocolError
from pycrictl.wire.spdy.headers import HeaderCompressor, HeaderDecompressor, HeaderFields

VERSION: Final = 3
HEAD_BYTES: Final = 8
MAX_STREAM_ID: Final = 2**31 - 1
MAX_DATA_BYTES: Final = 2**24 - 1
"""Longest payload that a frame can announce. Data is passed on as it comes and never gathered."""

MAX_CONTROL_BYTES: Final = 65536
"""Longest payload of a control frame that is accepted."""

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


class ResetStatus(IntEnum):
    """Why a stream was reset (draft 3, 2.6.3)."""

    PROTOCOL_ERROR = 1
    INVALID_STREAM = 2
    REFUSED_STREAM = 3
    UNSUPPORTED_VERSION = 4
    CANCEL = 5
    INTERNAL_ERROR = 6
    FLOW_CONTROL_ERROR = 7
    STREAM_IN_USE = 8
    STREAM_ALREADY_CLOSED = 9
    FRAME_TOO_LARGE = 11


class GoAwayStatus(IntEnum):
    """Why a connection ends (draft 3, 2.6.6)."""

    OK = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2


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
    """Ends a stream in both directions. ``status`` is one of ResetStatus or an unknown one."""

    stream_id: int
    status: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks for, or is, the same frame in the other direction."""

    ping_id: int


@dataclass(frozen=True, slots=True)
class GoAway:
    """No stream after ``last_stream_id`` was or will be looked at."""

    last_stream_id: int
    status: int = GoAwayStatus.OK


@dataclass(frozen=True, slots=True)
class HeadersFrame:
    """More headers of an open stream."""

    stream_id: int
    headers: HeaderFields
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes of a stream: a whole frame when encoded, a part of one when decoded."""

    stream_id: int
    data: bytes | memoryview
    is_last: bool = False


ControlFrame = SynStream | SynReply | RstStream | Ping | GoAway | HeadersFrame
Frame = ControlFrame | Data


class FrameEncoder:
    """Writes the frames of one direction of a connection, in the order in which they are sent."""

    def __init__(self) -> None:
        self._compressor = HeaderCompressor()

    def encode(self, frame: Frame) -> bytes:
        """Write one frame.

        Raises:
            LocalProtocolError: a number or a header does not fit. Nothing was written, and the
                encoder can go on.
        """
        if isinstance(frame, Data):
            head = self.data_head(frame.stream_id, len(frame.data), is_last=frame.is_last)
            return head + frame.data
        try:
            return self._encode_control(frame)
        except struct.error:
            raise LocalProtocolError("a number does not fit into a SPDY frame") from None

    def data_head(self, stream_id: int, size_bytes: int, *, is_last: bool = False) -> bytes:
        """Write what stands before the data of a frame, for those who send it without a copy.

        Raises:
            LocalProtocolError: as for ``encode``.
        """
        if not 0 < stream_id <= MAX_STREAM_ID:
            raise LocalProtocolError("a SPDY data frame without a stream")
        if size_bytes > MAX_DATA_BYTES:
            raise LocalProtocolError("too long a SPDY data frame")
        return _HEAD.pack(stream_id, is_last << 24 | size_bytes)

    def _encode_control(self, frame: ControlFrame) -> bytes:
        match frame:
            case SynStream():
                head = _SYN_STREAM_HEAD.pack(frame.stream_id, 0, 0, 0)
                block = self._compressor.compress(frame.headers)
                return _control(_Kind.SYN_STREAM, head + block, frame.is_last)
            case SynReply() | HeadersFrame():
                kind = _Kind.SYN_REPLY if isinstance(frame, SynReply) else _Kind.HEADERS
                head = _LONG.pack(frame.stream_id)  # before the block: what fails changes nothing
                block = self._compressor.compress(frame.headers)
                return _control(kind, head + block, frame.is_last)
            case RstStream():
                return _control(_Kind.RST_STREAM, _TWO_LONGS.pack(frame.stream_id, frame.status))
            case Ping():
                return _control(_Kind.PING, _LONG.pack(frame.ping_id))
            case GoAway():
                return _control(_Kind.GOAWAY, _TWO_LONGS.pack(frame.last_stream_id, frame.status))


def _control(kind: int, payload: bytes, flags: int = 0) -> bytes:
    return _HEAD.pack(0x80000000 | VERSION << 16 | kind, flags << 24 | len(payload)) + payload


class FrameDecoder:
    """Reads the frames of one direction of a connection from pieces of any size.

    No input makes it raise, and it never holds more than one control frame. Control frames of
    unknown types are left out (draft 3, 2.2.1), and with them SETTINGS and WINDOW_UPDATE, which say
    nothing where there is no flow control.

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
        end = len(data)
        pos = 0
        while True:
            if self._data_bytes_left:
                piece = memoryview(data)[pos : pos + self._data_bytes_left]
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
        if stream_id == 0:
            raise RemoteProtocolError("a SPDY data frame without a stream")
        if size == 0:
            frames.append(Data(stream_id, b"", bool(flags & _FIN)))
        self._data_stream_id = stream_id
        self._data_bytes_left = size
        self._is_data_last = bool(flags & _FIN)

    def _decode_control(self, kind: int, flags: int, payload: bytes) -> Frame | None:
        is_last = bool(flags & _FIN)
        match kind:
            case _Kind.SYN_STREAM:
                stream_id = _stream_id(_unpack(_SYN_STREAM_HEAD, payload)[0])
                headers = self._decompressor.decompress(payload[_SYN_STREAM_HEAD.size :])
                return SynStream(stream_id, headers, is_last)
            case _Kind.SYN_REPLY | _Kind.HEADERS:
                stream_id = _stream_id(*_unpack(_LONG, payload))
                headers = self._decompressor.decompress(payload[_LONG.size :])
                frame_type = SynReply if kind == _Kind.SYN_REPLY else HeadersFrame
                return frame_type(stream_id, headers, is_last)
            case _Kind.RST_STREAM:
                stream_id, status = _unpack(_TWO_LONGS, payload)
                return RstStream(_stream_id(stream_id), status)
            case _Kind.PING:
                return Ping(*_unpack(_LONG, payload))
            case _Kind.GOAWAY:
                stream_id, status = _unpack(_TWO_LONGS, payload)
                return GoAway(stream_id & MAX_STREAM_ID, status)
        return None


def _stream_id(number: int) -> int:
    """Leave out the bit that is reserved. Zero stands for no stream."""
    number &= MAX_STREAM_ID
    if number == 0:
        raise RemoteProtocolError("a SPDY frame without a stream")
    return number


def _unpack(form: struct.Struct, payload: bytes) -> tuple[int, ...]:
    if len(payload) < form.size:
        raise RemoteProtocolError("a SPDY frame is cut off")
    return form.unpack_from(payload)
