"""The client of one call against a server of another implementation of HTTP/2, ``h2``."""

from __future__ import annotations

import random

import h2.config
import h2.connection
import h2.events
import h2.settings
from hypothesis import given, settings
from hypothesis import strategies as st

from pycrictl.wire import grpc_http2
from pycrictl.wire.client_call import ClientCall
from pycrictl.wire.grpc_http2 import Answer
from pycrictl.wire.hpack import Header

CODES = h2.settings.SettingCodes
SIZES = st.sampled_from([0, 1, 1000, 16384, 70_000, 200_000])


class Server:
    """Answers one call, with all that a server may do meanwhile."""

    def __init__(self, seed: int, body: bytes, *, trailers: list[Header]) -> None:
        config = h2.config.H2Configuration(client_side=False, header_encoding=None)
        self.connection = h2.connection.H2Connection(config)
        self.random = random.Random(seed)
        self.request = b""
        self.is_asked = False
        self.unacknowledged = 1
        self.is_done = False
        self._has_head = False
        self._body = body
        self._trailers = trailers
        self.connection.initiate_connection()

    def receive(self, data: bytes) -> None:
        for event in self.connection.receive_data(data):
            if isinstance(event, h2.events.DataReceived):
                self.request += event.data
                self.connection.acknowledge_received_data(event.flow_controlled_length, 1)
            elif isinstance(event, h2.events.StreamEnded):
                self.is_asked = True
            elif isinstance(event, h2.events.SettingsAcknowledged):
                self.unacknowledged -= 1

    def step(self) -> None:
        """Send a little more of the answer, and what has nothing to do with it."""
        if self.random.random() < 0.3:
            self.connection.ping(self.random.randbytes(8))
        # It takes the next acknowledgement for that of any change.
        if not self.unacknowledged and self.random.random() < 0.3:
            self.unacknowledged += 1
            self.connection.update_settings(
                {CODES.INITIAL_WINDOW_SIZE: self.random.choice((100, 65535, 10**6))}
            )
        if not self.is_asked or self.is_done:
            return
        if not self._has_head:
            self._has_head = True
            self.connection.send_headers(1, [*grpc_http2.response_headers(), (b"x-a", b"1")])
        window = self.connection.local_flow_control_window(1)
        size = min(window, self.random.choice((1, 100, 16_000)), len(self._body))
        if size:
            padding = self.random.choice((None, 10)) if size + 11 <= min(window, 16384) else None
            self.connection.send_data(1, self._body[:size], pad_length=padding)
            self._body = self._body[size:]
        if not self._body:
            self.is_done = True
            self.connection.send_headers(1, self._trailers, end_stream=True)


def answered(server: Server, call: ClientCall) -> Answer:
    """Let them talk until the call has ended."""
    for _ in range(100_000):
        server.receive(call.data_to_send())
        server.step()
        data = server.connection.data_to_send()
        while data:
            size = server.random.choice((1, 7, 100, 100_000))
            call.receive_data(data[:size], 0.0)
            data = data[size:]
        if call.answer is not None:
            return call.answer
    raise AssertionError("no end")


@given(SIZES, SIZES, st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_unary_call(request_bytes: int, response_bytes: int, seed: int) -> None:
    contents = random.Random(seed)
    request, response = contents.randbytes(request_bytes), contents.randbytes(response_bytes)
    server = Server(
        seed,
        grpc_http2.prefixed(response),
        trailers=[*grpc_http2.status_headers(0), (b"x-b-bin", b"/w")],
    )
    call = ClientCall("/a/b", request)
    assert answered(server, call) == Answer(
        response=response,
        initial_metadata=(("x-a", "1"),),
        trailing_metadata=(("x-b-bin", b"\xff"),),
    )
    assert server.request == grpc_http2.prefixed(request)


@given(st.lists(SIZES, max_size=5), st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_stream(sizes: list[int], seed: int) -> None:
    contents = random.Random(seed)
    messages = [contents.randbytes(size) for size in sizes]
    body = b"".join(map(grpc_http2.prefixed, messages))
    server = Server(seed, body, trailers=grpc_http2.status_headers(5, "größer"))
    call = ClientCall("/a/b", b"", is_stream=True)
    answer = answered(server, call)
    assert (answer.code, answer.message) == (5, "größer")
    assert list(call.messages) == messages
