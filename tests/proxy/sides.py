"""A relay between two ends that only keep what they get, and the frames for it."""

from __future__ import annotations

import pytest

from pycrictl.proxy.relay.calls import Answer, CallRecord, CallRequest
from pycrictl.proxy.relay.connection import Relay, Requested
from pycrictl.wire import grpc_http2, hpack, http2

OWN = "/test.v1.Test/Own"
OTHER = "/test.v1.Test/Other"
GOODBYE = http2.goaway(http2.MAX_STREAM_ID, 0)
PING = http2.frame(http2.PING, 0, 0, b"12345678")
PONG = http2.frame(http2.PING, http2.ACK, 0, b"12345678")
SETTINGS_ACK = http2.frame(http2.SETTINGS, http2.ACK)


def request_headers(path: str, *more: hpack.Header) -> list[hpack.Header]:
    return [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
        *more,
    ]


def opened(stream_id: int, path: str, *more: hpack.Header) -> bytes:
    block = hpack.encode(request_headers(path, *more))
    return http2.header_frames(stream_id, block, end_stream=False)


def message(stream_id: int, content: bytes, *, end: bool = True) -> bytes:
    flags = http2.END_STREAM if end else 0
    return http2.frame(http2.DATA, flags, stream_id, grpc_http2.prefixed(content))


def head(stream_id: int) -> bytes:
    block = hpack.encode(grpc_http2.response_headers())
    return http2.header_frames(stream_id, block, end_stream=False)


def trailers(stream_id: int, code: int = 0, text: str = "") -> bytes:
    block = hpack.encode(grpc_http2.status_headers(code, text))
    return http2.header_frames(stream_id, block, end_stream=True)


def trailers_only(stream_id: int, code: int, text: str = "") -> bytes:
    headers = grpc_http2.response_headers() + grpc_http2.status_headers(code, text)
    return http2.header_frames(stream_id, hpack.encode(headers), end_stream=True)


def reset(stream_id: int, code: int = http2.ErrorCode.NO_ERROR) -> bytes:
    return http2.rst_stream(stream_id, code)


class Sides:
    """A relay between two ends that only keep what they get."""

    def __init__(self, *, is_connected: bool = True) -> None:
        self.relay = Relay({OWN}, upstream_name="the runtime")
        self.now = 0.0
        if is_connected:
            self.relay.upstream_connected(now=0.0)
            assert self.client(http2.PREFACE + http2.settings()) == (
                http2.PREFACE + http2.settings(),
                b"",
            )
            assert self.upstream(http2.settings()) == (b"", http2.settings())

    def outputs(self) -> tuple[bytes, bytes]:
        """What goes to the runtime, and to the client."""
        return self.relay.upstream_data(), self.relay.client_data()

    def client(self, data: bytes) -> tuple[bytes, bytes]:
        self.relay.receive_client(data, now=self.now)
        return self.outputs()

    def upstream(self, data: bytes) -> tuple[bytes, bytes]:
        self.relay.receive_upstream(data, now=self.now)
        return self.outputs()

    def lose(self, why: str = "is gone") -> tuple[bytes, bytes]:
        self.relay.lose_upstream(why, now=self.now)
        return self.outputs()

    def answer(self, stream_id: int, answer: Answer) -> tuple[bytes, bytes]:
        self.relay.answer(stream_id, answer, now=self.now)
        return self.outputs()

    def ask(self, stream_id: int, content: bytes = b"?") -> CallRequest:
        """Makes an own call."""
        self.client(opened(stream_id, OWN) + message(stream_id, content))
        [event] = self.relay.events()
        assert isinstance(event, Requested)
        assert event.stream_id == stream_id
        return event.request

    def open(self, stream_id: int) -> None:
        """Makes another call, which the runtime gets."""
        call = opened(stream_id, OTHER) + message(stream_id, b"?")
        assert self.client(call) == (call, b"")

    def records(self) -> list[tuple[str, int | None]]:
        return [
            (event.path, event.code)
            for event in self.relay.events()
            if isinstance(event, CallRecord)
        ]


@pytest.fixture
def sides() -> Sides:
    return Sides()
