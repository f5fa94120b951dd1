"""A client's SPDY/3.1 connection, with one stream per channel. Pure.

Every number is big-endian. A control frame starts with the bit 1, the version (15 bits) and the
type (16), a data frame with the bit 0 and the stream's number (31); in both, flags (8) and the
payload's length (24) follow. A stream is opened by SYN_STREAM, which ends with a block of headers,
accepted by SYN_REPLY, and ended either separately in each direction (a frame with FIN each) or in
both at once (RST_STREAM). A protocol violation by the peer ends the connection.

Six decisions, the first four because the peer is Go's spdystream library in every runtime:

1. *No data before the reply.* The draft allows it, but spdystream discards such data. So
   nothing can be sent until all streams are accepted.
2. *No flow control.* spdystream neither sends nor honours WINDOW_UPDATE, and it sends more than the
   draft's 64 KiB. Windows are neither tracked nor announced: only TCP slows a sender down, all its
   streams together. The caller must keep reading, even while it waits for a write, or both sides
   may wait for each other.
3. *Frames for streams that have ended are silently ignored.* They may have been in transit when the
   stream was reset.
4. *The peer must not open streams.* A runtime has no reason to.
5. *The peer's headers are not read.* Nothing needs them, so they are not even decompressed.
6. *The dictionary for headers is not used* (draft 3, 2.6.10.1): the few headers of a stream are
   short, and zlib asks for a dictionary only if the sender has used it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from pycrictl.base import limits
from pycrictl.base.errors import RemoteProtocolError, StreamError
from pycrictl.streams.wire.channels import (
    MESSAGE_BYTES,
    ChannelEnded,
    ChannelReceived,
    Channels,
    ChannelsOpened,
)

VERSION: Final = 3
HEAD_BYTES: Final = 8
MAX_CONTROL_BYTES: Final = 65536
"""Longest accepted payload of a control frame. Data is passed on as it arrives."""

_FIN: Final = 0x01
_MAX_STREAM_ID: Final = 2**31 - 1
_PROTOCOL_ERROR: Final = 1
_HEAD: Final = struct.Struct(">II")
_LONG: Final = struct.Struct(">I")

HeaderFields = tuple[tuple[str, str], ...]
"""Names in lower case with their values, in ISO 8859-1."""


class Kind(IntEnum):
    """Types of control frames."""

    SYN_STREAM = 1
    SYN_REPLY = 2
    RST_STREAM = 3
    PING = 6
    GOAWAY = 7
    HEADERS = 8


class SpdyChannels(Channels):
    """Channels over SPDY: each is opened with its headers, in the order given."""

    def __init__(self, headers: Mapping[int, HeaderFields]) -> None:
        super().__init__()
        self._idle = limits.Allowance(limits.STREAM_IDLE_FRAMES, limits.STREAM_IDLE_FRAMES_PER_S)
        self._output: list[bytes | memoryview] = []
        self._buffer = b""  # the start of an incomplete frame
        self._data_id = self._data_bytes_left = 0
        self._is_data_last = False
        self._ids = {channel: 2 * index + 1 for index, channel in enumerate(headers)}
        self._channels = {stream_id: channel for channel, stream_id in self._ids.items()}
        self._opening = set(self._channels)
        self._receiving: set[int] = set()
        self._sending: set[int] = set()
        compressor = zlib.compressobj()
        for channel, fields in headers.items():
            # All blocks of a connection go through one zlib stream, flushed after each.
            block = compressor.compress(_packed(fields)) + compressor.flush(zlib.Z_SYNC_FLUSH)
            # After the stream's number: no associated stream, the highest priority, no slot.
            self._control(Kind.SYN_STREAM, _LONG.pack(self._ids[channel]) + bytes(6) + block)

    def send(self, channel: int, data: bytes) -> None:
        if not self._can_send(channel):
            return
        stream_id, view = self._ids[channel], memoryview(data)
        for start in range(0, len(data), MESSAGE_BYTES):
            piece = view[start : start + MESSAGE_BYTES]
            self._output += (_HEAD.pack(stream_id, len(piece)), piece)

    def end(self, channel: int) -> None:
        if self._can_send(channel):
            self._sending.discard(self._ids[channel])
            self._output.append(_HEAD.pack(self._ids[channel], _FIN << 24))

    def data_to_send(self) -> list[bytes | memoryview]:
        output, self._output = self._output, []
        return output

    def receive_data(self, data: bytes, now: float = 0.0) -> None:
        if self.is_over:
            return
        try:
            self._read(self._buffer + data if self._buffer else data, now)
        except RemoteProtocolError as exc:
            self._control(Kind.GOAWAY, _HEAD.pack(0, _PROTOCOL_ERROR))
            self._finish(exc)

    def receive_eof(self, error: StreamError | None = None) -> None:
        self._finish(error or StreamError("the connection to the runtime ended"))

    def _can_send(self, channel: int) -> bool:
        return not (self._opening or self.is_over) and self._ids.get(channel) in self._sending

    def _read(self, data: bytes, now: float) -> None:
        view, pos, end = memoryview(data), 0, len(data)
        while True:
            if self._data_bytes_left:
                piece = view[pos : pos + self._data_bytes_left]
                if not piece:
                    break
                pos += len(piece)
                self._data_bytes_left -= len(piece)
                self._idle.earned = limits.STREAM_IDLE_FRAMES
                is_last = self._is_data_last and not self._data_bytes_left
                self._take_data(self._data_id, piece, is_last)
            if end - pos < HEAD_BYTES:
                break
            first, second = _HEAD.unpack_from(data, pos)
            size, is_last = second & 0xFFFFFF, bool(second >> 24 & _FIN)
            if not first >> 31:
                pos += HEAD_BYTES
                self._data_id, self._data_bytes_left, self._is_data_last = first, size, is_last
                if not size:
                    self._count_idle(now)
                    self._take_data(first, b"", is_last)
                continue
            if first >> 16 & 0x7FFF != VERSION:
                raise RemoteProtocolError("the peer does not speak SPDY/3")
            if size > MAX_CONTROL_BYTES:
                raise RemoteProtocolError("a SPDY control frame is too long")
            if end - pos < HEAD_BYTES + size:
                break
            pos += HEAD_BYTES
            self._count_idle(now)
            self._take_control(first & 0xFFFF, data[pos : pos + size], is_last)
            pos += size
        self._buffer = data[pos:]

    def _count_idle(self, now: float) -> None:
        if not self._idle.spend(now):
            raise RemoteProtocolError("the peer sends too many empty SPDY frames")

    def _take_control(self, kind: int, payload: bytes, is_last: bool) -> None:
        """Handle a control frame; unknown types are ignored (draft 3, 2.2.1)."""
        if kind not in [*Kind]:
            return
        if len(payload) < _LONG.size:
            raise RemoteProtocolError("a SPDY frame is cut off")
        number = _LONG.unpack_from(payload)[0] & _MAX_STREAM_ID
        match kind:
            case Kind.SYN_STREAM:
                raise RemoteProtocolError("the peer opened a SPDY stream")
            case Kind.SYN_REPLY:
                self._accept(self._known(number), is_last)
            case Kind.RST_STREAM:
                self._reset(self._known(number))
            case Kind.PING if number % 2 == 0:
                self._control(Kind.PING, payload[: _LONG.size])
            case Kind.GOAWAY:
                # Accepted streams were processed, even if the frame names an earlier one as last.
                for stream_id in sorted(self._opening):
                    if stream_id > number:
                        self._reset(stream_id)
            case Kind.HEADERS:
                self._take_data(number, b"", is_last)

    def _take_data(self, stream_id: int, data: bytes | memoryview, is_last: bool) -> None:
        if self._known(stream_id) in self._opening:
            raise RemoteProtocolError("the peer sent data on a SPDY stream before accepting it")
        if stream_id not in self._receiving:
            return
        if data:
            self._events.append(ChannelReceived(self._channels[stream_id], data))
        if is_last:
            self._receiving.discard(stream_id)
            self._events.append(ChannelEnded(self._channels[stream_id]))

    def _accept(self, stream_id: int, is_last: bool) -> None:
        if stream_id not in self._opening:
            return
        self._opening.discard(stream_id)
        self._receiving.add(stream_id)
        self._sending.add(stream_id)
        if not self._opening:
            self._events.append(ChannelsOpened())
        self._take_data(stream_id, b"", is_last)

    def _reset(self, stream_id: int) -> None:
        if stream_id in self._opening | self._receiving | self._sending:
            for streams in (self._opening, self._receiving, self._sending):
                streams.discard(stream_id)
            self._events.append(ChannelEnded(self._channels[stream_id], is_reset=True))

    def _known(self, stream_id: int) -> int:
        if stream_id not in self._channels:
            raise RemoteProtocolError("the peer used a SPDY stream that was never opened")
        return stream_id

    def _control(self, kind: int, payload: bytes) -> None:
        self._output.append(_HEAD.pack(1 << 31 | VERSION << 16 | kind, len(payload)) + payload)


def _packed(headers: HeaderFields) -> bytes:
    """Encode a block of headers: a count, then names and values with their lengths (2.6.10)."""
    texts = [text.encode("iso-8859-1") for field in headers for text in field]
    return _LONG.pack(len(headers)) + b"".join(_LONG.pack(len(text)) + text for text in texts)
