"""A relay between two ends that only keep what they get, and the frames for it."""

from __future__ import annotations

import pytest

from pycrictl.proxy.relay.budget import Budget
from pycrictl.proxy.relay.calls import Answer, CallRecord, CallRequest, Requested
from pycrictl.proxy.relay.connection import Relay
from pycrictl.wire import grpc_http2, hpack, http2, limits

OWN = "/test.v1.Test/Own"
OTHER = "/test.v1.Test/Other"
GOODBYE = http2.goaway(http2.MAX_STREAM_ID, 0)
PING = http2.frame(http2.PING, 0, 0, b"12345678")
PONG = http2.frame(http2.PING, http2.ACK, 0, b"12345678")
# What a client gets of a runtime's empty settings: the limits are announced with them.
FIRST_SETTINGS = http2.settings(
    {
        http2.MAX_CONCURRENT_STREAMS: limits.STREAMS,
        http2.MAX_HEADER_LIST_SIZE: limits.HEADER_LIST_BYTES,
    }
)
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

    def __init__(self, *, is_connected: bool = True, budget: Budget | None = None) -> None:
        self.woken = 0
        self.relay = Relay(
            {OWN}, upstream_name="the runtime", budget=budget, on_output=self._on_output
        )
        self.now = 0.0
        if is_connected:
            self.relay.upstream_connected(now=0.0)
            assert self.client(http2.PREFACE + http2.settings()) == (
                http2.PREFACE + http2.settings(),
                b"",
            )
            assert self.upstream(http2.settings()) == (b"", FIRST_SETTINGS)

    def _on_output(self) -> None:
        self.woken += 1

    def _catch_up(self) -> None:
        while self.relay.has_more:
            self.relay.catch_up(now=self.now)

    def outputs(self) -> tuple[bytes, bytes]:
        """What goes to the runtime, and to the client."""
        return self.relay.upstream_data(), self.relay.client_data()

    def client(self, data: bytes) -> tuple[bytes, bytes]:
        self.relay.receive_client(data, now=self.now)
        self._catch_up()
        return self.outputs()

    def upstream(self, data: bytes) -> tuple[bytes, bytes]:
        self.relay.receive_upstream(data, now=self.now)
        self._catch_up()
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
