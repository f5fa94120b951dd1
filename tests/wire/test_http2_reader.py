"""Finding frames: where they end however they come, their shapes, and the limits of a reader."""

from __future__ import annotations

import random

import pytest

from pycrictl.wire import http2, http2_reader, limits
from pycrictl.wire.http2 import ErrorCode, Http2Error
from pycrictl.wire.http2_reader import FrameReader
from tests.frames import Unit, units

PING = http2.frame(http2.PING, 0, 0, bytes(8))


def read(reader: FrameReader, data: bytes, now: float = 0.0) -> list[Unit]:
    """Feed a reader and take all that is complete."""
    reader.feed(data, now)
    found = []
    is_behind = True
    while is_behind:
        buffer = reader.buffer
        for kind, flags, stream_id, pos, stop in reader.units():
            found.append(Unit(kind, flags, stream_id, buffer[pos:stop]))
        is_behind = reader.is_behind
    return found


def begun() -> FrameReader:
    """A reader that has had the first SETTINGS."""
    reader = FrameReader()
    assert len(read(reader, http2.settings())) == 1
    return reader


def refused(data: bytes, *, reader: FrameReader | None = None, now: float = 0.0) -> ErrorCode:
    with pytest.raises(Http2Error) as caught:
        read(reader or begun(), data, now)
    return caught.value.code


FRAMES = b"".join(
    [
        http2.settings({4: 65536}),
        http2.header_frames(1, bytes(40_000), end_stream=False),
        http2.frame(http2.DATA, 0, 1, b"abc"),
        PING,
        http2.header_frames(3, b"x", end_stream=True),
        http2.window_update(0, 1),
        http2.frame(0xF0, 0xFF, 5, b"extension"),
        http2.frame(http2.DATA, http2.END_STREAM, 1),
        http2.goaway(0, 0),
    ]
)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 9), (1, 20), (5000, 20_000), (10**6, 10**6)])
def test_pieces_make_no_difference(sizes: tuple[int, int]) -> None:
    reader, pieces = FrameReader(), random.Random(1)
    found = []
    pos = 0
    while pos < len(FRAMES):
        size = pieces.randint(*sizes)
        found += read(reader, FRAMES[pos : pos + size])
        pos += size
    assert found == list(units(FRAMES))
    assert b"".join(unit.raw for unit in found) == FRAMES


def test_preface() -> None:
    reader = FrameReader("client")
    hello = http2.PREFACE + http2.settings()
    for octet in hello[: len(http2.PREFACE) - 1]:
        reader.feed(bytes([octet]), 0.0)
        assert not reader.skip(http2.PREFACE)
    reader.feed(hello[len(http2.PREFACE) - 1 :], 0.0)
    assert reader.skip(http2.PREFACE)
    assert read(reader, b"") == list(units(http2.settings()))
    reader = FrameReader("client")
    reader.feed(b"PRI * HTTP/1.1\r\n", 0.0)
    with pytest.raises(Http2Error, match="the client's preface is wrong"):
        reader.skip(http2.PREFACE)


def test_who_breaks_off_finds_the_frame_again() -> None:
    reader = begun()
    reader.feed(PING + http2.frame(http2.DATA, 0, 1, b"x"), 0.0)
    for kind, *_ in reader.units():
        if kind == http2.DATA:
            break
    assert [unit.kind for unit in read(reader, PING)] == [http2.DATA, http2.PING]


# Shapes


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (http2.frame(http2.DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
        (http2.frame(http2.DATA, 0, 0), ErrorCode.PROTOCOL_ERROR),
        (http2.frame(http2.HEADERS, http2.END_HEADERS, 0, b"\x82"), ErrorCode.PROTOCOL_ERROR),
        (http2.frame(http2.PRIORITY, 0, 0, bytes(5)), ErrorCode.PROTOCOL_ERROR),
        (http2.frame(http2.PRIORITY, 0, 1, bytes(4)), ErrorCode.FRAME_SIZE_ERROR),
        (http2.frame(http2.PRIORITY, 0, 1, bytes(6)), ErrorCode.FRAME_SIZE_ERROR),
        (http2.frame(http2.RST_STREAM, 0, 0, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (http2.frame(http2.RST_STREAM, 0, 1, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
        (http2.frame(http2.SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
        (http2.frame(http2.SETTINGS, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
        (http2.frame(http2.SETTINGS, http2.ACK, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR),
        (http2.frame(http2.PUSH_PROMISE, 4, 0, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (http2.frame(http2.PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (http2.frame(http2.PING, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
        (http2.frame(http2.GOAWAY, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (http2.frame(http2.GOAWAY, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
        (http2.frame(http2.WINDOW_UPDATE, 0, 0, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
        (http2.frame(http2.WINDOW_UPDATE, 0, 1, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
        (http2.frame(http2.CONTINUATION, http2.END_HEADERS, 1), ErrorCode.PROTOCOL_ERROR),
        # Their heads are enough.
        (b"\0\x40\1\0\0\0\0\0\1", ErrorCode.FRAME_SIZE_ERROR),
        (http2.frame(http2.HEADERS, 0, 1) + b"\0\x40\1\x09\0\0\0\0\1", ErrorCode.FRAME_SIZE_ERROR),
    ],
)
def test_frames_of_a_wrong_shape(frame: bytes, code: ErrorCode) -> None:
    assert refused(frame) is code


def test_settings_are_limited() -> None:
    most = http2.settings(dict.fromkeys(range(100, 100 + limits.SETTINGS_IN_FRAME), 1))
    assert len(read(begun(), most)) == 1
    more = http2.settings(dict.fromkeys(range(101 + limits.SETTINGS_IN_FRAME), 1))
    assert refused(more) is ErrorCode.ENHANCE_YOUR_CALM


def test_largest_frame() -> None:
    frame = http2.frame(http2.DATA, 0, 1, bytes(limits.FRAME_BYTES))
    assert [len(unit.payload) for unit in read(begun(), frame)] == [16384]


@pytest.mark.parametrize(
    "next_frame",
    [
        http2.frame(http2.DATA, 0, 1),
        http2.frame(http2.CONTINUATION, http2.END_HEADERS, 3),
        http2.frame(http2.HEADERS, http2.END_HEADERS, 1),
    ],
)
def test_header_block_must_not_be_interrupted(next_frame: bytes) -> None:
    assert refused(http2.frame(http2.HEADERS, 0, 1) + next_frame) is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("head", "is_right"),
    [
        (http2.settings(), True),
        (http2.settings({4: 1}), True),
        (http2.frame(http2.SETTINGS, http2.ACK), False),
        (http2.frame(http2.SETTINGS, 0, 1), False),
        (http2.frame(http2.PING, 0, 0, bytes(8)), False),
        (b"HTTP/1.1 200 OK", False),
    ],
)
def test_first_frame(head: bytes, is_right: bool) -> None:
    if is_right:
        assert len(read(FrameReader(), head)) == 1
        return
    assert refused(head, reader=FrameReader()) is ErrorCode.PROTOCOL_ERROR


# Limits


def test_header_block_is_limited_in_bytes() -> None:
    fragment = bytes(limits.FRAME_BYTES)
    frames = http2.frame(http2.HEADERS, 0, 1, fragment)
    assert read(begun(), frames + http2.frame(http2.CONTINUATION, 0, 1, fragment) * 3) == []
    more = http2.frame(http2.CONTINUATION, 0, 1, fragment) * 4
    assert refused(frames + more) is ErrorCode.ENHANCE_YOUR_CALM


def test_header_block_is_limited_in_frames() -> None:
    reader = begun()
    empty = http2.frame(http2.CONTINUATION, 0, 1)
    assert read(reader, http2.frame(http2.HEADERS, 0, 1)) == []
    for _ in range(limits.HEADER_BLOCK_FRAMES - 1):
        assert read(reader, empty) == []
    assert refused(empty, reader=reader) is ErrorCode.ENHANCE_YOUR_CALM


def test_header_block_in_as_many_frames_as_may_be() -> None:
    frames = http2.frame(http2.HEADERS, 0, 1) + (
        http2.frame(http2.CONTINUATION, 0, 1) * (limits.HEADER_BLOCK_FRAMES - 2)
        + http2.frame(http2.CONTINUATION, http2.END_HEADERS, 1)
    )
    assert [unit.raw for unit in read(begun(), frames)] == [frames]


@pytest.mark.parametrize(
    "frame",
    [
        PING,
        http2.frame(http2.PING, http2.ACK, 0, bytes(8)),
        http2.settings(),
        http2.frame(http2.SETTINGS, http2.ACK),
        http2.frame(http2.DATA, 0, 1),
        http2.frame(http2.PRIORITY, 0, 1, bytes(5)),
        http2.window_update(0, 1),
        http2.rst_stream(1, 8),
        http2.frame(0xF0, 0, 1, b"extension"),
    ],
    ids=["ping", "pong", "settings", "ack", "data", "priority", "window", "reset", "unknown"],
)
def test_frames_that_carry_nothing_are_limited(frame: bytes) -> None:
    reader = begun()
    reader.idle = limits.Allowance(10, 1.0)
    assert len(read(reader, frame * 10)) == 10
    assert refused(frame, reader=reader) is ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize(
    "frame",
    [
        http2.frame(http2.DATA, 0, 1, b"x"),
        http2.frame(http2.DATA, http2.END_STREAM, 1),
        http2.header_frames(1, b"\x82", end_stream=False),
    ],
    ids=["data", "end", "headers"],
)
def test_frames_that_carry_something_are_not(frame: bytes) -> None:
    reader = begun()
    assert len(read(reader, frame * 5000)) == 5000
    # Each earns some of the others, so a client that acknowledges all it gets is never stopped.
    for _ in range(3000):
        assert len(read(reader, frame + http2.window_update(0, 1) * 3 + PING)) == 5


def test_keepalives_go_on_for_ever() -> None:
    reader = begun()
    assert all(read(reader, PING, now=10.0 * count) for count in range(5000))


def test_work_is_done_in_turns() -> None:
    """Whatever comes at once, others are served after so many frames."""
    reader = FrameReader("client", 100)
    frames = http2.settings() + http2.frame(http2.DATA, 0, 1, b"x") * 1000
    reader.feed(frames, 0.0)
    turns = []
    while True:
        turns.append(len(list(reader.units())))
        if not reader.is_behind:
            break
    assert sum(turns) == 1001
    assert max(turns) <= 100
    reader.feed(http2.header_frames(1, b"\x82", end_stream=True) * 100, 0.0)
    assert len(list(reader.units())) == -(-100 // (limits.TURN_PER_CALL + 1))


@pytest.mark.parametrize("piece_bytes", [1, 10, 1000])
def test_work_is_linear_in_the_bytes(piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dribbled CONTINUATION frames must not make the block be looked at again from its start."""
    heads = 0
    unpack = http2_reader._HEAD.unpack_from

    class Counting:
        @staticmethod
        def unpack_from(buffer: bytes, pos: int) -> tuple[int, int, int]:
            nonlocal heads
            heads += 1
            found: tuple[int, int, int] = unpack(buffer, pos)
            return found

    monkeypatch.setattr(http2_reader, "_HEAD", Counting)
    frames = http2.frame(http2.HEADERS, 0, 1) + (
        http2.frame(http2.CONTINUATION, 0, 1, bytes(900)) * (limits.HEADER_BLOCK_FRAMES - 2)
        + http2.frame(http2.CONTINUATION, http2.END_HEADERS, 1)
    )
    reader = begun()
    heads = 0
    found = []
    for pos in range(0, len(frames), piece_bytes):
        found += read(reader, frames[pos : pos + piece_bytes])
    assert len(found) == 1
    # Each head once, and that of the unit and of the incomplete frame when more has come.
    assert heads <= 5 * limits.HEADER_BLOCK_FRAMES
