from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.errors import RemoteProtocolError, StreamError
from pycrictl.wire.websocket import WebSocket
from pycrictl.wire.websocket_frames import xor_mask

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
LIMIT = 100_000
KEY = b"\x01\x02\x03\x04"


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True, length: int = -1) -> bytes:
    """A server's frame; ``length`` may lie about the payload."""
    length = len(payload) if length < 0 else length
    first = opcode | (0x80 if fin else 0)
    if length < 126:
        return struct.pack("!BB", first, length) + payload
    if length < 1 << 16:
        return struct.pack("!BBH", first, 126, length) + payload
    return struct.pack("!BBQ", first, 127, length) + payload


def close_frame(code: int, reason: bytes = b"") -> bytes:
    return frame(CLOSE, struct.pack("!H", code) + reason)


def new() -> WebSocket:
    return WebSocket(new_key=lambda: KEY, max_message_bytes=LIMIT)


def fed(*pieces: bytes) -> WebSocket:
    core = new()
    for piece in pieces:
        core.receive_data(piece)
    return core


def sent(core: WebSocket) -> list[tuple[int, bytes]]:
    """What a server reads of what is to be sent: opcodes and payloads."""
    data = b"".join(core.data_to_send())
    frames = []
    while data:
        first, second = data[:2]
        assert first & 0xF0 == 0x80, "one frame for each message, without extensions"
        assert second & 0x80, "a client must mask"
        length, head = second & 0x7F, 2
        if length == 126:
            length, head = struct.unpack("!H", data[2:4])[0], 4
        elif length == 127:
            length, head = struct.unpack("!Q", data[2:10])[0], 10
        key, data = data[head : head + 4], data[head + 4 :]
        payload, data = data[:length], data[length:]
        frames.append((first & 0xF, bytes(b ^ k for b, k in zip(payload, itertools.cycle(key)))))
    return frames


# Masks. The example is that of RFC 6455, 5.7.


def test_the_mask_of_the_standard() -> None:
    assert xor_mask(b"Hello", bytes.fromhex("37fa213d")) == bytes.fromhex("7f9f4d5158")


@given(payload=st.binary(max_size=20), key=st.binary(min_size=4, max_size=4))
def test_masking_twice_changes_nothing(payload: bytes, key: bytes) -> None:
    masked = xor_mask(payload, key)
    assert masked == bytes(b ^ key[index % 4] for index, b in enumerate(payload))
    assert xor_mask(masked, key) == payload


# Sending


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536])
def test_messages_are_sent_in_one_frame(size: int) -> None:
    core = new()
    core.send_message(b"x" * size)
    assert sent(core) == [(BINARY, b"x" * size)]
    assert core.data_to_send() == []


def test_each_frame_has_a_key_of_its_own() -> None:
    keys = iter((b"abcd", b"efgh"))
    core = WebSocket(new_key=lambda: next(keys), max_message_bytes=LIMIT)
    core.send_message(b"\0\0\0\0")
    core.send_message(b"\0\0\0\0")
    assert [piece[-4:] for piece in core.data_to_send()] == [b"abcd", b"efgh"]


def test_the_mask_can_be_given() -> None:
    core = WebSocket(new_key=lambda: KEY, mask=lambda data, key: data[::-1], max_message_bytes=9)
    core.send_message(b"abc")
    assert core.data_to_send() == [b"\x82\x83" + KEY + b"cba"]


def test_farewell_is_said_once_and_ends_the_sending() -> None:
    core = new()
    core.close()
    core.close(1001)
    core.send_message(b"late")
    core.receive_data(frame(PING, b"x"))
    assert sent(core) == [(CLOSE, b"\x03\xe8")]
    assert not core.is_over  # the peer may have more to say
    core.receive_data(frame(TEXT, b"a") + close_frame(1000))
    assert core.messages_received() == [b"a"]
    assert core.is_over
    assert core.data_to_send() == []


def test_nothing_is_sent_after_the_peers_farewell() -> None:
    core = fed(close_frame(1000))
    core.send_message(b"late")
    assert sent(core) == [(CLOSE, b"\x03\xe8")]


# Receiving

STREAM = (
    frame(TEXT, "ü".encode())
    + frame(BINARY, bytes(range(256)))
    + frame(BINARY)
    + frame(TEXT, fin=False)
    + frame(PING, b"in between")
    + frame(CONTINUATION, b"a" * 200, fin=False)
    + frame(CONTINUATION, b"b" * 70_000)
    + frame(PONG, b"unasked")
    + frame(BINARY, fin=False)
    + frame(CONTINUATION, b"after nothing")
    + frame(BINARY, b"\xff", fin=False)
    + frame(CONTINUATION)
    + close_frame(1000, b"bye")
)
MESSAGES = [
    "ü".encode(),
    bytes(range(256)),
    b"",
    b"a" * 200 + b"b" * 70_000,
    b"after nothing",
    b"\xff",
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100, 4096, len(STREAM)])
def test_pieces_of_any_size(size: int) -> None:
    core = fed(*(STREAM[start : start + size] for start in range(0, len(STREAM), size)))
    assert core.messages_received() == MESSAGES
    assert core.messages_received() == []
    assert sent(core) == [(PONG, b"in between"), (CLOSE, b"\x03\xe8bye")]
    assert core.is_over
    assert core.error is None


def test_nothing_comes_after_the_end() -> None:
    core = fed(frame(TEXT, b"a") + frame(CLOSE) + frame(TEXT, b"b"), frame(PING))
    core.receive_eof()
    assert core.messages_received() == [b"a"]
    assert sent(core) == [(CLOSE, b"")]
    assert core.error is None


@pytest.mark.parametrize("pieces", [[], [b"\x81"], [frame(TEXT, length=9)], [frame(TEXT, b"a")]])
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
    core = WebSocket(new_key=lambda: KEY, max_message_bytes=LIMIT, peer="it")
    core.receive_data(close_frame(1011, b"\x1b[2Jsorry"))
    assert str(core.error) == "it closed the stream with status 1011: '\\x1b[2Jsorry'"


@pytest.mark.parametrize(
    ("pieces", "problem"),
    [
        ([b"\x81\x81\x00\x00\x00\x00a"], "a server's frame is masked"),
        ([b"\xc1\x01a"], "a reserved bit is set"),
        ([b"\x83\x00"], "unknown opcode"),
        ([b"\x8b\x00"], "unknown opcode"),
        ([frame(CONTINUATION, b"a")], "a fragment of another message"),
        (
            [frame(TEXT, b"a", fin=False), frame(TEXT, b"b")],
            "a fragment of another message",
        ),
        ([frame(PING, b"a", fin=False)], "a control frame in fragments"),
        ([frame(PING, b"a" * 126)], "too long a control frame"),
        ([frame(CLOSE, b"\x03")], "invalid status of a close"),
        ([close_frame(999)], "invalid status of a close"),
        ([close_frame(1004)], "invalid status of a close"),
        ([close_frame(1005)], "invalid status of a close"),
        ([close_frame(1006)], "invalid status of a close"),
        ([close_frame(1015)], "invalid status of a close"),
        ([close_frame(2999)], "invalid status of a close"),
        ([close_frame(5000)], "invalid status of a close"),
        ([frame(TEXT, b"a", fin=False), close_frame(1000)], "a close within a message"),
    ],
)
def test_broken_frames(pieces: list[bytes], problem: str) -> None:
    core = fed(frame(TEXT, b"good"), *pieces, frame(TEXT, b"late"))
    assert core.messages_received() == [b"good"]
    assert core.is_over
    assert type(core.error) is RemoteProtocolError
    assert str(core.error) == f"the peer broke the WebSocket protocol: {problem}"
    assert sent(core) == [(CLOSE, b"\x03\xea")]  # 1002


def test_a_reason_that_is_no_text() -> None:
    core = fed(close_frame(1000, b"\xff"))
    assert type(core.error) is RemoteProtocolError
    assert sent(core) == [(CLOSE, b"\x03\xef")]  # 1007


@pytest.mark.parametrize(
    "pieces",
    [
        [frame(BINARY, length=LIMIT + 1)],
        [frame(BINARY, length=2**63)],
        [frame(BINARY, b"x" * LIMIT, fin=False), frame(CONTINUATION, b"x")],
    ],
)
def test_too_long_a_message(pieces: list[bytes]) -> None:
    core = fed(*pieces)
    assert type(core.error) is RemoteProtocolError
    assert str(core.error) == f"the peer sent a message of more than {LIMIT} bytes"
    assert sent(core) == [(CLOSE, b"\x03\xf1")]  # 1009
    assert core.messages_received() == []


def test_the_longest_message_with_a_ping_within() -> None:
    half = b"x" * (LIMIT // 2)
    core = fed(frame(BINARY, half, fin=False), frame(PING, b"1"), frame(CONTINUATION, half))
    assert core.messages_received() == [half * 2]
    assert sent(core) == [(PONG, b"1")]
    assert not core.is_over


# Anything at all


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_random_bytes(pieces: list[bytes]) -> None:
    core = fed(*pieces)
    core.receive_eof()
    assert core.is_over
    assert sum(map(len, core.messages_received())) <= sum(map(len, pieces))
    assert all(opcode in (CLOSE, PONG) for opcode, _ in sent(core))


@given(
    position=st.integers(0, len(STREAM) - 1),
    value=st.integers(0, 255),
    size=st.integers(1, 300),
)
def test_one_byte_of_a_stream_is_another(position: int, value: int, size: int) -> None:
    data = STREAM[:position] + bytes((value,)) + STREAM[position + 1 :]
    core = fed(*(data[start : start + size] for start in range(0, len(data), size)))
    core.receive_eof()
    assert core.is_over
    assert sum(map(len, core.messages_received())) <= len(data)
