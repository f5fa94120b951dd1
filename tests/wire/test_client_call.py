"""The client of one call, by bytes."""

from __future__ import annotations

import pytest

from pycrictl.errors import RemoteProtocolError
from pycrictl.wire import client_call, codes, grpc_http2, hpack, http2, limits
from pycrictl.wire.client_call import ClientCall
from pycrictl.wire.grpc_http2 import Answer
from pycrictl.wire.http2 import ErrorCode, Http2Error
from tests.frames import unit_end

PATH = "/test.v1.Test/Any"
ACK = http2.frame(http2.SETTINGS, http2.ACK)


def begun(message: bytes = b"abc") -> ClientCall:
    """A call that has said all it can, to a server that has begun to speak."""
    call = ClientCall(PATH, message)
    call.data_to_send()
    call.receive_data(http2.settings(), 0.0)
    assert call.data_to_send() == ACK
    return call


def headers(*more: hpack.Header, end: bool = False) -> bytes:
    block = hpack.encode([*grpc_http2.response_headers(), *more])
    return http2.header_frames(1, block, end_stream=end)


def data(content: bytes) -> bytes:
    return http2.frame(http2.DATA, 0, 1, content)


def trailers(code: int, message: str = "", *more: hpack.Header) -> bytes:
    block = hpack.encode([*grpc_http2.status_headers(code, message), *more])
    return http2.header_frames(1, block, end_stream=True)


def test_request() -> None:
    call = ClientCall(PATH, b"abc", metadata=(("x", "y"), ("x-bin", b"\xff")), timeout_s=1.5)
    sent = call.data_to_send()
    assert sent.startswith(http2.PREFACE)
    units = []
    pos = len(http2.PREFACE)
    while stop := unit_end(sent, pos):
        units.append((sent[pos + 3], sent[pos:stop]))
        pos = stop
    assert pos == len(sent)
    assert [kind for kind, _ in units] == [
        http2.SETTINGS,
        http2.WINDOW_UPDATE,
        http2.HEADERS,
        http2.DATA,
    ]
    block = units[2][1]
    assert hpack.Decoder().decode(http2.block_of(block, 0, len(block))) == [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", PATH.encode()),
        (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
        (b"grpc-timeout", b"1500000u"),
        (b"x", b"y"),
        (b"x-bin", b"/w"),
    ]
    assert units[3][1] == http2.frame(http2.DATA, http2.END_STREAM, 1, b"\0\0\0\0\3abc")
    assert call.data_to_send() == b""


def test_answer() -> None:
    call = begun()
    answer = (
        headers((b"first-bin", b"/w"))
        + data(b"\0\0\0\0\4de")
        + http2.frame(http2.PING, 0, 0, b"12345678")
        + data(b"fg")
        + trailers(0, "", (b"last", b"2"))
    )
    for octet in answer:
        assert call.answer is None
        call.receive_data(bytes([octet]), 0.0)
    assert call.answer == Answer(
        response=b"defg",
        initial_metadata=(("first-bin", b"\xff"),),
        trailing_metadata=(("last", "2"),),
    )
    assert call.data_to_send() == http2.frame(http2.PING, http2.ACK, 0, b"12345678")


@pytest.mark.parametrize("has_headers", [True, False])
def test_error(has_headers: bool) -> None:
    call = begun()
    details = (b"grpc-status-details-bin", b"AAE")
    if has_headers:
        call.receive_data(headers() + trailers(4242, "no\n", details), 0.0)
    else:
        block = [*grpc_http2.response_headers(), *grpc_http2.status_headers(4242, "no\n"), details]
        call.receive_data(http2.header_frames(1, hpack.encode(block), end_stream=True), 0.0)
    assert call.answer == Answer(
        4242, "no\n", trailing_metadata=(("grpc-status-details-bin", b"\0\1"),)
    )


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (headers((b"x", b"y"), end=True), codes.UNKNOWN),
        (headers() + http2.frame(http2.DATA, http2.END_STREAM, 1), codes.INTERNAL),
        (headers() + trailers(0), codes.INTERNAL),
        (headers() + data(grpc_http2.prefixed(b"a") * 2) + trailers(0), codes.INTERNAL),
        (headers() + data(b"\1\0\0\0\0") + trailers(0), codes.INTERNAL),
        (http2.rst_stream(1, http2.ErrorCode.REFUSED_STREAM), codes.UNAVAILABLE),
        (http2.rst_stream(1, http2.ErrorCode.CANCEL), codes.CANCELLED),
        (http2.rst_stream(1, 99), codes.INTERNAL),
        (http2.goaway(0, 0), codes.UNAVAILABLE),
    ],
    ids=[
        *("no-status", "end-of-data", "no-message", "two", "compressed", "refused", "cancelled"),
        *("reset", "goaway"),
    ],
)
def test_ends_without_a_proper_answer(frames: bytes, code: int) -> None:
    call = begun()
    call.receive_data(frames, 0.0)
    assert call.answer is not None
    assert call.answer.code == code
    assert call.answer.message
    assert call.answer.response is None


def test_goodbye_that_spares_the_call() -> None:
    call = begun()
    call.receive_data(http2.goaway(1, 0) + headers() + data(b"\0\0\0\0\0") + trailers(0), 0.0)
    assert call.answer == Answer(response=b"")


def test_large_request_waits_for_the_windows() -> None:
    body = grpc_http2.prefixed(bytes(range(256)) * 400)
    call = ClientCall(PATH, body[5:])
    sent = data_in(call.data_to_send(), after=len(http2.PREFACE))
    assert sent == body[:65535]
    # More for the connection only, then for the call by a larger initial window.
    call.receive_data(http2.settings() + http2.window_update(0, 100_000), 0.0)
    assert data_in(call.data_to_send()) == b""
    call.receive_data(http2.settings({http2.INITIAL_WINDOW_SIZE: 65545}), 0.0)
    assert data_in(call.data_to_send()) == body[65535:65545]
    call.receive_data(http2.window_update(1, 100_000), 0.0)
    rest = call.data_to_send()
    assert data_in(rest) == body[65545:]
    assert rest[-9 - (len(body) - 65545) % 16384 :][4] & http2.END_STREAM


def data_in(frames: bytes, *, after: int = 0) -> bytes:
    content, pos = b"", after
    while stop := unit_end(frames, pos):
        if frames[pos + 3] == http2.DATA:
            content += http2.data_of(frames, pos, stop)
        pos = stop
    return content


def test_cancelling() -> None:
    call = begun()
    call.cancel()
    assert call.data_to_send() == http2.rst_stream(1, http2.ErrorCode.CANCEL)


@pytest.mark.parametrize(
    "garbage", [b"HTTP/1.1 400 Bad Request", ACK, http2.frame(http2.PING, 0, 0, bytes(8))]
)
def test_server_that_does_not_begin_with_settings(garbage: bytes) -> None:
    call = ClientCall(PATH, b"")
    with pytest.raises(RemoteProtocolError):
        call.receive_data(garbage, 0.0)
    assert not call.is_ready


def test_header_block_that_does_not_decode() -> None:
    call = begun()
    with pytest.raises(RemoteProtocolError):
        call.receive_data(http2.header_frames(1, b"\xfe", end_stream=True), 0.0)


def test_user_agent() -> None:
    sent = ClientCall(PATH, b"", user_agent="x 1").data_to_send()
    assert hpack.encode([(b"user-agent", b"x 1")]) in sent


def streaming() -> ClientCall:
    call = ClientCall(PATH, b"", is_stream=True)
    call.data_to_send()
    call.receive_data(http2.settings() + headers(), 0.0)
    call.data_to_send()
    return call


def test_stream() -> None:
    call = streaming()
    messages = [b"", b"a", b"bc" * 10_000]
    body = b"".join(map(grpc_http2.prefixed, messages))
    for at in range(0, len(body), 7000):
        call.receive_data(data(body[at : at + 7000]), 0.0)
    assert list(call.messages) == messages
    assert call.answer is None
    call.receive_data(trailers(0, "", (b"last", b"2")), 0.0)
    assert call.answer == Answer(trailing_metadata=(("last", "2"),))


def test_stream_that_breaks_off() -> None:
    call = streaming()
    call.receive_data(data(b"\0\0\0\0\1a\0\0\0\0\2b") + trailers(0), 0.0)
    assert list(call.messages) == [b"a"]
    assert call.answer is not None
    assert call.answer.code == codes.INTERNAL


def test_stream_with_a_compressed_message() -> None:
    call = streaming()
    call.receive_data(data(grpc_http2.prefixed(b"a") + b"\1\0\0\0\1b"), 0.0)
    assert list(call.messages) == [b"a"]
    assert call.answer == Answer(codes.INTERNAL, "the answer is compressed")


@pytest.mark.parametrize("is_stream", [True, False])
def test_message_beyond_the_limit(is_stream: bool) -> None:
    call = ClientCall(PATH, b"", is_stream=is_stream, limit_bytes=3)
    call.data_to_send()
    call.receive_data(http2.settings() + headers(), 0.0)
    call.data_to_send()
    if is_stream:
        call.receive_data(data(grpc_http2.prefixed(b"abc")), 0.0)
        assert list(call.messages) == [b"abc"]
    call.receive_data(data(b"\0\0\0\0\4"), 0.0)
    assert call.answer == Answer(codes.RESOURCE_EXHAUSTED, "a message of 4 bytes")
    assert call.oversize_bytes == 4
    assert call.data_to_send() == http2.rst_stream(1, http2.ErrorCode.CANCEL)


def test_windows_are_filled_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_call, "_REFILL_BYTES", 20_000)
    call = streaming()
    piece = data(grpc_http2.prefixed(bytes(9_995)))
    call.receive_data(piece * 2, 0.0)
    assert call.data_to_send() == b""
    call.receive_data(piece, 0.0)
    assert call.data_to_send() == http2.window_update(0, 30_000) + http2.window_update(1, 30_000)
    call.receive_data(piece, 0.0)
    assert call.data_to_send() == b""
    assert len(call.messages) == 4


@pytest.mark.parametrize("end", [True, False])
def test_web_server(end: bool) -> None:
    call = begun()
    block = hpack.encode([(b":status", b"404"), (b"content-type", b"text/html")])
    call.receive_data(http2.header_frames(1, block, end_stream=end), 0.0)
    assert call.http_status == "404"
    assert call.answer is not None
    assert call.answer.code == codes.UNKNOWN


def test_frame_that_is_larger_than_allowed() -> None:
    call = begun()
    with pytest.raises(RemoteProtocolError, match="larger than allowed"):
        call.receive_data(b"\0\x40\1\0\0\0\0\0\1", 0.0)


# Servers that break a rule or a limit


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (http2.frame(http2.DATA, 0, 3, b"x"), ErrorCode.PROTOCOL_ERROR),
        (http2.frame(http2.HEADERS, http2.END_HEADERS, 3, b"\x88"), ErrorCode.PROTOCOL_ERROR),
        (http2.rst_stream(3, 8), ErrorCode.PROTOCOL_ERROR),
        (http2.frame(http2.PUSH_PROMISE, http2.END_HEADERS, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (headers() + headers(), ErrorCode.PROTOCOL_ERROR),
        (http2.window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
        (http2.window_update(1, http2.MAX_WINDOW_BYTES), ErrorCode.FLOW_CONTROL_ERROR),
        (http2.settings({http2.INITIAL_WINDOW_SIZE: 2**31}), ErrorCode.FLOW_CONTROL_ERROR),
        (http2.frame(http2.HEADERS, 0, 1, b"\x88") + data(b""), ErrorCode.PROTOCOL_ERROR),
        (http2.header_frames(1, bytes(70_000), end_stream=True), ErrorCode.ENHANCE_YOUR_CALM),
        (
            http2.frame(http2.PING, 0, 0, bytes(8)) * (limits.IDLE_FRAMES + 100),
            ErrorCode.ENHANCE_YOUR_CALM,
        ),
        (data(b"") * (limits.IDLE_FRAMES + 100), ErrorCode.ENHANCE_YOUR_CALM),
    ],
    ids=[
        *("data", "headers", "reset", "push", "headers-twice", "window-0", "window-overflow"),
        *("settings", "interrupted", "large-block", "pings", "empty-data"),
    ],
)
def test_server_that_breaks_a_rule(frames: bytes, code: ErrorCode) -> None:
    call = begun()
    with pytest.raises(Http2Error) as caught:
        call.receive_data(frames, 0.0)
    assert caught.value.code is code


def test_pings_of_a_stream_that_lasts() -> None:
    """As many as a server sends for the data that it gets, and now and then for years."""
    call = streaming()
    for _ in range(2000):
        call.receive_data(data(b"\0\0\0\0\0") + http2.frame(http2.PING, 0, 0, bytes(8)) * 5, 0.0)
    for count in range(5000):
        call.receive_data(http2.frame(http2.PING, 0, 0, bytes(8)), 10.0 * count)
    assert call.answer is None


def test_answer_that_is_longer_than_its_message() -> None:
    """It ends there, however much more would come."""
    call = begun()
    call.receive_data(headers() + data(b"\0\0\0\0\x0a" + bytes(10)), 0.0)
    assert call.answer is None
    call.receive_data(data(b"x"), 0.0)
    assert call.answer == Answer(codes.INTERNAL, "the answer is longer than its message")
    assert call.data_to_send() == http2.rst_stream(1, http2.ErrorCode.CANCEL)


def test_status_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEADER_LIST_BYTES", 1000)
    call = begun()
    call.receive_data(headers() + trailers(codes.UNKNOWN, "x" * 1000), 0.0)
    assert call.answer == Answer(codes.RESOURCE_EXHAUSTED, "HTTP/2: the headers exceed 1000 bytes")
    assert call.data_to_send() == http2.rst_stream(1, http2.ErrorCode.CANCEL)
