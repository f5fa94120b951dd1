"""The relay by bytes: clients and runtimes that break a rule or a limit of HTTP/2, and how each is
told so.
"""

from __future__ import annotations

import pytest

from pycrictl.proxy.relay.budget import Budget
from pycrictl.proxy.relay.calls import Abandoned, Answer, CallRecord, Requested, RuntimeBroke
from pycrictl.proxy.relay.connection import Relay
from pycrictl.proxy.relay.http2_streams import OwnStream
from pycrictl.wire import codes, grpc_http2, hpack, http2, limits
from pycrictl.wire.http2 import ErrorCode, Http2Error
from tests.frames import units
from tests.proxy.sides import (
    FIRST_SETTINGS,
    OTHER,
    OWN,
    PING,
    Sides,
    head,
    message,
    opened,
    request_headers,
    reset,
    trailers_only,
)

SETTINGS = http2.settings()
TOO_MUCH = b"x" * 1000


def goodbye(sides: Sides, frames: bytes) -> ErrorCode:
    """The error code of the GOAWAY that a client's frames end its connection with."""
    with pytest.raises(Http2Error):
        sides.client(frames)
    *_, last = units(sides.relay.client_data())
    assert last.kind == http2.GOAWAY
    return ErrorCode(int.from_bytes(last.payload[4:8], "big"))


def resets(frames: bytes) -> list[tuple[int, int]]:
    """The streams that are reset, and with which code."""
    return [
        (unit.stream_id, int.from_bytes(unit.payload, "big"))
        for unit in units(frames)
        if unit.kind == http2.RST_STREAM
    ]


def headers(stream_id: int, *fields: hpack.Header, end: bool = False) -> bytes:
    return http2.header_frames(stream_id, hpack.encode(fields), end_stream=end)


def without(name: bytes) -> list[hpack.Header]:
    return [field for field in request_headers(OWN) if field[0] != name]


# What ends a client's connection


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (opened(2, OTHER), ErrorCode.PROTOCOL_ERROR),
        (opened(5, OTHER) + opened(3, OTHER), ErrorCode.PROTOCOL_ERROR),
        (opened(5, OWN) + opened(3, OWN), ErrorCode.PROTOCOL_ERROR),
        (opened(1, OWN) + reset(1) + opened(1, OWN), ErrorCode.PROTOCOL_ERROR),
        (http2.frame(http2.DATA, 0, 1, b"x"), ErrorCode.PROTOCOL_ERROR),
        (http2.frame(http2.DATA, 0, 2, b"x"), ErrorCode.PROTOCOL_ERROR),
        (http2.rst_stream(1, 8), ErrorCode.PROTOCOL_ERROR),
        (http2.window_update(1, 8), ErrorCode.PROTOCOL_ERROR),
        (http2.window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
        (http2.window_update(0, http2.MAX_WINDOW_BYTES), ErrorCode.FLOW_CONTROL_ERROR),
        (http2.settings({4: 2**31}), ErrorCode.FLOW_CONTROL_ERROR),
        (http2.settings({5: 1}), ErrorCode.PROTOCOL_ERROR),
        (http2.frame(http2.SETTINGS, 0, 0, b"\0\4\0"), ErrorCode.FRAME_SIZE_ERROR),
        (http2.frame(http2.SETTINGS, 0, 3), ErrorCode.PROTOCOL_ERROR),
        (http2.frame(http2.HEADERS, 4, 0, b"\x83"), ErrorCode.PROTOCOL_ERROR),
        (http2.frame(http2.PRIORITY, 0, 1, bytes(4)), ErrorCode.FRAME_SIZE_ERROR),
        (http2.frame(http2.HEADERS, 4, 1, b"\xff"), ErrorCode.COMPRESSION_ERROR),
        (opened(1, OWN) + headers(1, (b"x", b"y"), end=True), ErrorCode.PROTOCOL_ERROR),
        (b"\x01\0\0\0\0\0\0\0\1", ErrorCode.FRAME_SIZE_ERROR),
        (PING * (limits.IDLE_FRAMES + 1), ErrorCode.ENHANCE_YOUR_CALM),
        (SETTINGS * (limits.IDLE_FRAMES + 1), ErrorCode.ENHANCE_YOUR_CALM),
        (
            opened(1, OWN) + http2.frame(http2.DATA, 0, 1) * (limits.IDLE_FRAMES + 11),
            ErrorCode.ENHANCE_YOUR_CALM,
        ),
        (
            http2.frame(http2.HEADERS, 0, 1) + http2.frame(http2.CONTINUATION, 0, 1) * 64,
            ErrorCode.ENHANCE_YOUR_CALM,
        ),
    ],
    ids=[
        *("even", "lower", "lower-own", "again", "data-idle", "data-even", "reset-idle"),
        *("window-idle", "window-0", "window-overflow", "settings-window", "settings-frame"),
        *("settings-length", "settings-stream", "headers-0", "priority", "hpack", "trailers"),
        *("frame-size", "pings", "settings", "empty-data", "continuations"),
    ],
)
def test_what_ends_a_clients_connection(sides: Sides, frames: bytes, code: ErrorCode) -> None:
    assert goodbye(sides, frames) is code


def test_more_calls_reset_than_may_be(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever carries them out; the shape of CVE-2023-44487."""
    monkeypatch.setattr(limits, "RESETS", 10)
    for path in (OWN, OTHER):
        sides = Sides()
        pairs = [
            opened(stream_id, path) + message(stream_id, b"?") + reset(stream_id)
            for stream_id in range(1, 23, 2)
        ]
        sides.client(b"".join(pairs[:10]))
        assert len(sides.records()) == 10
        assert sides.relay.is_idle
        assert goodbye(sides, pairs[10]) is ErrorCode.ENHANCE_YOUR_CALM


def test_resets_now_and_then_are_fine(sides: Sides) -> None:
    for stream_id in range(1, 2 * limits.RESETS * 3, 2):
        sides.now += 1.0
        sides.client(opened(stream_id, OWN) + reset(stream_id))
    assert len(sides.records()) == limits.RESETS * 3


# What ends a call only


@pytest.mark.parametrize(
    "fields",
    [
        [*request_headers(OWN), (b":path", OWN.encode())],
        [(b":path", OTHER.encode()), *request_headers(OWN)],
        [*without(b":method"), (b":method", b"POST")],
        [*request_headers(OWN), (b":status", b"200")],
        without(b":method"),
        without(b":scheme"),
        without(b":path"),
        [*request_headers(OWN), (b"Upper", b"x")],
        [*request_headers(OWN), (b"", b"x")],
        [*request_headers(OWN), (b"a b", b"x")],
        [*request_headers(OWN), (b"connection", b"close")],
    ],
    ids=[
        *("doubled", "two-paths", "late", "unknown", "no-method", "no-scheme", "no-path", "upper"),
        *("no-name", "space", "connection"),
    ],
)
@pytest.mark.parametrize("path", [OWN, OTHER])
def test_malformed_requests(sides: Sides, fields: list[hpack.Header], path: str) -> None:
    fields = [(name, path.encode() if value == OWN.encode() else value) for name, value in fields]
    to_runtime, to_client = sides.client(headers(1, *fields))
    assert to_runtime == b""
    assert resets(to_client) == [(1, ErrorCode.PROTOCOL_ERROR)]
    assert sides.relay.is_idle
    assert sides.client(message(1, b"late")) == (b"", http2.window_update(0, 9))
    sides.open(3)  # others go on


def test_values_of_own_calls(sides: Sides) -> None:
    """Those of others are the runtime's to judge."""
    line_break = (b"x", b"a\nb")
    assert resets(sides.client(opened(1, OWN, line_break))[1]) == [(1, ErrorCode.PROTOCOL_ERROR)]
    frames = opened(3, OTHER, line_break)
    assert sides.client(frames) == (frames, b"")


def test_binary_values_may_be_anything(sides: Sides) -> None:
    """gRPC's libraries leave out the Base64 where both ends can do without."""
    assert sides.client(opened(1, OWN, (b"x-bin", b"\0\n\xff")))[1] == b""


@pytest.mark.parametrize(
    "field",
    [
        (b":method", b"GET"),
        (b"content-type", b"text/html"),
        (b"content-type", b"application/grpcx"),
        (b"grpc-timeout", b"soon"),
        (b"grpc-timeout", b"123456789S"),
    ],
)
def test_own_calls_that_are_not_of_grpc(sides: Sides, field: hpack.Header) -> None:
    """They end before their data."""
    name, value = field
    fields = [(key, value if key == name else kept) for key, kept in request_headers(OWN)]
    if field not in fields:
        fields.append(field)
    _, to_client = sides.client(headers(1, *fields))
    assert resets(to_client) == [(1, ErrorCode.NO_ERROR)]
    assert sides.records() == [(OWN, codes.INTERNAL)]


def test_own_call_that_goes_on_after_its_end(sides: Sides) -> None:
    sides.ask(1)
    _, to_client = sides.client(message(1, b"more"))
    assert resets(to_client) == [(1, ErrorCode.STREAM_CLOSED)]
    assert sides.relay.events()[0] == Abandoned(1)
    assert sides.relay.is_idle


@pytest.mark.parametrize(
    ("increment", "code"),
    [
        (0, ErrorCode.PROTOCOL_ERROR),
        (http2.MAX_WINDOW_BYTES, ErrorCode.FLOW_CONTROL_ERROR),
    ],
)
def test_windows_of_own_calls(sides: Sides, increment: int, code: ErrorCode) -> None:
    sides.ask(1)
    _, to_client = sides.client(http2.window_update(1, increment))
    assert resets(to_client) == [(1, code)]
    assert sides.relay.is_idle


def test_windows_of_other_calls_are_the_runtimes_to_judge(sides: Sides) -> None:
    sides.open(1)
    frames = http2.window_update(1, 0) + http2.window_update(1, http2.MAX_WINDOW_BYTES)
    assert sides.client(frames) == (frames, b"")


def test_headers_that_are_too_large(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call is refused, and what its headers put into the table is there for the next."""
    monkeypatch.setattr(limits, "HEADER_LIST_BYTES", 1000)
    remember = b"\x40\x01x\x05value"
    block = hpack.encode(request_headers(OTHER)) + hpack.encode([(b"y", TOO_MUCH)]) + remember
    _, to_client = sides.client(http2.frame(http2.HEADERS, http2.END_HEADERS, 1, block))
    assert resets(to_client) == [(1, ErrorCode.ENHANCE_YOUR_CALM)]
    block = hpack.encode(request_headers(OTHER)) + b"\xbe"
    to_runtime, _ = sides.client(http2.frame(http2.HEADERS, http2.END_HEADERS, 3, block))
    assert to_runtime == opened(3, OTHER, (b"x", b"value"))


def test_calls_beyond_their_number(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STREAMS", 2)
    sides.open(1)
    sides.ask(3)
    for stream_id, path in ((5, OWN), (7, OTHER)):
        to_runtime, to_client = sides.client(opened(stream_id, path))
        assert to_runtime == b""
        assert resets(to_client) == [(stream_id, ErrorCode.REFUSED_STREAM)]
    sides.answer(3, Answer(response=b""))
    sides.open(9)


# What own calls hold


def declared(stream_id: int, size: int) -> bytes:
    return http2.frame(http2.DATA, 0, stream_id, b"\0" + size.to_bytes(4, "big"))


def test_own_request_is_refused_by_what_it_declares(sides: Sides) -> None:
    size = limits.OWN_BODY_BYTES + 1
    _, to_client = sides.client(opened(1, OWN) + declared(1, size))
    status = f"the request is too large ({size} vs. {limits.OWN_BODY_BYTES})"
    assert trailers_only(1, codes.RESOURCE_EXHAUSTED, status) in to_client


def test_own_request_is_refused_when_it_is_longer_than_it_declares(sides: Sides) -> None:
    sides.client(opened(1, OWN) + declared(1, 1))
    sides.client(http2.frame(http2.DATA, 0, 1, b"xy"))
    assert sides.records() == [(OWN, codes.INTERNAL)]


def test_the_client_that_holds_most_gives_up_its_largest_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "OWN_BODIES_BYTES", 100_000)
    budget = Budget()
    greedy, modest = Sides(budget=budget), Sides(budget=budget)
    modest.ask(1, b"m" * 10_000)
    for stream_id in (1, 3, 5):
        greedy.client(opened(stream_id, OWN) + declared(stream_id, 50_000))
    greedy.client(http2.frame(http2.DATA, 0, 1, bytes(16_000)) * 2)
    greedy.client(http2.frame(http2.DATA, 0, 3, bytes(16_000)))
    assert budget.held_bytes < 100_000
    assert greedy.records() == modest.records() == []
    # The modest client comes last, and is served all the same.
    modest.ask(3, b"m" * 14_000)
    modest.ask(5, b"m" * 10_000)
    assert greedy.woken == 1
    _, to_client = greedy.outputs()
    assert [unit.stream_id for unit in units(to_client)] == [1, 1]
    assert greedy.records() == [(OWN, codes.RESOURCE_EXHAUSTED)]
    assert modest.records() == []
    assert greedy.client(http2.frame(http2.DATA, 0, 1, b"late")) == (b"", http2.window_update(0, 4))
    # What is over is not held.
    for sides in (greedy, modest):
        sides.relay.lose_client(now=0.0)
    assert budget.held_bytes == 0


def test_many_small_calls_are_as_large_as_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OWN_BODIES_BYTES", 100_000)
    sides = Sides(budget=(budget := Budget()))
    for stream_id in range(1, 101, 2):
        sides.client(opened(stream_id, OWN))
        assert budget.held_bytes <= 100_000
    refused = len(sides.records())
    assert 25 <= refused <= 35
    assert len(sides.relay.open_paths) == 50 - refused


def test_call_that_is_given_up_is_not_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OWN_BODIES_BYTES", 24_000)
    sides = Sides()
    sides.client(opened(1, OWN) + message(1, b"x" * 16_000))
    assert [type(event) for event in sides.relay.events()][:1] == [Requested]
    sides.client(opened(3, OWN) + message(3, b"?"))
    events = sides.relay.events()
    assert events[0] == Abandoned(1)
    assert [event.stream_id for event in events if isinstance(event, Requested)] == [3]


# What waits for an end


def test_what_the_client_gets_before_the_runtime_speaks() -> None:
    sides = Sides(is_connected=False)
    sides.relay.upstream_connected(now=0.0)
    sides.client(http2.PREFACE + SETTINGS + PING * 100)
    assert not sides.relay.is_client_behind
    sides.client(PING)
    assert sides.relay.is_client_behind
    assert sides.upstream(SETTINGS)[1].count(b"\x06\x01") == 101
    assert not sides.relay.is_client_behind


def test_work_is_done_in_turns(sides: Sides) -> None:
    calls = b"".join(opened(stream_id, OWN) for stream_id in range(1, 201, 2))
    sides.relay.receive_client(calls, now=0.0)
    turns = 1
    while sides.relay.has_more:
        assert sides.relay.is_client_behind
        assert len(sides.relay.open_paths) <= turns * limits.CLIENT_TURN // limits.TURN_PER_CALL
        sides.relay.catch_up(now=0.0)
        turns += 1
    assert len(sides.relay.open_paths) == 100
    assert turns >= 10


def test_nothing_of_the_runtime_is_lost_when_it_goes(sides: Sides) -> None:
    """It may go while its last frames wait for their turn."""
    sides.open(1)
    frames = head(1) + http2.frame(http2.DATA, 0, 1, b"x") * 3000
    sides.relay.receive_upstream(frames, now=0.0)
    assert sides.relay.is_upstream_behind
    assert sides.lose()[1].startswith(frames)


def test_answers_that_wait_for_their_own_windows_cost_nothing(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window of the connection that grows byte by byte must not look at them each time."""
    sides.client(http2.settings({http2.INITIAL_WINDOW_SIZE: 0}))
    sides.upstream(http2.frame(http2.SETTINGS, http2.ACK) * 2)
    for stream_id in range(1, 201, 2):
        sides.ask(stream_id)
        sides.answer(stream_id, Answer(response=b"x" * 100))
        assert len(sides.records()) == 1
    asked = 0

    def next_chunk(stream: OwnStream, connection_window_bytes: int) -> bytes:
        nonlocal asked
        asked += 1
        return original(stream, connection_window_bytes)

    original = OwnStream.next_chunk
    monkeypatch.setattr(OwnStream, "next_chunk", next_chunk)
    for _ in range(100):
        assert sides.client(http2.window_update(0, 1))[1] == b""
    assert asked == 0
    assert len(sides.client(http2.window_update(1, 3))[1]) == http2.HEAD_BYTES + 3


# The runtime


@pytest.mark.parametrize(
    "frames",
    [
        http2.frame(http2.PRIORITY, 0, 1, bytes(4)),
        http2.frame(http2.HEADERS, 0, 1) + http2.frame(http2.CONTINUATION, 0, 1) * 64,
        b"\x01\0\0\0\0\0\0\0\1",
        PING * (limits.IDLE_FRAMES + 100),
    ],
    ids=["priority", "continuations", "frame-size", "pings"],
)
def test_runtime_that_breaks_a_rule(sides: Sides, frames: bytes) -> None:
    sides.open(1)
    sides.upstream(frames)
    assert sides.relay.is_down
    broke, record = sides.relay.events()
    assert isinstance(broke, RuntimeBroke)
    assert isinstance(record, CallRecord)
    assert record.code == codes.UNAVAILABLE


def test_status_that_is_too_large(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call ends with a status that says so; others go on."""
    monkeypatch.setattr(limits, "HEADER_LIST_BYTES", 1000)
    sides.open(1)
    sides.open(3)
    large = grpc_http2.status_headers(codes.INTERNAL, "runc said: " + "x" * 1000)
    end = http2.header_frames(1, hpack.encode(large), end_stream=True)
    why = "pycrictl proxy: the status from the runtime is too large"
    expected = head(1) + http2.header_frames(
        1,
        hpack.encode(grpc_http2.status_headers(codes.RESOURCE_EXHAUSTED, why)),
        end_stream=True,
    )
    assert sides.upstream(head(1) + end) == (b"", expected)
    assert sides.upstream(trailers_only(3, 0)) == (b"", trailers_only(3, 0))
    assert sides.records() == [(OTHER, codes.RESOURCE_EXHAUSTED), (OTHER, 0)]


# What is announced


def test_limits_are_announced_to_the_client() -> None:
    sides = Sides(is_connected=False)
    sides.relay.upstream_connected(now=0.0)
    sides.client(http2.PREFACE + SETTINGS)
    generous = {
        http2.HEADER_TABLE_SIZE: 2**20,
        http2.INITIAL_WINDOW_SIZE: 2**20,
        http2.MAX_FRAME_SIZE: 2**20,
        http2.MAX_CONCURRENT_STREAMS: 2**20,
        http2.MAX_HEADER_LIST_SIZE: 2**20,
    }
    held = {
        http2.HEADER_TABLE_SIZE: limits.TABLE_BYTES,
        http2.INITIAL_WINDOW_SIZE: 2**20,
        http2.MAX_FRAME_SIZE: limits.FRAME_BYTES,
        http2.MAX_CONCURRENT_STREAMS: limits.STREAMS,
        http2.MAX_HEADER_LIST_SIZE: limits.HEADER_LIST_BYTES,
    }
    assert sides.upstream(http2.settings(generous))[1] == http2.settings(held)
    assert sides.upstream(http2.settings(generous))[1] == http2.settings(held)
    less = http2.settings({http2.MAX_CONCURRENT_STREAMS: 5, 0xF000: 2**32 - 1})
    assert sides.upstream(less)[1] == less


def test_limits_are_announced_without_a_runtime_too() -> None:
    assert Sides(is_connected=False).lose()[1] == FIRST_SETTINGS


def test_limits_are_announced_to_the_runtime(sides: Sides) -> None:
    generous = {http2.HEADER_TABLE_SIZE: 2**20, http2.MAX_FRAME_SIZE: 2**20}
    held = {http2.HEADER_TABLE_SIZE: limits.TABLE_BYTES, http2.MAX_FRAME_SIZE: limits.FRAME_BYTES}
    assert sides.client(http2.settings(generous))[0] == http2.settings(held)
    # And the runtime's headers may use as much.
    block = b"\x3f\xe1\xff\x03" + b"\x88"  # a table of 65536 bytes
    frame = http2.frame(http2.HEADERS, http2.END_HEADERS, 1, block)
    assert sides.upstream(frame) == (b"", frame)
    block = b"\x3f\xe2\xff\x03" + b"\x88"
    sides.upstream(http2.frame(http2.HEADERS, http2.END_HEADERS, 1, block))
    assert sides.relay.is_down


def test_relay_without_a_budget_has_its_own() -> None:
    assert Relay().is_connecting
