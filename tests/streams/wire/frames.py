"""WebSocket frames (RFC 6455, 5.2), encoded and decoded without the client's own code."""

from __future__ import annotations

import struct
from collections.abc import Iterable

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA


def masked(payload: bytes, key: bytes) -> bytes:
    """Return a payload masked with a key; unchanged if the key is empty."""
    if not key:
        return payload
    size = len(payload)
    mask = (key * (size // len(key) + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(mask, "big")).to_bytes(size, "big")


def frame(
    opcode: int, payload: bytes = b"", *, fin: bool = True, length: int = -1, key: bytes = b""
) -> bytes:
    """Return a frame, masked if there is a key; ``length`` may differ from the payload's."""
    length = len(payload) if length < 0 else length
    first = opcode | (0x80 if fin else 0)
    is_masked = 0x80 if key else 0
    if length < 126:
        head = struct.pack("!BB", first, is_masked | length)
    elif length < 1 << 16:
        head = struct.pack("!BBH", first, is_masked | 126, length)
    else:
        head = struct.pack("!BBQ", first, is_masked | 127, length)
    return head + key + masked(payload, key)


def close_frame(code: int, reason: str | bytes = "", *, key: bytes = b"") -> bytes:
    """Return a close frame."""
    text = reason.encode() if isinstance(reason, str) else reason
    return frame(CLOSE, struct.pack("!H", code) + text, key=key)


def read_frames(
    output: Iterable[bytes | memoryview], *, is_masked: bool = True
) -> list[tuple[int, bytes]]:
    """Return opcodes and payloads of one side's frames; only a client's are masked."""
    data = b"".join(output)
    frames = []
    while data:
        first, second = data[:2]
        assert first & 0xF0 == 0x80, "one frame for each message, without extensions"
        assert bool(second & 0x80) is is_masked
        length, head = second & 0x7F, 2
        if length == 126:
            length, head = struct.unpack("!H", data[2:4])[0], 4
        elif length == 127:
            length, head = struct.unpack("!Q", data[2:10])[0], 10
        start = head + 4 * is_masked
        payload = masked(data[start : start + length], data[head:start])
        assert len(payload) == length, "the frame is cut off"
        frames.append((first & 0xF, payload))
        data = data[start + length :]
    return frames
