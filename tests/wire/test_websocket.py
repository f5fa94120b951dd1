"""Both sides of a WebSocket, against frames made and read by hand."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.errors import RemoteProtocolError, StreamError
from pycrictl.wire import limits
from pycrictl.wire.websocket import Side, WebSocket, mask
from tests.wire.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    close_frame,
    frame,
    masked,
    read_frames,
)

KEYS = {Side.CLIENT: b"", Side.SERVER: b"\x01\x82\xff\x04"}
"""What the peer of each side masks its frames with."""

both_sides = pytest.mark.parametrize("side", Side)


def fed(*pieces: bytes, side: Side = Side.CLIENT) -> WebSocket:
    core = WebSocket(side)
    for piece in pieces:
        core.receive_data(piece)
    return core


def messages(core: WebSocket) -> list[tuple[int, bytes]]:
    """The messages that ended: channel and content."""
    found = []
    content = bytearray()
    for piece in core.pieces_received():
        content += piece.data
        if piece.is_last:
            found.append((piece.channel, bytes(content)))
            content.clear()
    return found


def sent(core: WebSocket, side: Side = Side.CLIENT) -> list[tuple[int, bytes]]:
    return read_frames(core.data_to_send(), is_masked=side is Side.CLIENT)


# Masks. The example is that of RFC 6455, 5.7.


def test_the_mask_of_the_standard() -> None:
    assert mask(b"Hello", bytes.fromhex("37fa213d")) == bytes.fromhex("7f9f4d5158")


@given(payload=st.binary(max_size=20), key=st.binary(min_size=4, max_size=4))
def test_masking_twice_changes_nothing(payload: bytes, key: bytes) -> None:
    assert mask(payload, key) == masked(payload, key)
    assert mask(mask(payload, key), key) == payload


def test_the_mask_of_what_is_long() -> None:
    payload = bytes(range(256)) * 300 + b"abc"
    assert mask(memoryview(payload), b"abcd") == masked(payload, b"abcd")


# Sending


@both_sides
@pytest.mark.parametrize("size", [0, 1, 124, 125, 65534, 65535])
def test_messages_are_sent_in_one_frame(side: Side, size: int) -> None:
    core = WebSocket(side)
    core.send(7, b"x" * size)
    assert sent(core, side) == [(BINARY, b"\x07" + b"x" * size)]
    assert core.data_to_send() == []


def test_each_frame_of_a_client_has_a_key_of_its_own() -> None:
    core = WebSocket(Side.CLIENT)
    for _ in range(10):
        core.send(0, b"")
    assert len({bytes(head)[2:6] for head in core.data_to_send()}) == 10


@pytest.mark.parametrize(
    ("core", "head"),
    [
        (WebSocket(Side.SERVER), b"\x82\x7e\x10\x01\x01"),
        (WebSocket(Side.CLIENT, is_masking=False), b"\x82\xfe\x10\x01\0\0\0\0\x01"),
    ],
)
def test_content_that_is_not_masked_is_sent_as_it_is(core: WebSocket, head: bytes) -> None:
    content = memoryview(bytes(4096))
    core.send(1, content)
    first, second = core.data_to_send()
    assert first == head
    assert second is content


def test_farewell_is_said_once_and_ends_the_sending() -> None:
    core = WebSocket(Side.CLIENT)
    core.close()
    core.close(1001)
    core.send(0, b"late")
    core.receive_data(frame(PING, b"x"))
    assert sent(core) == [(CLOSE, b"\x03\xe8")]
    assert not core.is_over  # the peer may have more to say
    core.receive_data(frame(BINARY, b"\x01a") + close_frame(1000))
    assert messages(core) == [(1, b"a")]
    assert core.is_over
    assert core.data_to_send() == []


def test_nothing_is_sent_after_the_peers_farewell() -> None:
    core = fed(frame(PING), close_frame(1000))
    core.send(0, b"late")
    assert sent(core) == [(CLOSE, b"\x03\xe8")]


@both_sides
def test_only_the_latest_ping_is_answered(side: Side) -> None:
    key = KEYS[side]
    core = fed(frame(PING, b"1", key=key) + frame(PING, b"2", key=key), side=side)
    assert sent(core, side) == [(PONG, b"2")]
    core.receive_data(frame(PING, b"3", key=key))
    assert sent(core, side) == [(PONG, b"3")]


# Receiving


def stream(key: bytes, *, long: int = 70_001) -> bytes:
    return (
        frame(BINARY, b"\x01" + bytes(range(256)), key=key)
        + frame(BINARY, b"\x01", key=key)
        + frame(BINARY, key=key)
        + frame(BINARY, fin=False, key=key)
        + frame(PING, b"in between", key=key)
        + frame(CONTINUATION, b"\x02" + b"a" * 200, fin=False, key=key)
        + frame(CONTINUATION, b"b" * long, key=key)
        + frame(PONG, b"unasked", key=key)
        + frame(BINARY, fin=False, key=key)
        + frame(CONTINUATION, b"\xffafter nothing", key=key)
        + frame(BINARY, b"\x00\xff", fin=False, key=key)
        + frame(CONTINUATION, key=key)
        + close_frame(1000, b"bye", key=key)
    )


MESSAGES = [
    (1, bytes(range(256))),
    (1, b""),
    (2, b"a" * 200 + b"b" * 70_001),
    (255, b"after nothing"),
    (0, b"\xff"),
]


@both_sides
@pytest.mark.parametrize("size", [1, 2, 3, 7, 100, 4096, 1 << 20])
def test_pieces_of_any_size(side: Side, size: int) -> None:
    data = stream(KEYS[side])
    core = fed(*(data[start : start + size] for start in range(0, len(data), size)), side=side)
    assert messages(core) == MESSAGES
    assert core.pieces_received() == []
    assert sent(core, side) == [(CLOSE, b"\x03\xe8bye")]
    assert core.is_over
    assert core.error is None


@both_sides
def test_feeding_no_more_than_is_wanted(side: Side) -> None:
    """All content comes out as it was fed, in one piece for each frame."""
    core, data = WebSocket(side), stream(KEYS[side])
    contents = []
    while not core.is_over:
        assert core.bytes_wanted <= len(data)
        wanted, data = data[: core.bytes_wanted], data[core.bytes_wanted :]
        core.receive_data(wanted)
        for piece in core.pieces_received():
            if piece.data:
                contents.append(bytes(piece.data))
                assert len(wanted) == len(piece.data)
    assert data == b""
    assert [len(content) for content in contents] == [256, 200, 70_001, 13, 1]


def test_content_that_is_not_masked_is_not_copied() -> None:
    data = frame(BINARY, b"\x01" + bytes(100_000)) + frame(BINARY, b"\x02abc", fin=False)
    pieces = fed(data).pieces_received()
    assert [piece.data.obj is data for piece in pieces] == [True, True]
    assert [piece.is_last for piece in pieces] == [True, False]


def test_a_message_of_any_length_comes_as_it_is_fed() -> None:
    core = fed(frame(BINARY, b"\x05", length=1 << 62), bytes(1000))
    core.receive_data(bytes(2000))
    assert [len(piece.data) for piece in core.pieces_received()] == [1000, 2000]
    assert core.bytes_wanted == (1 << 62) - 3001


def test_nothing_comes_after_the_end() -> None:
    core = fed(frame(BINARY, b"\1a") + frame(CLOSE) + frame(BINARY, b"\1b"), frame(PING))
    core.receive_eof()
    assert messages(core) == [(1, b"a")]
    assert sent(core) == [(CLOSE, b"")]
    assert core.error is None


@pytest.mark.parametrize(
    "pieces", [[], [b"\x82"], [frame(BINARY, length=9)], [frame(BINARY, b"\1a")]]
)
def test_an_end_without_a_close(pieces: list[bytes]) -> None:
    core = fed(*pieces)
    core.receive_eof()
    assert core.is_over
    assert type(core.error) is StreamError
    assert str(core.error) == "the peer dropped the connection without closing the stream"
    assert core.data_to_send() == []


@pytest.mark.parametrize("code", [1001, 1002, 1003, 1007, 1014, 3000, 4999])
def test_a_close_with_a_failure(code: int) -> None:
    core = fed(close_frame(code), b"more")
    assert type(core.error) is StreamError
    assert str(core.error) == f"the peer closed the stream with status {code}"
    assert sent(core) == [(CLOSE, struct.pack("!H", code))]


def test_the_reason_of_a_close() -> None:
    core = WebSocket(Side.CLIENT, peer="it")
    core.receive_data(close_frame(1011, b"\x1b[2Jsorry"))
    assert str(core.error) == "it closed the stream with status 1011: '\\x1b[2Jsorry'"


def broken(*pieces: bytes, side: Side) -> tuple[str, int]:
    """What is said of pieces that come after a good message, and the status of our close."""
    key = KEYS[side]
    good, late = (frame(BINARY, b"\0" + word, key=key) for word in (b"good", b"late"))
    core = fed(good, *pieces, late, side=side)
    assert messages(core) == [(0, b"good")]
    assert core.is_over
    assert type(core.error) is RemoteProtocolError
    opcode, status = sent(core, side)[-1]
    assert opcode == CLOSE
    before, _, problem = str(core.error).partition(": ")
    assert before == "the peer broke the WebSocket protocol"
    return problem, int.from_bytes(status, "big")


@both_sides
@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([(0xC2, b"a")], "a reserved bit is set"),
        ([(0x83, b"")], "unknown opcode"),
        ([(0x8B, b"")], "unknown opcode"),
        ([(0x80, b"a")], "a fragment of another message"),
        ([(BINARY, b""), (0x82, b"b")], "a fragment of another message"),
        ([(PING, b"a")], "a control frame in fragments"),
        ([(0x89, b"a" * 126)], "too long a control frame"),
        ([(0x88, b"\x03")], "invalid status of a close"),
        ([(0x88, b"\x03\xe7")], "invalid status of a close"),
        ([(0x88, b"\x03\xec")], "invalid status of a close"),
        ([(0x88, b"\x03\xed")], "invalid status of a close"),
        ([(0x88, b"\x03\xee")], "invalid status of a close"),
        ([(0x88, b"\x03\xf7")], "invalid status of a close"),
        ([(0x88, b"\x0b\xb7")], "invalid status of a close"),
        ([(0x88, b"\x13\x88")], "invalid status of a close"),
        ([(BINARY, b""), (0x88, b"\x03\xe8")], "a close within a message"),
    ],
)
def test_broken_frames(side: Side, parts: list[tuple[int, bytes]], problem: str) -> None:
    made = [
        bytes((first,)) + frame(BINARY, payload, key=KEYS[side])[1:] for first, payload in parts
    ]
    assert broken(*made, side=side) == (problem, 1002)


def test_frames_with_the_other_sides_mask() -> None:
    for side, other in ((Side.CLIENT, Side.SERVER), (Side.SERVER, Side.CLIENT)):
        for opcode in (BINARY, CLOSE, PING):
            problem, status = broken(frame(opcode, b"\3\xe8", key=KEYS[other]), side=side)
            assert "masked" in problem
            assert status == 1002


@both_sides
def test_text_is_not_taken(side: Side) -> None:
    key = KEYS[side]
    assert broken(frame(TEXT, b"a", key=key), side=side) == ("it sent text", 1003)
    assert broken(frame(TEXT, b"a", fin=False, key=key), side=side) == ("it sent text", 1003)


@both_sides
def test_the_reason_of_a_close_must_be_text(side: Side) -> None:
    problem, status = broken(close_frame(1000, b"\xff", key=KEYS[side]), side=side)
    assert (problem, status) == ("the reason of a close is not UTF-8", 1007)


@pytest.mark.parametrize(
    "head",
    [
        *(b"\x82\x7e\x00\x00", b"\x82\x7e\x00\x7d", b"\x82\x7f" + bytes(8)),
        *(b"\x82\x7f" + (65535).to_bytes(8, "big"), b"\x82\x7f\x80" + bytes(7)),
    ],
)
def test_lengths_have_one_form(head: bytes) -> None:
    problem, status = broken(head + b"\0", side=Side.CLIENT)
    assert (problem, status) == ("the length of a frame is not in its shortest form", 1002)


@both_sides
@pytest.mark.parametrize(
    ("opcode", "payload"), [(BINARY, b""), (BINARY, b"\x01"), (PING, b"x"), (PONG, b"")]
)
def test_frames_without_content_are_limited(side: Side, opcode: int, payload: bytes) -> None:
    """In a row, and each second."""
    empty = frame(opcode, payload, key=KEYS[side])
    content = frame(BINARY, b"\0x", key=KEYS[side])
    count = limits.STREAM_IDLE_FRAMES
    core = fed(empty * count, content, empty * count, side=side)
    assert not core.is_over
    core.receive_data(empty)
    assert str(core.error).endswith("it sends too many empty messages")
    core = fed(empty * count, side=side)
    core.receive_data(empty * limits.STREAM_IDLE_FRAMES_PER_S, 1.0)
    assert not core.is_over
    core.receive_data(empty, 1.0)
    assert core.is_over


@both_sides
@pytest.mark.parametrize("interval_s", [0.2, 1.0, 30.0])
def test_session_with_nothing_but_pings_lives(side: Side, interval_s: float) -> None:
    ping = frame(PING, b"still there?", key=KEYS[side])
    core = WebSocket(side)
    for number in range(10_000):
        core.receive_data(ping, number * interval_s)
        assert sent(core, side) == [(PONG, b"still there?")]
    assert not core.is_over


# Anything at all


@both_sides
@given(pieces=st.lists(st.binary(max_size=40), max_size=20))
def test_random_bytes(side: Side, pieces: list[bytes]) -> None:
    core = fed(*pieces, side=side)
    core.receive_eof()
    assert core.is_over
    assert sum(len(content) for _, content in messages(core)) <= sum(map(len, pieces))
    assert all(opcode in (CLOSE, PONG) for opcode, _ in sent(core, side))


@both_sides
@given(
    position=st.integers(0, len(stream(b"", long=300)) - 1),
    value=st.integers(0, 255),
    size=st.integers(1, 300),
)
def test_one_byte_of_a_stream_is_another(side: Side, position: int, value: int, size: int) -> None:
    data = stream(KEYS[side], long=300)
    data = data[:position] + bytes((value,)) + data[position + 1 :]
    core = fed(*(data[start : start + size] for start in range(0, len(data), size)), side=side)
    core.receive_eof()
    assert core.is_over
    assert sum(len(content) for _, content in messages(core)) <= len(data)


@both_sides
@given(contents=st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=300)), max_size=10))
def test_what_one_side_sends_the_other_receives(
    side: Side, contents: list[tuple[int, bytes]]
) -> None:
    core = WebSocket(side)
    other = WebSocket(Side.SERVER if side is Side.CLIENT else Side.CLIENT)
    for channel, content in contents:
        core.send(channel, content)
    core.close()
    other.receive_data(b"".join(core.data_to_send()))
    assert messages(other) == contents
    assert other.is_over
    core.receive_data(b"".join(other.data_to_send()))
    assert core.is_over
    assert (core.error, other.error) == (None, None)
