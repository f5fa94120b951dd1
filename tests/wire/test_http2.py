"""Frames of HTTP/2: where they end, what is in them, and those that we make."""

from __future__ import annotations

import pytest

from pycrictl.errors import RemoteProtocolError
from pycrictl.wire import http2
from pycrictl.wire.http2 import ErrorCode, Http2Error, StreamFault


def test_frame() -> None:
    assert http2.frame(http2.PING, http2.ACK, 0, b"12345678") == (
        b"\0\0\x08\x06\x01\0\0\0\x0012345678"
    )
    assert http2.frame(http2.DATA, 0, 0x7FFFFFFF) == b"\0\0\0\0\0\x7f\xff\xff\xff"


def test_frames_of_control() -> None:
    assert http2.settings() == b"\0\0\0\4\0\0\0\0\0"
    assert http2.settings({4: 65536}) == b"\0\0\6\4\0\0\0\0\0" + b"\0\4\0\1\0\0"
    assert http2.window_update(3, 258) == b"\0\0\4\x08\0\0\0\0\3" + b"\0\0\1\2"
    assert http2.rst_stream(3, 8) == b"\0\0\4\3\0\0\0\0\3" + b"\0\0\0\x08"
    assert http2.goaway(5, 1, b"why") == b"\0\0\x0b\x07\0\0\0\0\0" + b"\0\0\0\5\0\0\0\1why"


@pytest.mark.parametrize(
    ("size", "sizes"),
    [(0, [0]), (16384, [16384]), (16385, [16384, 1]), (40000, [16384, 16384, 7232])],
)
def test_header_block_is_cut_into_frames(size: int, sizes: list[int]) -> None:
    block = bytes(n % 251 for n in range(size))
    frames = http2.header_frames(7, block, end_stream=True)
    heads = []
    pos = 0
    while pos < len(frames):
        length = int.from_bytes(frames[pos : pos + 3], "big")
        heads.append((length, frames[pos + 3], frames[pos + 4]))
        pos += 9 + length
    kinds = [http2.HEADERS] + [http2.CONTINUATION] * (len(sizes) - 1)
    flags = [0] * len(sizes)
    flags[0] |= http2.END_STREAM
    flags[-1] |= http2.END_HEADERS
    assert heads == list(zip(sizes, kinds, flags, strict=True))
    assert http2.block_of(frames, 0, len(frames)) == block


def test_padding_and_priority_are_no_content() -> None:
    data = http2.frame(http2.DATA, http2.PADDED, 1, b"\x02abc\0\0")
    assert http2.data_of(data, 0, len(data)) == b"abc"
    data = http2.frame(http2.DATA, 0, 1, b"\x02abc")
    assert http2.data_of(data, 0, len(data)) == b"\x02abc"
    flags = http2.END_HEADERS | http2.PADDED | http2.PRIORITY_FLAG
    headers = http2.frame(http2.HEADERS, flags, 1, b"\x01\0\0\0\0\x10abc\0")
    assert http2.block_of(headers, 0, len(headers)) == b"abc"
    promise = http2.frame(http2.PUSH_PROMISE, http2.END_HEADERS, 1, b"\0\0\0\2abc")
    assert http2.block_of(promise, 0, len(promise)) == b"abc"


@pytest.mark.parametrize(
    ("flags", "payload"),
    [
        (http2.PADDED, b""),
        (http2.PADDED, b"\x01"),
        (http2.PADDED | http2.PRIORITY_FLAG, b"\x01\0\0\0\0\0"),
        (http2.PRIORITY_FLAG, b"\0\0\0\0"),
    ],
)
def test_frames_without_room_for_their_content(flags: int, payload: bytes) -> None:
    frame = http2.frame(http2.HEADERS, flags | http2.END_HEADERS, 1, payload)
    with pytest.raises(RemoteProtocolError):
        http2.block_of(frame, 0, len(frame))


def test_numbers_in_frames() -> None:
    frame = http2.frame(http2.WINDOW_UPDATE, 0, 1, b"\x80\0\1\0")
    assert http2.number_of(frame, 0, len(frame)) == 256
    frame = http2.settings({1: 0, 4: 2**31 - 1})
    assert list(http2.settings_of(frame, 0, len(frame))) == [(1, 0), (4, 2**31 - 1)]


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        (http2.ENABLE_PUSH, 2, ErrorCode.PROTOCOL_ERROR),
        (http2.INITIAL_WINDOW_SIZE, 2**31, ErrorCode.FLOW_CONTROL_ERROR),
        (http2.MAX_FRAME_SIZE, 16383, ErrorCode.PROTOCOL_ERROR),
        (http2.MAX_FRAME_SIZE, 2**24, ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_settings_out_of_their_range(name: int, value: int, code: ErrorCode) -> None:
    frame = http2.settings({name: value})
    with pytest.raises(Http2Error) as caught:
        list(http2.settings_of(frame, 0, len(frame)))
    assert caught.value.code is code


def test_windows() -> None:
    assert http2.widened(5, 3) == 8
    assert http2.widened(-5, http2.MAX_WINDOW_BYTES) == http2.MAX_WINDOW_BYTES - 5
    for window_bytes, increment, code in (
        (5, 0, ErrorCode.PROTOCOL_ERROR),
        (1, http2.MAX_WINDOW_BYTES, ErrorCode.FLOW_CONTROL_ERROR),
    ):
        with pytest.raises(StreamFault) as caught:
            http2.widened(window_bytes, increment)
        assert caught.value.code is code
