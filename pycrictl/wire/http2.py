"""Frames of HTTP/2 (RFC 9113): finding them in bytes, and making those that a proxy makes. Pure.

There is no connection state here. ``unit_end`` treats a header block with its continuations as one
unit, as nothing may come between its frames.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Final

from pycrictl.errors import RemoteProtocolError
from pycrictl.wire import limits

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES: Final = 9
DEFAULT_WINDOW_BYTES: Final = 65535
MAX_WINDOW_BYTES: Final = 2**31 - 1
MAX_STREAM_ID: Final = 2**31 - 1
# Every peer takes frames of this size (SETTINGS_MAX_FRAME_SIZE cannot be lower).
MAX_FRAME_BYTES: Final = 16384
PING_BYTES: Final = 8  # the payload of a PING, no more and no less

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

HEADER_TABLE_SIZE: Final = 1
INITIAL_WINDOW_SIZE: Final = 4


class ErrorCode(IntEnum):
    """Why a stream or a connection ends (section 7): the codes that matter here."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    REFUSED_STREAM = 7
    CANCEL = 8


def check_server_preface(buffer: bytes) -> None:
    """Check the head of a server's first frame, which must be SETTINGS.

    Raises:
        RemoteProtocolError: it is not.
    """
    if buffer[3] != SETTINGS or any(buffer[4:HEAD_BYTES]):
        raise RemoteProtocolError("HTTP/2: the server's preface is wrong")


def unit_end(buffer: bytes, pos: int) -> int:
    """Return where the frame at ``pos`` ends, a header block's continuations included.

    A header block's continuations belong to it.

    Raises:
        RemoteProtocolError: the continuations of a header block are not in order.
    """
    end = len(buffer)
    if end - pos < HEAD_BYTES:
        return 0
    stop = pos + HEAD_BYTES + int.from_bytes(buffer[pos : pos + 3], "big")
    if stop > end:
        return 0
    kind = buffer[pos + 3]
    if kind != HEADERS and kind != PUSH_PROMISE:
        return stop
    stream = buffer[pos + 5 : pos + 9]
    flags = buffer[pos + 4]
    start = pos
    while not flags & END_HEADERS:
        if stop - start > limits.HEADER_BLOCK_BYTES:
            raise RemoteProtocolError("HTTP/2: a header block is too large")
        if end - stop < HEAD_BYTES:
            return 0
        if buffer[stop + 3] != CONTINUATION or buffer[stop + 5 : stop + 9] != stream:
            raise RemoteProtocolError("HTTP/2: a header block is interrupted")
        flags = buffer[stop + 4]
        stop += HEAD_BYTES + int.from_bytes(buffer[stop : stop + 3], "big")
        if stop > end:
            return 0
    return stop


def block_of(buffer: bytes, pos: int, stop: int) -> bytes:
    """Return the header block of the unit ``buffer[pos:stop]``, without padding and priority."""
    length = int.from_bytes(buffer[pos : pos + 3], "big")
    start = pos + HEAD_BYTES
    if buffer[pos + 3] == PUSH_PROMISE:
        skipped = 4
    else:
        skipped = 5 if buffer[pos + 4] & PRIORITY_FLAG else 0
    block = _unpadded(buffer[start : start + length], buffer[pos + 4])
    if len(block) < skipped:
        raise RemoteProtocolError("HTTP/2: a frame is too short")
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
        raise RemoteProtocolError("HTTP/2: a frame has more padding than content")
    return payload[1 : len(payload) - payload[0]]


def number_of(buffer: bytes, pos: int, stop: int) -> int:
    """Return what a WINDOW_UPDATE, a RST_STREAM or a GOAWAY begins with: 31 bits of a number."""
    if stop - pos < HEAD_BYTES + 4:
        raise RemoteProtocolError("HTTP/2: a frame is too short")
    return int.from_bytes(buffer[pos + 9 : pos + 13], "big") & 0x7FFFFFFF


def settings_of(buffer: bytes, pos: int, stop: int) -> Iterator[tuple[int, int]]:
    """Return the identifiers and values of a SETTINGS frame."""
    if (stop - pos - HEAD_BYTES) % 6:
        raise RemoteProtocolError("HTTP/2: a SETTINGS frame has a wrong length")
    for at in range(pos + HEAD_BYTES, stop, 6):
        yield (
            int.from_bytes(buffer[at : at + 2], "big"),
            int.from_bytes(buffer[at + 2 : at + 6], "big"),
        )


def pong_of(buffer: bytes, pos: int, stop: int) -> bytes:
    """Return the answer to a PING; nothing for one that is an answer itself."""
    stream_id = int.from_bytes(buffer[pos + 5 : pos + 9], "big") & MAX_STREAM_ID
    if stream_id or stop - pos != HEAD_BYTES + PING_BYTES:
        raise RemoteProtocolError("HTTP/2: a PING is malformed")
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
    pairs = (values or {}).items()
    payload = (name.to_bytes(2, "big") + value.to_bytes(4, "big") for name, value in pairs)
    return frame(SETTINGS, payload=b"".join(payload))


def header_frames(stream_id: int, block: bytes, *, end_stream: bool) -> bytes:
    """Return a header block as HEADERS and as many CONTINUATION frames as it needs."""
    flags = END_STREAM if end_stream else 0
    if len(block) <= MAX_FRAME_BYTES:
        return frame(HEADERS, flags | END_HEADERS, stream_id, block)
    frames = [frame(HEADERS, flags, stream_id, block[:MAX_FRAME_BYTES])]
    last = (len(block) - 1) // MAX_FRAME_BYTES * MAX_FRAME_BYTES
    for at in range(MAX_FRAME_BYTES, len(block), MAX_FRAME_BYTES):
        fragment = block[at : at + MAX_FRAME_BYTES]
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
