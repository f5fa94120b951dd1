"""Our part of handling WebSocket messages and handshakes; the library handles the frames."""

from __future__ import annotations

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.datastructures import Headers
from websockets.http11 import Response

from pycrictl.base import limits
from pycrictl.base.errors import RemoteProtocolError, StreamError
from pycrictl.streams.wire.websocket import (
    CLIENT,
    SERVER,
    ClientHandshake,
    Messages,
    Side,
)
from tests.streams.wire.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    close_frame,
    frame,
    read_frames,
)

KEYS = {CLIENT: b"", SERVER: b"\x01\x82\xff\x04"}
"""The masking key of each side's peer."""

both_sides = pytest.mark.parametrize("side", Side)


def fed(*pieces: bytes, side: Side = CLIENT, takes_text: bool = False) -> Messages:
    """Return a core fed with the pieces; feeding the whole and reading by frames must agree."""
    core, whole, read = (Messages(side, takes_text=takes_text) for _ in range(3))
    for piece in pieces:
        core.receive_data(piece)
    whole.receive_data(b"".join(pieces))
    whole.receive_eof()
    source = io.BytesIO(b"".join(pieces))

    def exactly(count: int) -> bytes:
        data = source.read(count)
        if len(data) < count:
            raise EOFError
        return data

    while not read.is_over:
        read.read_frame(exactly)
    assert outcome(read, side) == outcome(whole, side)
    return core


def outcome(core: Messages, side: Side) -> tuple[object, ...]:
    error = core.error
    answers = [(opcode, payload[:2]) for opcode, payload in sent(core, side)]
    return taken(core), type(error), str(error), core.is_over, answers


def taken(core: Messages) -> list[bytes]:
    return [bytes(message) for message in core.messages_received()]


def sent(core: Messages, side: Side = CLIENT) -> list[tuple[int, bytes]]:
    return read_frames(core.data_to_send(), is_masked=side is CLIENT)


def test_farewell_is_said_once_and_ends_the_sending() -> None:
    core = Messages(CLIENT)
    core.close()
    core.close()
    core.send(b"late")
    assert sent(core) == [(CLOSE, b"\x03\xe8")]
    assert not core.is_over  # the peer may still send messages
    core.receive_data(frame(BINARY, b"a") + close_frame(1000) + frame(BINARY, b"b"))
    assert taken(core) == [b"a"]
    assert core.is_over
    assert core.data_to_send() == []


@both_sides
def test_only_the_latest_ping_is_answered(side: Side) -> None:
    key = KEYS[side]
    core = fed(frame(PING, b"1", key=key) + frame(PING, b"2", key=key), side=side)
    core.receive_data(frame(PING, b"3", key=key))
    assert sent(core, side) == [(PONG, b"3")]
    core.receive_data(frame(PING, b"4", key=key) + close_frame(1000, key=key))
    core.send(b"late")
    assert sent(core, side) == [(CLOSE, b"\x03\xe8")]


@both_sides
@pytest.mark.parametrize("size", [1, 100, 1 << 20])
def test_pieces_of_any_size(side: Side, size: int) -> None:
    key = KEYS[side]
    data = (
        frame(BINARY, b"\x01" + bytes(range(256)), key=key)
        + frame(BINARY, key=key)
        + frame(BINARY, fin=False, key=key)
        + frame(PING, b"in between", key=key)
        + frame(CONTINUATION, b"\x02" + b"a" * 200, fin=False, key=key)
        + frame(CONTINUATION, b"b" * 70_001, key=key)
        + close_frame(1000, b"bye", key=key)
    )
    core = fed(*(data[start : start + size] for start in range(0, len(data), size)), side=side)
    message = b"\x02" + b"a" * 200 + b"b" * 70_001
    assert taken(core) == [b"\x01" + bytes(range(256)), b"", message]
    assert sent(core, side) == [(CLOSE, b"\x03\xe8bye")]
    assert core.is_over
    assert core.error is None


@pytest.mark.parametrize("pieces", [[], [b"\x82"], [frame(BINARY, length=9)], [frame(BINARY)]])
def test_an_end_without_a_close(pieces: list[bytes]) -> None:
    core = fed(*pieces)
    core.receive_eof()
    assert core.is_over
    assert type(core.error) is StreamError
    assert str(core.error) == "the peer dropped the connection without closing the stream"
    assert core.data_to_send() == []


@pytest.mark.parametrize("code", [1001, 1011, 4999])
def test_a_close_with_a_failure(code: int) -> None:
    core = fed(close_frame(code, b"\x1b[2Jsorry"), b"more")
    assert type(core.error) is StreamError
    said = f"the peer closed the stream with status {code}: '\\x1b[2Jsorry'"
    assert str(core.error) == said
    assert sent(core)[0][1][:2] == struct.pack("!H", code)


@both_sides
@pytest.mark.parametrize(
    ("parts", "problem", "status"),
    [
        ([(0xC2, b"a")], "broke the WebSocket protocol: ", 1002),
        ([(0x88, b"\x03\xe8\xff")], "broke the WebSocket protocol: ", 1007),
        ([(0x81, b"a")], "broke the WebSocket protocol: it sent text", 1003),
        ([(0x82, bytes(limits.STREAM_MESSAGE_BYTES + 1))], "sent a message of more than ", 1009),
        ([(BINARY, bytes(1 << 20))] + [(0, bytes(1 << 20))] * 4, "sent a message of more", 1009),
    ],
)
def test_what_ends_it(
    side: Side, parts: list[tuple[int, bytes]], problem: str, status: int
) -> None:
    key = KEYS[side]
    made = [bytes((first,)) + frame(BINARY, data, key=key)[1:] for first, data in parts]
    good, late = (frame(BINARY, word, key=key) for word in (b"good", b"late"))
    for pieces in ((good, *made, late), (good + b"".join(made) + late,)):
        core = fed(*pieces, side=side)
        assert taken(core) == [b"good"]
        assert core.is_over
        assert type(core.error) is RemoteProtocolError
        assert str(core.error).startswith(f"the peer {problem}")
        (opcode, payload) = sent(core, side)[-1]
        assert (opcode, payload[:2]) == (CLOSE, struct.pack("!H", status))


def test_text_where_it_is_taken() -> None:
    assert taken(fed(frame(TEXT, b"a") + frame(BINARY, b"b"), takes_text=True)) == [b"a", b"b"]


@both_sides
@pytest.mark.parametrize(
    ("opcode", "payload"), [(BINARY, b""), (BINARY, b"\x01"), (PING, b"x"), (PONG, b"")]
)
def test_frames_without_content_are_limited(side: Side, opcode: int, payload: bytes) -> None:
    """Both in a row and per second."""
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
@given(pieces=st.lists(st.binary(max_size=40), max_size=20))
def test_random_bytes(side: Side, pieces: list[bytes]) -> None:
    # Text is accepted: if refused before a bad frame, the close code would depend on the reading.
    core = fed(*pieces, side=side, takes_text=True)
    core.receive_eof()
    assert core.is_over
    assert sum(map(len, taken(core))) <= sum(map(len, pieces))
    assert all(opcode in (CLOSE, PONG) for opcode, _ in sent(core, side))


@both_sides
@pytest.mark.parametrize("size", [0, 1, 125, 126, 0xFFFF, 0x10000, 0x10007])
@pytest.mark.parametrize("head", [b"", b"\x01", b"\x00" + bytes(range(12))])
def test_a_message_is_one_frame(side: Side, size: int, head: bytes) -> None:
    core = Messages(side)
    data = memoryview(bytes(range(251)) * 300)[:size]
    core.send(data, head=head)
    output = core.data_to_send()
    assert read_frames(output, is_masked=side is CLIENT) == [(BINARY, head + data)]
    assert taken(fed(b"".join(output), side=SERVER if side is CLIENT else CLIENT)) == [head + data]


# The handshake

# The example of RFC 6455, 1.3.
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="

GOOD = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Accept": ACCEPT}


def handshake(protocol: str = "") -> ClientHandshake:
    result = ClientHandshake(protocol)
    result._protocol.key = KEY
    return result


def response(**changes: str | None) -> Response:
    fields = {**GOOD, **{name.replace("_", "-"): value for name, value in changes.items()}}
    headers = Headers([(name, value) for name, value in fields.items() if value is not None])
    return Response(101, "Switching Protocols", headers)


def test_request_headers() -> None:
    assert dict(handshake().headers) == {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": KEY,
    }
    assert handshake("v4").headers[-1] == ("Sec-WebSocket-Protocol", "v4")


@pytest.mark.parametrize(
    ("answer", "protocol"),
    [
        (response(), ""),
        (response(Sec_WebSocket_Protocol=""), ""),  # sent by the runtimes' server
        (response(Sec_WebSocket_Protocol="v4"), "v4"),
        (response(Upgrade="WebSocket", Connection="keep-alive, upgrade"), ""),
    ],
)
def test_good_answers(answer: Response, protocol: str) -> None:
    handshake(protocol).check(answer)


@pytest.mark.parametrize(
    "answer",
    [
        response(Upgrade=None),
        response(Connection=None),
        response(Sec_WebSocket_Accept="x3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
        response(Sec_WebSocket_Extensions="\x9b2J"),
        response(Sec_WebSocket_Protocol="v3"),
    ],
)
def test_bad_answers(answer: Response) -> None:
    with pytest.raises(RemoteProtocolError, match="handshake is wrong: ") as caught:
        handshake("v4").check(answer)
    assert caught.value.message.isprintable()


def test_a_server_without_the_protocol() -> None:
    with pytest.raises(RemoteProtocolError, match="does not speak v4"):
        handshake("v4").check(response())
