"""Frames of a WebSocket (RFC 6455, 5.2): making heads, and what may be wrong with one. Pure.

No extension was agreed on.
"""

from __future__ import annotations

import struct
from typing import Final

CONTINUATION: Final = 0x0
TEXT: Final = 0x1
BINARY: Final = 0x2
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA
CONTROL: Final = 0x8
"""The bit that opcodes of control frames have."""

FINAL: Final = 0x80
MAX_CONTROL_BYTES: Final = 125
LENGTHS: Final = {126: struct.Struct(">H"), 127: struct.Struct(">Q")}
"""Where the length of the payload stands when it is not in the second byte, by what is there."""

_OPCODES: Final = frozenset({CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG})
_RESERVED: Final = 0x70
_MASKED: Final = 0x80


def frame_head(opcode: int, size: int, *, is_masked: bool) -> bytes:
    """The head of a frame that is a whole message; the key follows it if it is masked."""
    mask = _MASKED if is_masked else 0
    if size <= MAX_CONTROL_BYTES:
        return bytes((FINAL | opcode, mask | size))
    short = 126 if size < 1 << 16 else 127
    return bytes((FINAL | opcode, mask | short)) + LENGTHS[short].pack(size)


def frame_problem(first: int, second: int, *, is_masked: bool, is_fragmented: bool) -> str:
    """What is wrong with the first two bytes of a frame; empty if nothing is.

    Args:
        is_masked: whether it must be, as all frames of clients and no others.
        is_fragmented: whether a message has begun that is not complete.
    """
    opcode = first & 0x0F
    if first & _RESERVED:
        return "a reserved bit is set"
    if opcode not in _OPCODES:
        return "unknown opcode"
    if bool(second & _MASKED) != is_masked:
        return "a client's frame is not masked" if is_masked else "a server's frame is masked"
    if opcode & CONTROL:
        if not first & FINAL:
            return "a control frame in fragments"
        if second & ~_MASKED > MAX_CONTROL_BYTES:
            return "too long a control frame"
    elif (opcode == CONTINUATION) != is_fragmented:
        return "a fragment of another message"
    return ""


def xor_mask(payload: bytes | memoryview, key: bytes) -> bytes:
    """Mask a payload; a long one takes its time."""
    size = len(payload)
    keys = (key * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(keys, "big")).to_bytes(size, "big")
