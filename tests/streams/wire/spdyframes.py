"""SPDY/3.1 frames for servers, encoded and decoded without the client's own code."""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from pycrictl.streams.wire.spdy import HeaderFields, Kind

FIN = 1


class SynStream(NamedTuple):
    stream_id: int
    headers: HeaderFields = ()
    is_last: bool = False


class SynReply(NamedTuple):
    stream_id: int
    headers: HeaderFields = ()
    is_last: bool = False


class RstStream(NamedTuple):
    stream_id: int
    status: int


class Ping(NamedTuple):
    ping_id: int


class GoAway(NamedTuple):
    last_stream_id: int
    status: int = 0


class Data(NamedTuple):
    stream_id: int
    data: bytes
    is_last: bool = False


Frame = SynStream | SynReply | RstStream | Ping | GoAway | Data
_KINDS: dict[type, Kind] = {
    SynStream: Kind.SYN_STREAM,
    SynReply: Kind.SYN_REPLY,
    RstStream: Kind.RST_STREAM,
    Ping: Kind.PING,
    GoAway: Kind.GOAWAY,
}


def control(kind: int, payload: bytes, *, flags: int = 0, version: int = 3) -> bytes:
    return struct.pack(">HHI", 0x8000 | version, kind, flags << 24 | len(payload)) + payload


class FrameEncoder:
    """Encodes the frames of one direction of a connection."""

    def __init__(self) -> None:
        self._compressor = zlib.compressobj()

    def encode(self, frame: Frame) -> bytes:
        match frame:
            case Data(stream_id, data, is_last):
                return struct.pack(">II", stream_id, is_last << 24 | len(data)) + data
            case SynStream(stream_id, headers, is_last) | SynReply(stream_id, headers, is_last):
                rest = bytes(6) if isinstance(frame, SynStream) else b""
                payload = struct.pack(">I", stream_id) + rest + self._compress(headers)
                return control(_KINDS[type(frame)], payload, flags=is_last)
            case _:
                return control(_KINDS[type(frame)], struct.pack(f">{len(frame)}I", *frame))

    def _compress(self, headers: HeaderFields) -> bytes:
        block = struct.pack(">I", len(headers))
        for text in (text.encode("iso-8859-1") for field in headers for text in field):
            block += struct.pack(">I", len(text)) + text
        return self._compressor.compress(block) + self._compressor.flush(zlib.Z_SYNC_FLUSH)


class FrameDecoder:
    """Decodes the complete frames of one direction of a connection."""

    def __init__(self) -> None:
        self._decompressor = zlib.decompressobj()
        self._buffer = b""

    def receive_data(self, data: bytes) -> list[Frame]:
        self._buffer += data
        frames: list[Frame] = []
        while len(self._buffer) >= 8:
            first, second = struct.unpack_from(">II", self._buffer)
            flags, end = second >> 24, 8 + (second & 0xFFFFFF)
            if len(self._buffer) < end:
                break
            payload, self._buffer = self._buffer[8:end], self._buffer[end:]
            if first >> 31:
                assert first >> 16 == 0x8003, "not SPDY/3"
                frames.append(self._control(first & 0xFFFF, payload, bool(flags & FIN)))
            else:
                frames.append(Data(first, payload, bool(flags & FIN)))
        return frames

    def _control(self, kind: int, payload: bytes, is_last: bool) -> Frame:
        number, *more = struct.unpack_from(f">{min(2, len(payload) // 4)}I", payload)
        match kind:
            case Kind.SYN_STREAM:
                return SynStream(number, self._decompress(payload[10:]), is_last)
            case Kind.SYN_REPLY:
                return SynReply(number, self._decompress(payload[4:]), is_last)
            case Kind.RST_STREAM:
                return RstStream(number, *more)
            case Kind.PING:
                return Ping(number)
            case Kind.GOAWAY:
                return GoAway(number, *more)
        raise AssertionError(f"a frame of type {kind}")

    def _decompress(self, compressed: bytes) -> HeaderFields:
        block = self._decompressor.decompress(compressed)
        texts, pos = [], 4
        while pos < len(block):
            (size,) = struct.unpack_from(">I", block, pos)
            texts.append(block[pos + 4 : pos + 4 + size].decode("iso-8859-1"))
            pos += 4 + size
        assert len(texts) == 2 * int.from_bytes(block[:4], "big")
        return tuple(zip(texts[::2], texts[1::2], strict=True))
