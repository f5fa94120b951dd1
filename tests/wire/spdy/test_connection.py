from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.errors import LocalProtocolError, RemoteProtocolError
from pycrictl.wire.side import Side
from pycrictl.wire.spdy.connection import FRAME_BYTES, Connection
from pycrictl.wire.spdy.events import (
    DataReceived,
    Event,
    GoAwayReceived,
    HeadersReceived,
    PingAnswered,
    StreamAccepted,
    StreamEnded,
    StreamOffered,
    StreamReset,
)
from pycrictl.wire.spdy.frames import (
    MAX_STREAM_ID,
    Data,
    Frame,
    FrameDecoder,
    FrameEncoder,
    GoAway,
    GoAwayStatus,
    Headers,
    Ping,
    ResetStatus,
    RstStream,
    Settings,
    SynReply,
    SynStream,
    WindowUpdate,
)
from pycrictl.wire.spdy.states import CONNECTION, STREAM, ConnectionState, StreamInput, StreamState
from tests.wire.recorded import RECORDED

FIELDS = (("streamtype", "stdin"),)


class Peer:
    """A connection, and the frames of the other side of it by hand."""

    def __init__(self, side: Side = Side.CLIENT, *, max_streams: int = 10) -> None:
        self.core = Connection(side, max_streams=max_streams)
        self._encoder = FrameEncoder()
        self._decoder = FrameDecoder()

    def feed(self, *frames: Frame) -> list[Event]:
        for frame in frames:
            self.core.receive_data(self._encoder.encode(frame))
        return self.core.events_received()

    def sent(self) -> list[Frame]:
        frames = self._decoder.receive_data(self.core.data_to_send())
        assert self._decoder.error is None
        return frames

    def open(self) -> int:
        """Open a stream that is accepted."""
        stream_id = self.core.open_stream(FIELDS)
        assert self.feed(SynReply(stream_id)) == [StreamAccepted(stream_id, ())]
        self.sent()
        return stream_id


def server(*, max_streams: int = 10) -> Peer:
    return Peer(Side.SERVER, max_streams=max_streams)


def violation_of(peer: Peer, *frames: Frame) -> str:
    peer.feed(*frames)
    assert isinstance(peer.core.error, RemoteProtocolError)
    assert peer.core.is_closed
    return peer.core.error.message


# The tables


def test_every_state_can_be_left_and_reached() -> None:
    assert {state for state, _ in STREAM} | {StreamState.CLOSED} == set(StreamState)
    assert set(STREAM.values()) | {StreamState.IDLE} == set(StreamState)
    assert {state for state, _ in CONNECTION} == set(ConnectionState) - {ConnectionState.CLOSED}


def test_the_tables_are_the_same_from_the_other_side() -> None:
    mirror = {
        StreamState.OPENING: StreamState.OFFERED,
        StreamState.ENDED_BY_US: StreamState.ENDED_BY_PEER,
        StreamState.ENDED_BY_PEER: StreamState.ENDED_BY_US,
    }
    for (state, step), following in STREAM.items():
        other = StreamInput.__members__.get(step.name.replace("RECEIVE", "SEND"))
        if step.name.startswith("SEND") or other is None or state not in mirror:
            continue
        assert STREAM[mirror[state], other] is mirror.get(following, following)


# Opening


def test_a_stream_is_opened_and_accepted() -> None:
    peer = Peer()
    assert [peer.core.open_stream(FIELDS), peer.core.open_stream()] == [1, 3]
    assert peer.sent() == [SynStream(1, FIELDS), SynStream(3)]
    assert not peer.core.can_send(1)
    reply = (("answer", "yes"),)
    assert peer.feed(SynReply(1, reply)) == [StreamAccepted(1, reply)]
    assert peer.core.can_send(1)
    assert not peer.core.can_send(3)


def test_no_data_before_the_reply() -> None:
    peer = Peer()
    stream_id = peer.core.open_stream()
    for wrong in (peer.core.end_stream, lambda number: peer.core.send_data(number, b"x")):
        with pytest.raises(LocalProtocolError, match="OPENING"):
            wrong(stream_id)
    assert len(peer.sent()) == 1


def test_a_server_accepts() -> None:
    peer = server()
    assert peer.feed(SynStream(1, FIELDS), Data(1, b"early")) == [
        StreamOffered(1, FIELDS, False),
        DataReceived(1, b"early"),
    ]
    peer.core.accept_stream(1, FIELDS)
    peer.core.send_data(1, b"answer")
    assert peer.sent() == [SynReply(1, FIELDS), Data(1, b"answer")]
    assert peer.core.open_stream() == 2


def test_a_server_refuses() -> None:
    peer = server()
    peer.feed(SynStream(1))
    peer.core.reset_stream(1, ResetStatus.REFUSED_STREAM)
    assert peer.sent() == [RstStream(1, ResetStatus.REFUSED_STREAM)]
    assert peer.feed(Data(1, b"on its way"), RstStream(1, 5)) == []


def test_a_stream_that_is_ended_as_it_is_opened() -> None:
    peer = server()
    assert peer.feed(SynStream(1, is_last=True)) == [StreamOffered(1, (), False), StreamEnded(1)]
    peer.core.accept_stream(1)
    peer.core.send_data(1, b"x")
    peer.core.end_stream(1)
    assert peer.sent() == [SynReply(1), Data(1, b"x"), Data(1, b"", True)]


def test_a_stream_in_one_direction() -> None:
    peer = server()
    assert peer.feed(SynStream(1, is_unidirectional=True)) == [StreamOffered(1, (), True)]
    with pytest.raises(LocalProtocolError):
        peer.core.accept_stream(1)
    assert peer.feed(Data(1, b"x", is_last=True)) == [DataReceived(1, b"x"), StreamEnded(1)]
    assert peer.feed(SynStream(3, is_unidirectional=True, is_last=True)) == [
        StreamOffered(3, (), True),
        StreamEnded(3),
    ]


def test_too_many_streams_are_refused() -> None:
    peer = server(max_streams=2)
    peer.core.open_stream()
    assert len(peer.feed(SynStream(1), SynStream(3), SynStream(5))) == 2
    assert peer.sent()[1:] == [RstStream(5, ResetStatus.REFUSED_STREAM)]
    peer.core.reset_stream(1)
    assert peer.feed(SynStream(7)) == [StreamOffered(7, (), False)]
    assert peer.feed(Data(5, b"on its way")) == []


@pytest.mark.parametrize("numbers", [(2,), (1, 1), (3, 1)])
def test_streams_with_wrong_numbers(numbers: tuple[int, ...]) -> None:
    reason = violation_of(server(), *map(SynStream, numbers))
    assert reason == "the peer opened a SPDY stream with a wrong number"


def test_the_numbers_run_out() -> None:
    peer = Peer()
    peer.core._next_id = MAX_STREAM_ID
    assert peer.core.open_stream() == MAX_STREAM_ID
    assert not peer.core.can_open_stream
    with pytest.raises(LocalProtocolError):
        peer.core.open_stream()


# Data, and the ends


def test_data_both_ways() -> None:
    peer = Peer()
    stream_id = peer.open()
    data = bytes(range(256)) * 256
    peer.core.send_data(stream_id, data + b"!")
    assert peer.sent() == [
        Data(stream_id, data[:FRAME_BYTES]),
        Data(stream_id, data[FRAME_BYTES:]),
        Data(stream_id, b"!"),
    ]
    peer.core.send_data(stream_id, b"")
    assert peer.sent() == []
    assert peer.feed(Data(stream_id, b"back"), Data(stream_id, b"")) == [
        DataReceived(stream_id, b"back")
    ]


def test_we_end_first() -> None:
    peer = Peer()
    stream_id = peer.open()
    peer.core.end_stream(stream_id)
    assert peer.sent() == [Data(stream_id, b"", is_last=True)]
    assert not peer.core.can_send(stream_id)
    for wrong in (peer.core.end_stream, lambda number: peer.core.send_data(number, b"x")):
        with pytest.raises(LocalProtocolError):
            wrong(stream_id)
    assert peer.feed(Data(stream_id, b"rest", is_last=True)) == [
        DataReceived(stream_id, b"rest"),
        StreamEnded(stream_id),
    ]
    assert peer.feed(RstStream(stream_id, 5)) == []


def test_the_peer_ends_first() -> None:
    peer = Peer()
    stream_id = peer.open()
    assert peer.feed(Data(stream_id, b"", is_last=True)) == [StreamEnded(stream_id)]
    peer.core.send_data(stream_id, b"still")
    peer.core.end_stream(stream_id)
    with pytest.raises(LocalProtocolError, match="CLOSED"):
        peer.core.end_stream(stream_id)


@pytest.mark.parametrize("frame", [SynReply(1, FIELDS, True), Headers(1, FIELDS, True)])
def test_other_frames_can_end_a_stream(frame: Frame) -> None:
    peer = Peer()
    peer.core.open_stream()
    if isinstance(frame, Headers):
        peer.feed(SynReply(1))
        assert peer.feed(frame) == [HeadersReceived(1, FIELDS), StreamEnded(1)]
    else:
        assert peer.feed(frame) == [StreamAccepted(1, FIELDS), StreamEnded(1)]
    assert peer.core.can_send(1)


def test_resets() -> None:
    peer = Peer()
    first, second = peer.open(), peer.open()
    assert peer.feed(RstStream(first, 4711)) == [StreamReset(first, 4711)]
    peer.core.reset_stream(second)
    assert peer.sent() == [RstStream(second, ResetStatus.CANCEL)]
    assert peer.feed(Data(second, b"on its way"), Headers(second, ()), SynReply(second)) == []
    with pytest.raises(LocalProtocolError):
        peer.core.reset_stream(second)


def test_a_stream_is_discarded_as_its_state_needs_it() -> None:
    peer = Peer()
    opening, ended = peer.core.open_stream(), 3
    peer.open()
    peer.feed(Data(ended, b"", is_last=True))
    peer.core.discard_stream(opening)
    peer.core.discard_stream(ended)
    assert peer.sent() == [RstStream(opening, ResetStatus.CANCEL), Data(ended, b"", is_last=True)]
    peer.core.discard_stream(ended)
    assert peer.sent() == []


# What the peer may not do on a stream


@pytest.mark.parametrize(
    ("before", "frame", "status"),
    [
        ([], Data(1, b"x"), ResetStatus.PROTOCOL_ERROR),
        ([], Headers(1, ()), ResetStatus.PROTOCOL_ERROR),
        ([SynReply(1)], SynReply(1), ResetStatus.STREAM_IN_USE),
        ([SynReply(1, is_last=True)], Data(1, b"x"), ResetStatus.STREAM_ALREADY_CLOSED),
        ([SynReply(1, is_last=True)], Data(1, b"", True), ResetStatus.STREAM_ALREADY_CLOSED),
    ],
)
def test_one_stream_is_reset_for_a_violation(
    before: list[Frame], frame: Frame, status: ResetStatus
) -> None:
    peer = Peer()
    peer.core.open_stream()
    peer.feed(*before)
    peer.sent()
    (event,) = peer.feed(frame)
    assert isinstance(event, StreamReset)
    assert (event.stream_id, event.status) == (1, status)
    assert event.error is not None
    assert status.name in event.error.message
    assert peer.sent() == [RstStream(1, status)]
    assert peer.core.error is None
    assert peer.open() == 3


@pytest.mark.parametrize(
    "frame",
    [Data(1, b"x"), Data(2, b"x"), SynReply(1), Headers(2, ()), RstStream(1, 5)],
)
def test_streams_that_never_were(frame: Frame) -> None:
    peer = Peer()
    assert violation_of(peer, frame) == "the peer used a SPDY stream that was never opened"
    assert peer.sent() == [GoAway(0, GoAwayStatus.PROTOCOL_ERROR)]


def test_bytes_that_are_no_frames() -> None:
    peer = Peer()
    stream_id = peer.open()
    good = FrameEncoder().encode(Data(stream_id, b"x"))
    peer.core.receive_data(good + b"\x80\x02\0\0\0\0\0\0" + good)
    assert peer.core.events_received() == [DataReceived(stream_id, b"x")]
    assert peer.core.error is not None
    assert peer.core.error.message == "the peer does not speak SPDY/3"
    assert peer.feed(Data(stream_id, b"x")) == []
    assert not peer.core.can_send(stream_id)
    assert not peer.core.can_open_stream


def test_nothing_is_read_after_a_violation() -> None:
    peer = Peer()
    encoder = FrameEncoder()
    peer.core.receive_data(encoder.encode(Data(5, b"x")) + encoder.encode(Ping(2)))
    assert peer.core.events_received() == []
    assert peer.sent() == [GoAway(0, GoAwayStatus.PROTOCOL_ERROR)]


# Pings and farewells


def test_pings() -> None:
    peer = Peer()
    assert [peer.core.ping(), peer.core.ping()] == [1, 3]
    assert peer.sent() == [Ping(1), Ping(3)]
    assert peer.feed(Ping(3), Ping(2)) == [PingAnswered(3)]
    assert peer.sent() == [Ping(2)]
    assert server().core.ping() == 2


@pytest.mark.parametrize("side", Side)
def test_the_numbers_of_pings_begin_anew(side: Side) -> None:
    core = Connection(side)
    last = 2**32 - side.value if side is Side.CLIENT else 2**32 - 2
    core._next_ping_id = last
    assert [core.ping(), core.ping()] == [last, side.value]


def test_frames_about_windows_are_left_out() -> None:
    peer = Peer()
    assert peer.feed(Settings(((7, 10),)), WindowUpdate(0, 10), WindowUpdate(99, 10)) == []
    assert peer.core.error is None
    assert peer.sent() == []


def test_the_peer_goes_away() -> None:
    peer = Peer()
    accepted = peer.open()
    looked_at, not_looked_at = peer.core.open_stream(), peer.core.open_stream()
    assert peer.feed(GoAway(looked_at), GoAway(looked_at)) == [
        StreamReset(not_looked_at, ResetStatus.REFUSED_STREAM),
        GoAwayReceived(GoAwayStatus.OK),
        GoAwayReceived(GoAwayStatus.OK),
    ]
    assert not peer.core.can_open_stream
    with pytest.raises(LocalProtocolError):
        peer.core.open_stream()
    assert peer.feed(SynReply(looked_at), Data(accepted, b"x")) == [
        StreamAccepted(looked_at, ()),
        DataReceived(accepted, b"x"),
    ]
    assert peer.feed(SynStream(2)) == [StreamOffered(2, (), False)]


def test_we_go_away() -> None:
    peer = server()
    peer.feed(SynStream(1))
    peer.core.go_away()
    assert peer.sent() == [GoAway(1)]
    with pytest.raises(LocalProtocolError):
        peer.core.go_away()
    assert peer.feed(SynStream(3)) == []
    assert peer.feed(Data(1, b"x"), GoAway(0)) == [DataReceived(1, b"x"), GoAwayReceived(0)]
    assert peer.feed(GoAway(0)) == [GoAwayReceived(0)]
    assert violation_of(peer, Data(9, b"x"))
    assert peer.sent() == []


def test_both_go_away() -> None:
    peer = Peer()
    peer.feed(GoAway(0))
    peer.core.go_away(GoAwayStatus.INTERNAL_ERROR)
    assert peer.sent() == [GoAway(0, GoAwayStatus.INTERNAL_ERROR)]
    assert not peer.core.can_open_stream


def test_the_end_of_the_connection() -> None:
    peer = Peer()
    stream_id = peer.open()
    peer.core.receive_eof()
    assert peer.core.is_closed
    assert peer.core.error is None
    wrong: list[Callable[[], object]] = [
        lambda: peer.core.send_data(stream_id, b"x"),
        peer.core.open_stream,
        peer.core.ping,
        peer.core.go_away,
    ]
    for call in wrong:
        with pytest.raises(LocalProtocolError):
            call()
    assert peer.feed(Data(stream_id, b"late")) == []
    assert peer.sent() == []


# Against ourselves, and against the real one


def test_client_and_server() -> None:
    """Two cores, with pieces of every size between them."""
    client, other = Connection(Side.CLIENT), Connection(Side.SERVER)
    stream_id = client.open_stream(FIELDS)
    sent, received = bytes(range(256)) * 300, bytearray()
    for size in range(1, 100):
        for source, target in ((client, other), (other, client)):
            data = source.data_to_send()
            for start in range(0, len(data), size):
                target.receive_data(data[start : start + size])
        for event in other.events_received():
            match event:
                case StreamOffered():
                    other.accept_stream(event.stream_id)
                case DataReceived():
                    other.send_data(event.stream_id, event.data)
                case StreamEnded():
                    other.end_stream(event.stream_id)
        for event in client.events_received():
            match event:
                case StreamAccepted():
                    client.send_data(stream_id, sent)
                    client.end_stream(stream_id)
                case DataReceived():
                    received += event.data
    assert received == sent
    assert client.error is None
    assert other.error is None
    assert not client._streams
    assert not other._streams


@pytest.mark.parametrize("exchange", RECORDED)
def test_recorded_by_containerd(exchange: str) -> None:
    """Both directions are as the tables want them: each is fed to the other side's core."""
    for side, who, opening in ((Side.CLIENT, "c", "s"), (Side.SERVER, "s", "c")):
        core = Connection(side)
        ours = FrameDecoder()
        events: list[Event] = []
        for source, data in RECORDED[exchange]:
            if source == opening:
                core.receive_data(data)
                events += core.events_received()
                continue
            for frame in ours.receive_data(data):
                match frame:
                    case SynStream():
                        assert core.open_stream(frame.headers) == frame.stream_id
                    case SynReply():
                        core.accept_stream(frame.stream_id, frame.headers)
                    case Data(data=b""):
                        core.end_stream(frame.stream_id)
                    case Data():
                        core.send_data(frame.stream_id, frame.data)
                    case RstStream():
                        core.reset_stream(frame.stream_id, ResetStatus(frame.status))
        assert core.error is None, who
        assert not any(isinstance(event, StreamReset) and event.error for event in events)
        first = StreamAccepted if side is Side.CLIENT else StreamOffered
        assert any(isinstance(event, first) for event in events)
        assert any(isinstance(event, DataReceived) for event in events) or side is Side.SERVER


# Any bytes

stream_ids = st.integers(1, 6)
random_frames = st.one_of(
    st.builds(SynStream, stream_ids, st.just(FIELDS), st.booleans(), st.booleans()),
    st.builds(SynReply, stream_ids, st.just(()), st.booleans()),
    st.builds(Headers, stream_ids, st.just(()), st.booleans()),
    st.builds(Data, stream_ids, st.binary(max_size=5), st.booleans()),
    st.builds(RstStream, stream_ids, st.integers(1, 12)),
    st.builds(GoAway, stream_ids),
    st.builds(Ping, stream_ids),
)


@given(st.sampled_from(Side), st.lists(random_frames | st.binary(max_size=12), max_size=30))
def test_nothing_makes_it_raise(side: Side, inputs: list[Frame | bytes]) -> None:
    peer = Peer(side, max_streams=2)
    opened = {peer.core.open_stream(), peer.core.open_stream()}
    for one in inputs:
        if isinstance(one, bytes):
            peer.core.receive_data(one)
            events = peer.core.events_received()
        else:
            events = peer.feed(one)
        for event in events:
            if isinstance(event, StreamOffered) and not event.is_unidirectional:
                assert peer.core._streams[event.stream_id]
        for stream_id in opened:
            if peer.core.can_send(stream_id):
                peer.core.send_data(stream_id, b"x")
        assert len(peer.core._streams) <= 4
        assert len(peer.core.data_to_send()) <= 200
    assert peer.core.is_closed == (peer.core.error is not None)


REPLIES = b"".join(data for side, data in RECORDED["outputs-and-exit-7"] if side == "s")


@given(st.lists(st.tuples(st.integers(0, len(REPLIES) - 1), st.integers(1, 255)), max_size=3))
def test_a_changed_recording(changes: list[tuple[int, int]]) -> None:
    data = bytearray(REPLIES)
    for position, mask in changes:
        data[position] ^= mask
    core = Connection(Side.CLIENT)
    for _ in range(3):
        core.open_stream(FIELDS)
    for start, end in pairwise(range(0, len(data) + 50, 50)):
        core.receive_data(bytes(data[start:end]))
    assert len(core.events_received()) <= len(data)
    if not changes:
        assert core.error is None
