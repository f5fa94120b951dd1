"""The relay by bytes: what it changes between a client and the runtime, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pycrictl.errors import RemoteProtocolError
from pycrictl.proxy import streams
from pycrictl.proxy.calls import Answer, CallRecord, Request
from pycrictl.proxy.relay import Abandoned, Relay, Requested
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

    def ask(self, stream_id: int, content: bytes = b"?") -> Request:
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


# Passing through


def test_frames_pass_unchanged(sides: Sides) -> None:
    padded = http2.frame(http2.DATA, http2.PADDED, 1, b"\x02abc\0\0")
    unknown = http2.frame(0xF0, 0xFF, 1, b"extension")
    to_upstream = b"".join(
        [
            opened(1, OTHER),
            padded,
            unknown,
            http2.window_update(0, 5),
            http2.window_update(1, 5),
            http2.frame(http2.SETTINGS, 0, 0, b"\0\4\0\0\1\0"),
            SETTINGS_ACK,
        ]
    )
    assert sides.client(to_upstream) == (to_upstream, b"")
    to_client = b"".join(
        [
            head(1),
            padded,
            unknown,
            http2.window_update(0, 7),
            SETTINGS_ACK,
            trailers(1),
        ]
    )
    assert sides.upstream(to_client) == (b"", to_client)


def test_pieces_make_no_difference() -> None:
    call = opened(1, OTHER) + message(1, b"x" * 50) + opened(3, OWN) + message(3, b"y" * 50)
    answer = http2.settings() + head(1) + message(1, b"z" * 50, end=False) + trailers(1)
    whole, pieces = Sides(is_connected=False), Sides(is_connected=False)
    for sides in (whole, pieces):
        sides.relay.upstream_connected(now=0.0)
    expected = whole.client(http2.PREFACE + http2.settings() + call), whole.upstream(answer)
    up, down = b"", b""
    for octet in http2.PREFACE + http2.settings() + call:
        more_up, more_down = pieces.client(bytes([octet]))
        up, down = up + more_up, down + more_down
    assert (up, down) == expected[0]
    up, down = b"", b""
    for octet in answer:
        more_up, more_down = pieces.upstream(bytes([octet]))
        up, down = up + more_up, down + more_down
    assert (up, down) == expected[1]
    assert whole.relay.events() == pieces.relay.events() != []


def test_what_the_client_sends_early_waits_for_the_runtime() -> None:
    sides = Sides(is_connected=False)
    call = http2.PREFACE + http2.settings() + opened(1, OTHER) + message(1, b"?")
    assert sides.client(call[:30]) == sides.client(call[30:]) == (b"", b"")
    sides.relay.upstream_connected(now=0.0)
    assert sides.outputs() == (call, b"")


def test_request_headers_are_encoded_without_a_table(sides: Sides) -> None:
    """What an own call put into the table is there for the next call, which is another's."""
    base = hpack.encode(request_headers(OTHER))
    remember = b"\x40\x01x\x05value"
    own = http2.frame(
        http2.HEADERS, http2.END_HEADERS, 1, hpack.encode(request_headers(OWN)) + remember
    )
    assert sides.client(own) == (b"", b"")
    other = http2.frame(http2.HEADERS, http2.END_HEADERS, 3, base + b"\xbe")
    assert sides.client(other)[0] == opened(3, OTHER, (b"x", b"value"))


def test_header_block_in_many_frames_with_padding_and_priority(sides: Sides) -> None:
    block = hpack.encode(request_headers(OTHER))
    flags = http2.PADDED | http2.PRIORITY_FLAG
    frames = (
        http2.frame(http2.HEADERS, flags, 1, b"\x03" + b"\0\0\0\0\x10" + block[:10] + b"\0\0\0")
        + http2.frame(http2.CONTINUATION, 0, 1, block[10:20])
        + http2.frame(http2.CONTINUATION, http2.END_HEADERS, 1, block[20:])
    )
    assert sides.client(frames) == (opened(1, OTHER), b"")


def test_authority_becomes_the_runtimes(sides: Sides) -> None:
    headers = [
        (name, b"run%2Fpycrictl%2Fcri.sock" if name == b":authority" else value)
        for name, value in request_headers(OTHER)
    ]
    frames = http2.header_frames(1, hpack.encode(headers), end_stream=False)
    assert sides.client(frames)[0] == opened(1, OTHER)


def test_trailers_of_a_request_pass(sides: Sides) -> None:
    sides.client(opened(1, OTHER))
    end = http2.header_frames(1, hpack.encode([(b"x", b"y")]), end_stream=True)
    assert sides.client(end) == (end, b"")


def test_records_of_calls(sides: Sides) -> None:
    sides.now = 10.0
    sides.open(1)
    sides.now = 12.5
    sides.upstream(head(1) + message(1, b"abc", end=False) + trailers(1, 5))
    assert sides.relay.events() == [CallRecord(OTHER, 5, 10.0, 2.5, 6, 8, False)]
    assert sides.relay.is_idle


@pytest.mark.parametrize("by_client", [True, False])
def test_reset_ends_a_call(sides: Sides, by_client: bool) -> None:
    sides.open(1)
    end = reset(1, http2.ErrorCode.CANCEL)
    if by_client:
        assert sides.client(end) == (end, b"")
        assert sides.records() == [(OTHER, grpc_http2.CANCELLED)]
    else:
        assert sides.upstream(end) == (b"", end)
        assert sides.records() == [(OTHER, None)]
    assert sides.relay.is_idle


def test_answer_before_the_end_of_the_request(sides: Sides) -> None:
    sides.client(opened(1, OTHER))
    sides.upstream(trailers_only(1, 3))
    assert sides.records() == [(OTHER, 3)]
    assert sides.relay.open_paths == []
    late = message(1, b"late")
    assert sides.client(late) == (late, b"")  # the runtime may still want to count it
    assert sides.relay.is_idle


def test_late_frames_of_a_finished_call_stay_here(sides: Sides) -> None:
    """The runtime could take them for errors; the client gets its window back for data."""
    sides.open(1)
    sides.upstream(trailers_only(1, 0))
    late = message(1, b"late")
    assert sides.client(late) == (b"", http2.window_update(0, 9))
    assert sides.client(http2.window_update(1, 5) + reset(1)) == (b"", b"")
    end = http2.header_frames(1, hpack.encode([(b"x", b"y")]), end_stream=True)
    assert sides.client(end) == (b"", b"")


def test_late_frames_of_the_runtime_pass(sides: Sides) -> None:
    sides.open(1)
    sides.client(reset(1))
    late = head(1) + message(1, b"late", end=False) + trailers(1)
    assert sides.upstream(late) == (b"", late)


def test_settings_of_the_runtime_come_before_all_else() -> None:
    """Clients may speak at once; what the proxy has to say to that must not come too early."""
    sides = Sides(is_connected=False)
    sides.relay.upstream_connected(now=0.0)
    own = opened(1, OWN) + message(1, b"?")
    assert sides.client(http2.PREFACE + http2.settings() + PING + own)[1] == b""
    refund = http2.window_update(0, 6)
    first, rest = http2.settings({http2.HEADER_TABLE_SIZE: 100}), SETTINGS_ACK
    assert sides.upstream(first[:12])[1] == b""
    assert not sides.relay.is_ready
    assert sides.upstream(first[12:] + rest)[1] == first + PONG + refund + rest
    assert sides.relay.is_ready


# Pings


def test_pings_are_answered_here(sides: Sides) -> None:
    """Neither end may count the pings that the other one has caused."""
    sides.open(1)
    sides.ask(3)
    sides.answer(3, Answer(response=b"a"))
    for _ in range(100):
        assert sides.client(PING) == (b"", PONG)
        assert sides.upstream(PING) == (PONG, b"")
    late = message(1, b"x")
    assert sides.upstream(head(1) + PING + late) == (PONG, head(1) + late)


def test_answers_to_pings_that_nobody_sent_are_dropped(sides: Sides) -> None:
    assert sides.client(PONG) == (b"", b"")
    assert sides.upstream(PONG) == (b"", b"")


@pytest.mark.parametrize(
    "ping",
    [http2.frame(http2.PING, 0, 0, bytes(9)), http2.frame(http2.PING, 0, 1, bytes(8))],
    ids=["long", "in-a-stream"],
)
def test_malformed_pings(ping: bytes) -> None:
    """An answer would be as long as what was sent."""
    sides = Sides()
    sides.open(1)
    with pytest.raises(RemoteProtocolError):
        sides.client(ping)
    sides = Sides()
    sides.open(1)
    sides.upstream(ping)
    assert sides.relay.is_down


# Clients that break the protocol


@pytest.mark.parametrize(
    "frames",
    [
        http2.frame(http2.CONTINUATION, http2.END_HEADERS, 1),
        http2.frame(http2.PUSH_PROMISE, http2.END_HEADERS, 1, bytes(4)),
        http2.frame(http2.HEADERS, 0, 1, b"\x83") + http2.frame(http2.PING, 0, 0, bytes(8)),
        http2.frame(http2.HEADERS, 0, 1, b"\x83") + http2.frame(http2.CONTINUATION, 0, 3),
        http2.frame(http2.HEADERS, http2.END_HEADERS, 1, b"\xff"),
        http2.frame(http2.HEADERS, http2.END_HEADERS | http2.PADDED, 1, b"\x05\x83"),
        http2.frame(http2.HEADERS, http2.END_HEADERS | http2.PRIORITY_FLAG, 1, b"\x83"),
        http2.frame(http2.HEADERS, http2.END_HEADERS, 1, b"\x83"),
        opened(2, OTHER),
        http2.frame(http2.SETTINGS, 0, 0, b"\0\4\0"),
        http2.frame(http2.WINDOW_UPDATE, 0, 0, b"\0"),
    ],
    ids=[
        *("stray-continuation", "push", "interrupted", "other-stream", "hpack", "padding"),
        *("priority", "no-path", "even-stream", "settings", "window"),
    ],
)
def test_client_errors_end_its_connection(sides: Sides, frames: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        sides.client(frames)
    assert sides.relay.client_data().startswith(http2.goaway(0, http2.ErrorCode.PROTOCOL_ERROR)[:9])


def test_wrong_preface() -> None:
    sides = Sides(is_connected=False)
    sides.relay.upstream_connected(now=0.0)
    with pytest.raises(RemoteProtocolError):
        sides.client(b"GET / HTTP/1.1\r\n\r\n")


# Own calls


def test_own_call(sides: Sides) -> None:
    headers = [(b"grpc-timeout", b"250m"), (b"x", b"y"), (b"x-bin", b"AP8")]
    refund = http2.window_update(0, 8)
    assert sides.client(opened(1, OWN, *headers) + message(1, b"abc")) == (b"", refund)
    [event] = sides.relay.events()
    assert event == Requested(1, Request(OWN, b"abc", (("x", "y"), ("x-bin", b"\x00\xff")), 0.25))
    sides.now = 3.0
    answer = Answer(response=b"defg", trailing_metadata=(("t", "u"),))
    end = hpack.encode(grpc_http2.status_headers(0, "", (("t", "u"),)))
    assert sides.answer(1, answer) == (
        b"",
        head(1) + message(1, b"defg", end=False) + http2.header_frames(1, end, end_stream=True),
    )
    assert sides.relay.events() == [CallRecord(OWN, 0, 0.0, 3.0, 8, 9, True)]
    assert sides.relay.is_idle


def test_own_call_in_pieces_gets_its_windows_back(sides: Sides) -> None:
    sides.client(opened(1, OWN))
    body = grpc_http2.prefixed(b"abcdef")
    padded = http2.frame(http2.DATA, http2.PADDED, 1, b"\x04" + body[:3] + bytes(4))
    assert sides.client(padded) == (b"", http2.window_update(0, 8) + http2.window_update(1, 8))
    assert sides.client(http2.frame(http2.DATA, 0, 1, body[3:])) == (
        b"",
        http2.window_update(0, 8) + http2.window_update(1, 8),
    )
    assert sides.client(http2.frame(http2.DATA, http2.END_STREAM, 1)) == (b"", b"")
    [event] = sides.relay.events()
    assert isinstance(event, Requested)
    assert event.request.message == b"abcdef"


def test_own_call_that_fails(sides: Sides) -> None:
    sides.ask(1)
    assert sides.answer(1, Answer(8, "full")) == (b"", trailers_only(1, 8, "full"))
    assert sides.records() == [(OWN, 8)]


def test_own_call_that_is_given_up(sides: Sides) -> None:
    sides.ask(1)
    assert sides.client(reset(1, http2.ErrorCode.CANCEL)) == (b"", b"")
    assert [type(event) for event in sides.relay.events()] == [Abandoned, CallRecord]
    assert sides.answer(1, Answer(response=b"late")) == (b"", b"")
    assert sides.relay.is_idle


def test_client_that_goes_gives_up_all_its_calls(sides: Sides) -> None:
    sides.ask(1)
    sides.open(3)
    sides.relay.lose_client(now=1.0)
    events = sides.relay.events()
    assert events[0] == Abandoned(1)
    assert [event.path for event in events if isinstance(event, CallRecord)] == [OWN, OTHER]
    assert sides.relay.is_idle


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", grpc_http2.INTERNAL),
        (b"\0\0\0\0\5abc", grpc_http2.INTERNAL),
        (grpc_http2.prefixed(b"a") * 2, grpc_http2.INTERNAL),
        (b"\1\0\0\0\1a", grpc_http2.UNIMPLEMENTED),
    ],
    ids=["none", "short", "two", "compressed"],
)
def test_own_request_that_is_not_one_message(sides: Sides, body: bytes, code: int) -> None:
    sides.client(opened(1, OWN) + http2.frame(http2.DATA, http2.END_STREAM, 1, body))
    assert sides.records() == [(OWN, code)]


def test_own_request_with_a_malformed_deadline(sides: Sides) -> None:
    sides.client(opened(1, OWN, (b"grpc-timeout", b"soon")) + message(1, b"a"))
    assert sides.records() == [(OWN, grpc_http2.INTERNAL)]


def test_own_request_that_is_too_large(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_OWN_REQUEST_BYTES", 10)
    sides.client(opened(1, OWN))
    _, to_client = sides.client(message(1, b"x" * 11, end=False))
    assert to_client.endswith(trailers_only(1, 8, "the request is too large") + reset(1))
    assert sides.records() == [(OWN, grpc_http2.RESOURCE_EXHAUSTED)]
    assert sides.client(http2.frame(http2.DATA, 0, 1, b"more")) == (b"", http2.window_update(0, 4))


def test_own_request_that_ends_without_data(sides: Sides) -> None:
    block = hpack.encode(request_headers(OWN))
    sides.client(http2.header_frames(1, block, end_stream=True))
    assert sides.records() == [(OWN, grpc_http2.INTERNAL)]


# Flow control


def test_own_answer_waits_for_the_calls_window(sides: Sides) -> None:
    sides.client(http2.frame(http2.SETTINGS, 0, 0, b"\0\4\0\0\0\4"))
    sides.upstream(SETTINGS_ACK * 2)
    sides.ask(1)
    body = grpc_http2.prefixed(b"abcdefgh")
    assert sides.answer(1, Answer(response=b"abcdefgh")) == (
        b"",
        head(1) + http2.frame(http2.DATA, 0, 1, body[:4]),
    )
    assert sides.client(http2.window_update(1, 3))[1] == http2.frame(http2.DATA, 0, 1, body[4:7])
    # A larger initial window opens those of calls under way as well (RFC 9113, 6.9.2), but not
    # before the client knows that it holds: until then it would count too much as an error.
    for size in (b"\5", b"\6"):
        settings = http2.frame(http2.SETTINGS, 0, 0, b"\0\4\0\0\0" + size)
        assert sides.client(settings) == (settings, b"")
    for sent in (body[7:8], body[8:9]):
        assert sides.upstream(SETTINGS_ACK) == (
            b"",
            SETTINGS_ACK + http2.frame(http2.DATA, 0, 1, sent),
        )
    assert sides.client(http2.window_update(1, 100))[1] == (
        http2.frame(http2.DATA, 0, 1, body[9:]) + trailers(1)
    )


def test_window_that_own_answers_took_is_kept_from_the_runtime(sides: Sides) -> None:
    sides.ask(1)
    sides.answer(1, Answer(response=b"x" * 95))
    assert sides.client(http2.window_update(0, 60)) == (b"", b"")
    assert sides.client(http2.window_update(0, 60)) == (http2.window_update(0, 20), b"")
    assert sides.client(http2.window_update(0, 60)) == (http2.window_update(0, 60), b"")


def test_data_of_the_runtime_waits_when_own_answers_filled_the_window(sides: Sides) -> None:
    sides.open(3)
    sides.ask(5)
    sides.answer(5, Answer(response=b"x" * (40_000 - 5)))
    chunks = [http2.frame(http2.DATA, 0, 3, bytes(10_000)) for _ in range(3)]
    end = trailers(3)
    assert sides.upstream(chunks[0] + chunks[1]) == (b"", chunks[0] + chunks[1])
    assert sides.upstream(chunks[2] + end) == (b"", b"")
    assert sides.relay.is_held
    assert sides.client(http2.window_update(0, 4_464)) == (b"", b"")
    assert sides.relay.is_held
    assert sides.client(http2.window_update(0, 1)) == (b"", chunks[2] + end)
    assert not sides.relay.is_held


def test_own_answer_waits_for_the_connections_window(sides: Sides) -> None:
    sides.open(3)
    full = b"".join(http2.frame(http2.DATA, 0, 3, bytes(13_107)) for _ in range(5))
    assert sides.upstream(full) == (b"", full)
    sides.ask(5)
    assert sides.answer(5, Answer(response=b"abc")) == (b"", head(5))
    assert sides.client(http2.window_update(0, 8)) == (
        b"",
        http2.frame(http2.DATA, 0, 5, grpc_http2.prefixed(b"abc")) + trailers(5),
    )


# Without the runtime


REASON = "pycrictl proxy: the runtime is gone"


def test_calls_end_when_the_runtime_goes(sides: Sides) -> None:
    sides.open(1)
    sides.open(3)
    sides.upstream(head(3))
    sides.open(5)
    sides.upstream(trailers_only(5, 0))
    sides.client(opened(7, OTHER))
    sides.relay.events()
    sides.ask(9)
    assert sides.lose() == (
        b"",
        # The client's settings were not acknowledged by the runtime.
        SETTINGS_ACK
        + trailers_only(1, 14, REASON)
        + trailers(3, 14, REASON)
        + trailers_only(7, 14, REASON)
        + reset(7)
        + GOODBYE,
    )
    assert sides.records() == [(OTHER, 14)] * 3
    assert sides.relay.open_paths == [OWN]
    assert sides.answer(9, Answer(response=b"a"))[1].startswith(head(9))


def test_client_is_served_before_the_runtime_ever_came() -> None:
    sides = Sides(is_connected=False)
    sides.client(http2.PREFACE + http2.settings() + opened(1, OTHER))
    assert sides.lose() == (
        b"",
        http2.settings() + SETTINGS_ACK + trailers_only(1, 14, REASON) + reset(1) + GOODBYE,
    )
    refund = http2.window_update(0, 6)
    assert sides.client(SETTINGS_ACK + message(1, b"?")) == (b"", refund)
    assert sides.client(PING + PONG) == (b"", PONG)
    assert sides.client(opened(3, OTHER))[1] == trailers_only(3, 14, REASON) + reset(3)


def test_goodbye_waits_for_a_call() -> None:
    """Without one, a client that only connected would come back again and again."""
    sides = Sides(is_connected=False)
    assert sides.lose() == (b"", http2.settings())
    assert sides.client(http2.PREFACE + http2.settings()) == (b"", SETTINGS_ACK)
    assert not sides.relay.is_going_away
    sides.client(opened(1, OTHER))
    assert sides.relay.is_going_away


def test_idle_connection_is_ended_with_the_runtimes(sides: Sides) -> None:
    assert sides.lose() == (b"", SETTINGS_ACK + GOODBYE)
    assert sides.lose() == (b"", b"")
    assert sides.relay.is_down
    assert sides.relay.is_idle


@pytest.mark.parametrize(
    "garbage",
    [b"HTTP/1.1 400 Bad Request\r\n", http2.frame(http2.PING, 0, 0, bytes(8)), SETTINGS_ACK],
)
def test_runtime_that_does_not_begin_with_settings(garbage: bytes) -> None:
    sides = Sides(is_connected=False)
    sides.relay.upstream_connected(now=0.0)
    sides.client(http2.PREFACE + http2.settings() + opened(1, OTHER) + message(1, b"?"))
    reason = "pycrictl proxy: the runtime does not speak gRPC"
    assert sides.upstream(garbage) == (
        b"",
        http2.settings() + SETTINGS_ACK + trailers_only(1, 14, reason) + GOODBYE,
    )
    assert sides.relay.is_down


def test_frames_before_the_garbage_count(sides: Sides) -> None:
    sides.open(1)
    sides.open(3)
    done = head(1) + trailers(1)
    _, to_client = sides.upstream(done + http2.frame(http2.HEADERS, http2.END_HEADERS, 3, b"\xff"))
    assert to_client.startswith(done)
    assert trailers_only(3, 14, "pycrictl proxy: the runtime does not speak gRPC") in to_client
    assert sides.records() == [(OTHER, 0), (OTHER, 14)]


def test_goodbye_of_the_runtime_passes(sides: Sides) -> None:
    sides.open(1)
    goodbye = http2.goaway(1, 0, b"bye")
    assert sides.upstream(goodbye) == (b"", goodbye)
    assert sides.relay.is_going_away
    assert sides.lose()[1].count(b"bye") == 0
    assert sides.relay.is_idle


def test_goodbye_of_the_runtime_spares_own_calls(sides: Sides) -> None:
    """Calls that it did not take may be made again; own ones go on and must not be."""
    sides.open(1)
    sides.open(3)
    sides.ask(5)
    sides.open(7)
    refused = http2.rst_stream(3, http2.ErrorCode.REFUSED_STREAM)
    assert sides.upstream(http2.goaway(1, 0, b"bye")) == (b"", refused + http2.goaway(5, 0, b"bye"))
    assert sorted(sides.relay.open_paths) == [OTHER, OWN]
    assert sides.records() == [(OTHER, None)] * 2
    assert sides.answer(5, Answer(8))[1] == trailers_only(5, 8)
    sides.upstream(trailers_only(1, 0))
    assert sides.relay.is_idle


def test_calls_after_the_goodbye_are_carried_out_by_nobody(sides: Sides) -> None:
    """They were on their way; the client makes them again on its next connection."""
    sides.open(1)
    sides.upstream(http2.goaway(1, 0))
    refund = http2.window_update(0, 6)
    for stream_id, path in ((3, OWN), (5, OTHER)):
        call = opened(stream_id, path) + message(stream_id, b"?")
        assert sides.client(call) == (b"", refund)
        assert sides.client(reset(stream_id)) == (b"", b"")
    assert sides.relay.events() == []
    assert sides.relay.open_paths == [OTHER]
    sides.lose()
    assert sides.client(opened(7, OTHER) + opened(9, OWN) + message(9, b"?")) == (b"", refund)
    assert sides.records() == [(OTHER, 14)]


def test_headers_of_calls_after_the_goodbye_still_count_for_the_table(sides: Sides) -> None:
    sides.ask(1)
    sides.upstream(http2.goaway(http2.MAX_STREAM_ID, 0))
    sides.upstream(http2.goaway(0, 0))
    block = hpack.encode(request_headers(OTHER)) + b"\x40\x01x\x05value"
    sides.client(http2.frame(http2.HEADERS, http2.END_HEADERS, 3, block))
    trailer = http2.frame(http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, 3, b"\xbe")
    assert sides.client(trailer) == (b"", b"")


def test_goodbye_in_two_steps(sides: Sides) -> None:
    """Until the second one says which calls the runtime has got, all are welcome."""
    assert sides.upstream(GOODBYE) == (b"", GOODBYE)
    sides.open(1)
    sides.ask(3)
    assert sides.upstream(http2.goaway(1, 0)) == (b"", http2.goaway(3, 0))
    assert sides.answer(3, Answer(8))[1] == trailers_only(3, 8)
    # What a GOAWAY has not let in, no later one does (RFC 9113, 6.8).
    assert sides.upstream(GOODBYE) == (b"", http2.goaway(3, 0))
    assert sides.client(opened(5, OTHER)) == (b"", b"")


def test_goodbye_to_a_client_that_breaks_the_protocol_afterwards(sides: Sides) -> None:
    sides.open(1)
    sides.open(3)
    sides.upstream(http2.goaway(1, 0))
    with pytest.raises(RemoteProtocolError):
        sides.client(http2.frame(http2.CONTINUATION, http2.END_HEADERS, 1))
    assert sides.relay.client_data() == http2.goaway(1, http2.ErrorCode.PROTOCOL_ERROR)


def test_connections_end_without_haste(sides: Sides) -> None:
    sides.open(1)
    sides.relay.go_away()
    sides.relay.go_away()
    assert sides.outputs() == (b"", GOODBYE)
    assert not sides.relay.is_idle
    assert sides.upstream(trailers_only(1, 0)) == (b"", trailers_only(1, 0))
    assert sides.relay.is_idle


# The compression tables


def table_sizes() -> Iterator[bytes]:
    for name_value in (b"\0\1\0\0\x20\0", b"\0\1\0\0\0\0"):
        yield http2.frame(http2.SETTINGS, 0, 0, name_value)


def test_table_sizes_that_one_end_allows_the_other(sides: Sides) -> None:
    """8,192 bytes are announced, used, and reduced to nothing again."""
    large, none = table_sizes()
    assert sides.upstream(large) == (b"", large)
    block = b"\x3f\xe1\x3f" + hpack.encode(request_headers(OTHER))
    frames = http2.frame(http2.HEADERS, http2.END_HEADERS, 1, block)
    assert sides.client(frames)[0] == opened(1, OTHER)
    sides.upstream(none)
    block = b"\x20" + hpack.encode(request_headers(OTHER))
    frames = http2.frame(http2.HEADERS, http2.END_HEADERS, 3, block)
    assert sides.client(frames)[0] == opened(3, OTHER)
    sides.client(large)
    answer = http2.frame(
        http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, 1, b"\x3f\xe1\x3f\x88"
    )
    assert sides.upstream(answer) == (b"", answer)
    assert not sides.relay.is_down
