from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.wire.spdy.frames import (
    MAX_CONTROL_BYTES,
    MAX_STREAM_ID,
    Data,
    Frame,
    FrameDecoder,
    FrameEncoder,
    GoAway,
    Ping,
    RstStream,
    SynReply,
    SynStream,
)

FIELDS = (("streamtype", "error"), ("port", "80"), ("requestid", "0"))
FRAMES: list[Frame] = [
    SynStream(1, FIELDS),
    SynStream(MAX_STREAM_ID, (), is_last=True),
    SynReply(1),
    SynReply(3, FIELDS, is_last=True),
    RstStream(7, 5),
    RstStream(7, 4711),
    Ping(1),
    GoAway(9, 1),
    GoAway(0),
    Data(1, b"data"),
    Data(1, b"data", is_last=True),
    Data(1, b""),
    Data(1, b"", is_last=True),
]


def control(kind: int, payload: bytes, *, flags: int = 0, version: int = 3) -> bytes:
    return struct.pack(">HHI", 0x8000 | version, kind, flags << 24 | len(payload)) + payload


def encoded(frames: list[Frame]) -> bytes:
    encoder = FrameEncoder()
    return b"".join(map(encoder.encode, frames))


def joined(frames: list[Frame]) -> list[Frame]:
    """Put the parts of data frames together."""
    result: list[Frame] = []
    for frame in frames:
        last = result[-1] if result else None
        if (
            isinstance(frame, Data)
            and isinstance(last, Data)
            and not last.is_last
            and last.stream_id == frame.stream_id
        ):
            result[-1] = Data(frame.stream_id, bytes(last.data) + bytes(frame.data), frame.is_last)
        else:
            result.append(frame)
    return result


# Bytes


def test_reserved_bits_and_unknown_flags_are_left_out() -> None:
    decoder = FrameDecoder()
    data = control(3, b"\x80\0\0\x01\0\0\0\x05")
    data += control(7, b"\x80\0\0\x01\0\0\0\x00") + struct.pack(">II", 1, 0xFE << 24)
    assert decoder.receive_data(data) == [RstStream(1, 5), GoAway(1), Data(1, b"")]


@pytest.mark.parametrize(
    "frame",
    [
        control(10, b"credential"),
        control(4, b"\0\0\0\x01\x03\0\0\x04\0\0\0\x09"),
        control(4, b""),
        control(9, b"\0\0\0\x01\0\0\0\x05"),
    ],
    ids=["unknown", "settings", "malformed settings", "window update"],
)
def test_control_frames_that_say_nothing_are_left_out(frame: bytes) -> None:
    decoder = FrameDecoder()
    assert decoder.receive_data(frame + encoded([Ping(1)])) == [Ping(1)]
    assert decoder.error is None


# Pieces


def test_data_is_passed_on_as_it_comes() -> None:
    decoder = FrameDecoder()
    head = struct.pack(">II", 1, 0x01FFFFFF)
    assert decoder.receive_data(head) == []
    assert decoder.receive_data(b"a") == [Data(1, b"a")]
    assert decoder.receive_data(b"") == []
    rest = bytes(2**24 - 2)
    assert decoder.receive_data(rest + encoded([Ping(1)])) == [Data(1, rest, True), Ping(1)]


WHOLE = encoded(FRAMES)


@given(st.lists(st.integers(0, len(WHOLE))))
def test_pieces_may_end_anywhere(cuts: list[int]) -> None:
    decoder = FrameDecoder()
    frames: list[Frame] = []
    for start, end in pairwise([0, *sorted(cuts), len(WHOLE)]):
        frames += decoder.receive_data(WHOLE[start:end])
    assert joined(frames) == joined(FRAMES)


# Violations


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (control(6, b"\0\0\0\1", version=2), "the peer does not speak SPDY/3"),
        (control(6, bytes(MAX_CONTROL_BYTES + 1)), "too long a SPDY control frame"),
        (control(1, b"\0\0\0\1\0\0\0\0\0"), "a SPDY frame is cut off"),
        (control(7, b"\0\0\0\1"), "a SPDY frame is cut off"),
        (control(8, b"\0\0\0\1"), "a SPDY header block is cut off"),
        (control(2, b"\0\0\0\1nonsense"), "a SPDY header block cannot be decompressed"),
    ],
)
def test_violations(data: bytes, reason: str) -> None:
    decoder = FrameDecoder()
    frames = decoder.receive_data(encoded([Ping(1)]) + data)
    assert frames == [Ping(1)]
    assert decoder.error is not None
    assert decoder.error.message == reason
    assert decoder.receive_data(encoded([Ping(3)])) == []
