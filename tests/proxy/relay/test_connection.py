"""The relay by bytes: what it changes between a client and the runtime, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pycrictl.errors import RemoteProtocolError
from pycrictl.proxy.relay.calls import Answer, CallRecord
from pycrictl.wire import codes, grpc_http2, hpack, http2
from tests.proxy.sides import (
    OTHER,
    OWN,
    PING,
    PONG,
    SETTINGS_ACK,
    Sides,
    head,
    message,
    opened,
    request_headers,
    reset,
    trailers,
    trailers_only,
)

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
    assert sides.relay.events() == [CallRecord(OTHER, 5, 2.5, 6, 8)]
    assert sides.relay.is_idle


@pytest.mark.parametrize("by_client", [True, False])
def test_reset_ends_a_call(sides: Sides, by_client: bool) -> None:
    sides.open(1)
    end = reset(1, http2.ErrorCode.CANCEL)
    if by_client:
        assert sides.client(end) == (end, b"")
        assert sides.records() == [(OTHER, codes.CANCELLED)]
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
    own_settings = {
        http2.HEADER_TABLE_SIZE: 100,
        http2.MAX_CONCURRENT_STREAMS: 100,
        http2.MAX_HEADER_LIST_SIZE: 8192,
    }
    first, rest = http2.settings(own_settings), SETTINGS_ACK
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


def test_nothing_comes_before_the_first_frame_of_the_client() -> None:
    """A runtime may ping as soon as it is connected, before the client has said a word."""
    sides = Sides(is_connected=False)
    sides.relay.upstream_connected(now=0.0)
    assert sides.upstream(http2.settings() + PING + PONG + PING)[0] == b""
    hello = http2.PREFACE + http2.settings()
    assert sides.client(hello[:10])[0] == b""
    assert sides.client(hello[10:-1])[0] == hello[: len(http2.PREFACE)]
    call = opened(1, OTHER)
    assert sides.client(hello[-1:] + call)[0] == http2.settings() + PONG + PONG + call
    assert sides.upstream(PING)[0] == PONG


def test_a_runtime_that_pings_and_pings_a_silent_client() -> None:
    sides = Sides(is_connected=False)
    sides.relay.upstream_connected(now=0.0)
    sides.upstream(http2.settings() + PING * 100)
    assert not sides.relay.is_down
    sides.upstream(PING)
    assert sides.relay.is_down


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
    assert sides.client(frames)[0] == frames
    sides.upstream(large + none)
    assert sides.client(opened(5, OTHER))[0] == opened(5, OTHER)
    sides.client(large)
    answer = http2.frame(
        http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, 1, b"\x3f\xe1\x3f\x88"
    )
    assert sides.upstream(answer) == (b"", answer)
    assert not sides.relay.is_down


@pytest.mark.parametrize("is_first", [True, False])
def test_table_that_a_client_makes_smaller(sides: Sides, is_first: bool) -> None:
    """The next block of all must begin with that (RFC 7541, 4.2), whoever it comes from."""
    sides.ask(1)
    sides.client(http2.settings({http2.HEADER_TABLE_SIZE: 100}))
    assert sides.answer(1, Answer(8)) == (b"", trailers_only(1, 8))  # it is not acknowledged
    assert sides.records() == [(OWN, 8)]
    sides.upstream(SETTINGS_ACK * 2)
    if not is_first:
        sides.open(3)
        answer = http2.frame(http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, 3, b"\x20\x88")
        assert sides.upstream(answer) == (b"", answer)
        sides.client(reset(3))
        sides.relay.events()
    sides.ask(5)
    block = hpack.table_updates(100, 100) if is_first else b""
    block += hpack.encode([*grpc_http2.response_headers(), *grpc_http2.status_headers(8)])
    assert sides.answer(5, Answer(8))[1] == http2.header_frames(5, block, end_stream=True)
    sides.relay.events()
    sides.ask(7)
    assert sides.answer(7, Answer(8)) == (b"", trailers_only(7, 8))
