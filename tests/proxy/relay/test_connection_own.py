"""The relay by bytes: calls that the proxy answers itself, in the windows that it shares."""

from __future__ import annotations

import pytest

from pycrictl.proxy.relay.calls import Abandoned, Answer, CallRecord, CallRequest, Requested
from pycrictl.wire import codes, grpc_http2, hpack, http2, limits
from tests.proxy.sides import (
    OTHER,
    OWN,
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

# Own calls


def test_own_call(sides: Sides) -> None:
    headers = [(b"grpc-timeout", b"250m"), (b"x", b"y"), (b"x-bin", b"AP8")]
    refund = http2.window_update(0, 8)
    assert sides.client(opened(1, OWN, *headers) + message(1, b"abc")) == (b"", refund)
    [event] = sides.relay.events()
    assert event == Requested(
        1, CallRequest(OWN, b"abc", (("x", "y"), ("x-bin", b"\x00\xff")), 0.25)
    )
    sides.now = 3.0
    answer = Answer(response=b"defg", trailing_metadata=(("t", "u"),))
    end = hpack.encode(grpc_http2.status_headers(0, "", (("t", "u"),)))
    assert sides.answer(1, answer) == (
        b"",
        head(1) + message(1, b"defg", end=False) + http2.header_frames(1, end, end_stream=True),
    )
    assert sides.relay.events() == [CallRecord(OWN, 0, 3.0, 8, 9)]
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
        (b"", codes.INTERNAL),
        (b"\0\0\0\0\5abc", codes.INTERNAL),
        (grpc_http2.prefixed(b"a") * 2, codes.INTERNAL),
        (b"\1\0\0\0\1a", codes.UNIMPLEMENTED),
    ],
    ids=["none", "short", "two", "compressed"],
)
def test_own_request_that_is_not_one_message(sides: Sides, body: bytes, code: int) -> None:
    sides.client(opened(1, OWN) + http2.frame(http2.DATA, http2.END_STREAM, 1, body))
    assert sides.records() == [(OWN, code)]


def test_own_request_with_a_malformed_deadline(sides: Sides) -> None:
    sides.client(opened(1, OWN, (b"grpc-timeout", b"soon")) + message(1, b"a"))
    assert sides.records() == [(OWN, codes.INTERNAL)]


def test_own_request_that_is_too_large(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OWN_BODY_BYTES", 10)
    sides.client(opened(1, OWN))
    _, to_client = sides.client(message(1, b"x" * 11, end=False))
    assert to_client.endswith(
        trailers_only(1, 8, "the request is too large (11 vs. 10)") + reset(1)
    )
    assert sides.records() == [(OWN, codes.RESOURCE_EXHAUSTED)]
    assert sides.client(http2.frame(http2.DATA, 0, 1, b"more")) == (b"", http2.window_update(0, 4))


def test_own_request_that_ends_without_data(sides: Sides) -> None:
    block = hpack.encode(request_headers(OWN))
    sides.client(http2.header_frames(1, block, end_stream=True))
    assert sides.records() == [(OWN, codes.INTERNAL)]


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
