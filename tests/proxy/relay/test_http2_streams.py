"""Own calls between their frames: a request is put together, an answer taken apart."""

from __future__ import annotations

import pytest

from pycrictl.proxy.relay.calls import Answer, CallRequest
from pycrictl.proxy.relay.http2_streams import OwnStream
from pycrictl.wire import codes, grpc_http2, hpack, limits


def test_request_is_put_together() -> None:
    headers = [(b":path", b"/a/b"), (b"grpc-timeout", b"2S"), (b"x", b"y")]
    stream = OwnStream("/a/b", 0.0, headers=headers)
    for octet in grpc_http2.prefixed(b"content"):
        assert stream.receive(bytes([octet])) is None
    assert stream.request() == CallRequest("/a/b", b"content", (("x", "y"),), 2.0)
    assert not stream.headers
    assert not stream.body


def test_request_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OWN_BODY_BYTES", 10)
    stream = OwnStream("/a/b", 0.0)
    assert stream.receive(b"\0\0\0\0") is None
    refusal = stream.receive(b"\x0b")
    assert refusal is not None
    assert refusal.code == codes.RESOURCE_EXHAUSTED


def test_malformed_request_has_an_error_as_its_answer() -> None:
    answer = OwnStream("/a/b", 0.0).request()
    assert isinstance(answer, Answer)
    assert answer.code == codes.INTERNAL


def test_answer_is_cut_to_the_windows() -> None:
    stream = OwnStream("/a/b", 0.0, window_bytes=40_000)
    head = stream.begin(Answer(response=bytes(60_000), initial_metadata=(("x", "y"),)))
    assert head == grpc_http2.response_headers((("x", "y"),))
    assert hpack.Decoder().decode(stream.trailers) == [(b"grpc-status", b"0")]
    assert stream.response_bytes == 60_005
    assert len(stream.next_chunk(10)) == 10
    assert len(stream.next_chunk(1_000_000)) == limits.FRAME_BYTES
    assert len(stream.next_chunk(1_000_000)) == limits.FRAME_BYTES
    assert len(stream.next_chunk(1_000_000)) == 40_000 - 10 - 2 * limits.FRAME_BYTES
    assert stream.next_chunk(1_000_000) == b""
    stream.window_bytes = -5  # a client may lower its initial window below what is used
    assert stream.next_chunk(1_000_000) == b""
    stream.window_bytes = 100_000
    assert stream.next_chunk(-1) == b""
    assert len(stream.pending) - stream.sent_bytes == 20_005


def test_error_has_no_message() -> None:
    stream = OwnStream("/a/b", 0.0)
    assert stream.begin(Answer(5, "no", trailing_metadata=(("x", "y"),))) is None
    assert hpack.Decoder().decode(stream.trailers) == [
        *grpc_http2.response_headers(),
        (b"grpc-status", b"5"),
        (b"grpc-message", b"no"),
        (b"x", b"y"),
    ]
    assert stream.pending == b""
