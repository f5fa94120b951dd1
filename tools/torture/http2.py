"""HTTP/2 frames (RFC 9113) made by hand, for clients that misuse the protocol."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES: Final = 9
FRAME_BYTES: Final = 16384

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    0, 1, 2, 3, 4, 6, 7, 8, 9,
)  # fmt: skip
END_STREAM: Final = 1
ACK: Final = 1
END_HEADERS: Final = 4

CANCEL: Final = 8


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream_id.to_bytes(4, "big")
    return head + payload


def settings() -> bytes:
    return frame(SETTINGS, 0, 0)


def window_update(stream_id: int, count: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, count.to_bytes(4, "big"))


def reset(stream_id: int) -> bytes:
    return frame(RST_STREAM, 0, stream_id, CANCEL.to_bytes(4, "big"))


def headers(path: str) -> bytes:
    """Return a request's header block: unindexed, uncompressed literals (RFC 7541, 6.2.2)."""
    fields = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    )
    return b"".join(
        b"\0" + b"".join(bytes((len(text),)) + text.encode() for text in field) for field in fields
    )


def length(size: int, prefix_bits: int, first: int) -> bytes:
    """Return an integer as encoded in a header block (RFC 7541, 5.1)."""
    most = (1 << prefix_bits) - 1
    if size < most:
        return bytes((first | size,))
    out = bytearray((first | most,))
    size -= most
    while size >= 128:
        out.append(size & 127 | 128)
        size >>= 7
    return bytes((*out, size))


def block(stream_id: int, content: bytes, *, end: bool = True) -> bytes:
    pieces = [content[at : at + FRAME_BYTES] for at in range(0, len(content), FRAME_BYTES)]
    out = b""
    for number, piece in enumerate(pieces):
        kind = CONTINUATION if number else HEADERS
        flags = (END_STREAM if end and not number else 0) | (
            END_HEADERS if number == len(pieces) - 1 else 0
        )
        out += frame(kind, flags, stream_id, piece)
    return out


def opened(stream_id: int, path: str) -> bytes:
    return block(stream_id, headers(path), end=False)


def message(stream_id: int, content: bytes) -> bytes:
    prefix = b"\0" + len(content).to_bytes(4, "big")
    return frame(DATA, END_STREAM, stream_id, prefix + content)


def frames(data: bytes) -> Iterator[tuple[int, bytes, int]]:
    start = 0
    while len(data) >= start + HEAD_BYTES:
        stop = start + HEAD_BYTES + int.from_bytes(data[start : start + 3], "big")
        if stop > len(data):
            return
        yield data[start + 3], data[start + HEAD_BYTES : stop], stop
        start = stop
