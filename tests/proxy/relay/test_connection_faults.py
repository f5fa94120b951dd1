"""The relay by bytes: ends that break the protocol, say goodbye or are gone."""

from __future__ import annotations

import pytest

from pycrictl.errors import RemoteProtocolError
from pycrictl.proxy.relay.calls import Answer
from pycrictl.wire import hpack, http2
from tests.frames import units
from tests.proxy.sides import (
    FIRST_SETTINGS,
    GOODBYE,
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
        opened(2, OTHER),
        http2.frame(http2.SETTINGS, 0, 0, b"\0\4\0"),
        http2.frame(http2.WINDOW_UPDATE, 0, 0, b"\0"),
    ],
    ids=[
        *("stray-continuation", "push", "interrupted", "other-stream", "hpack", "padding"),
        *("priority", "even-stream", "settings", "window"),
    ],
)
def test_client_errors_end_its_connection(sides: Sides, frames: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        sides.client(frames)
    [unit] = units(sides.relay.client_data())
    assert unit.kind == http2.GOAWAY


def test_wrong_preface() -> None:
    sides = Sides(is_connected=False)
    sides.relay.upstream_connected(now=0.0)
    with pytest.raises(RemoteProtocolError):
        sides.client(b"GET / HTTP/1.1\r\n\r\n")


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
        FIRST_SETTINGS + SETTINGS_ACK + trailers_only(1, 14, REASON) + reset(1) + GOODBYE,
    )
    refund = http2.window_update(0, 6)
    assert sides.client(SETTINGS_ACK + message(1, b"?")) == (b"", refund)
    assert sides.client(PING + PONG) == (b"", PONG)
    assert sides.client(opened(3, OTHER))[1] == trailers_only(3, 14, REASON) + reset(3)


def test_goodbye_waits_for_a_call() -> None:
    """Without one, a client that only connected would come back again and again."""
    sides = Sides(is_connected=False)
    assert sides.lose() == (b"", FIRST_SETTINGS)
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
        FIRST_SETTINGS + SETTINGS_ACK + trailers_only(1, 14, reason) + GOODBYE,
    )
    assert sides.relay.is_down


def test_nothing_passes_after_the_garbage(sides: Sides) -> None:
    sides.upstream(b"HTTP/1.1 400 Bad Request\r\n")
    assert sides.relay.is_down
    assert sides.upstream(PING + http2.window_update(0, 1)) == (b"", b"")


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
