"""Frames of HTTP/2 (RFC 9113): what is in them, and making those that a proxy makes. Pure.

There is no connection state here, and a frame's shape is taken for granted: ``http2_reader`` has
both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Final

from pycrictl.errors import RemoteProtocolError
from pycrictl.wire.limits import FRAME_BYTES

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES: Final = 9
DEFAULT_WINDOW_BYTES: Final = 65535
MAX_WINDOW_BYTES: Final = 2**31 - 1
MAX_STREAM_ID: Final = 2**31 - 1

# Types and flags are plain numbers: they are compared once a frame, on the path of every call.
DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_FLAG: Final = 0x20
_PLAIN_HEADERS: Final = END_HEADERS | PADDED | PRIORITY_FLAG

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6


_RANGES: Final = {
    ENABLE_PUSH: (0, 1),
    INITIAL_WINDOW_SIZE: (0, MAX_WINDOW_BYTES),
    MAX_FRAME_SIZE: (16384, 2**24 - 1),
}


class ErrorCode(IntEnum):
    """Why a stream or a connection ends (section 7): the codes that matter here."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Http2Error(RemoteProtocolError):
    """The peer broke the protocol or a limit, which ends its connection.

    Attributes:
        code: what a GOAWAY says of it.
    """

    def __init__(self, problem: str, code: ErrorCode = ErrorCode.PROTOCOL_ERROR) -> None:
        super().__init__(f"HTTP/2: {problem}")
        self.code = code


class StreamFault(Http2Error):
    """The same, but only one stream has to end; ``code`` is for its RST_STREAM."""


def block_of(buffer: bytes, pos: int, stop: int) -> bytes:
    """Return the header block of the unit ``buffer[pos:stop]``, without padding and priority."""
    start = pos + HEAD_BYTES
    if buffer[pos + 3] == HEADERS and buffer[pos + 4] & _PLAIN_HEADERS == END_HEADERS:
        return buffer[start:stop]
    length = int.from_bytes(buffer[pos : pos + 3], "big")
    if buffer[pos + 3] == PUSH_PROMISE:
        skipped = 4
    else:
        skipped = 5 if buffer[pos + 4] & PRIORITY_FLAG else 0
    block = _unpadded(buffer[start : start + length], buffer[pos + 4])
    if len(block) < skipped:
        raise Http2Error("a frame is too short", ErrorCode.FRAME_SIZE_ERROR)
    block = block[skipped:]
    pos = start + length
    if pos == stop:
        return block
    fragments = [block]
    while pos < stop:
        start = pos + HEAD_BYTES
        pos = start + int.from_bytes(buffer[pos : pos + 3], "big")
        fragments.append(buffer[start:pos])
    return b"".join(fragments)


def data_of(buffer: bytes, pos: int, stop: int) -> bytes:
    """Return the data of the DATA frame ``buffer[pos:stop]``, without padding."""
    return _unpadded(buffer[pos + HEAD_BYTES : stop], buffer[pos + 4])


def _unpadded(payload: bytes, flags: int) -> bytes:
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise Http2Error("a frame has more padding than content")
    return payload[1 : len(payload) - payload[0]]


def number_of(buffer: bytes, pos: int, stop: int) -> int:
    """Return what a WINDOW_UPDATE, a RST_STREAM or a GOAWAY begins with: a number of 31 bits."""
    return int.from_bytes(buffer[pos + 9 : pos + 13], "big") & 0x7FFFFFFF


def widened(window_bytes: int, increment: int) -> int:
    """Return a window after a WINDOW_UPDATE (section 6.9).

    Raises:
        StreamFault: the increment is 0, or the window is larger than any may be. It is the whole
            connection's if the window is.
    """
    if not increment:
        raise StreamFault("a window grows by nothing")
    return check_window(window_bytes + increment)


def check_window(window_bytes: int) -> int:
    """Return the size of a window; raises as ``widened``."""
    if window_bytes > MAX_WINDOW_BYTES:
        raise StreamFault("a window is too large", ErrorCode.FLOW_CONTROL_ERROR)
    return window_bytes


def settings_of(buffer: bytes, pos: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the identifiers and values of a SETTINGS frame.

    Raises:
        Http2Error: a value is out of its range (section 6.5.2).
    """
    for at in range(pos + HEAD_BYTES, stop, 6):
        name = int.from_bytes(buffer[at : at + 2], "big")
        value = int.from_bytes(buffer[at + 2 : at + 6], "big")
        least, most = _RANGES.get(name, (0, value))
        if not least <= value <= most:
            is_window = name == INITIAL_WINDOW_SIZE
            code = ErrorCode.FLOW_CONTROL_ERROR if is_window else ErrorCode.PROTOCOL_ERROR
            raise Http2Error("a setting is out of its range", code)
        yield name, value


def pong_of(buffer: bytes, pos: int, stop: int) -> bytes:
    """Return the answer to a PING; nothing if it is one itself, to a ping that was never sent."""
    if buffer[pos + 4] & ACK:
        return b""
    return frame(PING, ACK, 0, buffer[pos + HEAD_BYTES : stop])


def frame(kind: int, flags: int = 0, stream_id: int = 0, payload: bytes = b"") -> bytes:
    """Return one frame."""
    return b"%b%c%c%b%b" % (
        len(payload).to_bytes(3, "big"),
        kind,
        flags,
        stream_id.to_bytes(4, "big"),
        payload,
    )


def settings(values: Mapping[int, int] | None = None) -> bytes:
    """Return a SETTINGS frame that is not an acknowledgement."""
    return settings_frame((values or {}).items())


def settings_frame(pairs: Iterable[tuple[int, int]]) -> bytes:
    """Return the same of names and values in their order."""
    payload = (name.to_bytes(2, "big") + value.to_bytes(4, "big") for name, value in pairs)
    return frame(SETTINGS, payload=b"".join(payload))


def header_frames(stream_id: int, block: bytes, *, end_stream: bool) -> bytes:
    """Return a header block as HEADERS and as many CONTINUATION frames as it needs."""
    flags = END_STREAM if end_stream else 0
    if len(block) <= FRAME_BYTES:
        return frame(HEADERS, flags | END_HEADERS, stream_id, block)
    frames = [frame(HEADERS, flags, stream_id, block[:FRAME_BYTES])]
    last = (len(block) - 1) // FRAME_BYTES * FRAME_BYTES
    for at in range(FRAME_BYTES, len(block), FRAME_BYTES):
        fragment = block[at : at + FRAME_BYTES]
        frames.append(frame(CONTINUATION, END_HEADERS if at == last else 0, stream_id, fragment))
    return b"".join(frames)


def window_update(stream_id: int, increment: int) -> bytes:
    """Return a WINDOW_UPDATE frame."""
    return frame(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def rst_stream(stream_id: int, code: int) -> bytes:
    """Return a RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def goaway(last_stream_id: int, code: int, debug: bytes = b"") -> bytes:
    """Return a GOAWAY frame."""
    payload = last_stream_id.to_bytes(4, "big") + code.to_bytes(4, "big") + debug
    return frame(GOAWAY, 0, 0, payload)
