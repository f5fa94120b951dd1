"""Heads of frames, by bytes of RFC 6455."""

from __future__ import annotations

import pytest

from pycrictl.wire.websocket_frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    TEXT,
    frame_head,
    frame_problem,
    xor_mask,
)


@pytest.mark.parametrize(
    ("size", "length"),
    [
        (0, b"\x00"),
        (125, b"\x7d"),
        (126, b"\x7e\x00\x7e"),
        (65535, b"\x7e\xff\xff"),
        (65536, b"\x7f\x00\x00\x00\x00\x00\x01\x00\x00"),
    ],
)
def test_heads(size: int, length: bytes) -> None:
    assert frame_head(BINARY, size, is_masked=False) == b"\x82" + length
    masked = bytes((length[0] | 0x80,)) + length[1:]
    assert frame_head(PING, size, is_masked=True) == b"\x89" + masked


@pytest.mark.parametrize("is_masked", [True, False])
@pytest.mark.parametrize(
    ("first", "length", "is_fragmented", "problem"),
    [
        (0x80 | BINARY, 127, False, ""),
        (TEXT, 5, False, ""),
        (CONTINUATION, 5, True, ""),
        (0x80 | CLOSE, 125, True, ""),
        (0xC0 | BINARY, 0, False, "reserved"),
        (0x83, 0, False, "unknown"),
        (0x8B, 0, False, "unknown"),
        (PING, 0, False, "fragments"),
        (0x80 | PING, 126, False, "too long"),
        (0x80 | CONTINUATION, 0, False, "fragment of another"),
        (0x80 | BINARY, 0, True, "fragment of another"),
    ],
)
def test_problems(
    first: int, length: int, is_fragmented: bool, problem: str, is_masked: bool
) -> None:
    def found(second: int) -> str:
        return frame_problem(first, second, is_masked=is_masked, is_fragmented=is_fragmented)

    right = found(length | (0x80 if is_masked else 0))
    assert problem in right
    assert bool(right) == bool(problem)
    assert found(length | (0 if is_masked else 0x80))


def test_mask() -> None:
    masked = xor_mask(b"Hello", b"\x37\xfa\x21\x3d")
    assert masked == b"\x7f\x9f\x4d\x51\x58"  # the example of the RFC, 5.7
    assert xor_mask(masked, b"\x37\xfa\x21\x3d") == b"Hello"
