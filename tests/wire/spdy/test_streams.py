from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.errors import LocalProtocolError, RemoteProtocolError
from pycrictl.wire import limits
from pycrictl.wire.spdy.frames import (
    Data,
    Frame,
    FrameEncoder,
    GoAway,
    GoAwayStatus,
    HeadersFrame,
    Ping,
    ResetStatus,
    RstStream,
    SynReply,
    SynStream,
)
from pycrictl.wire.spdy.streams import (
    FRAME_BYTES,
    Event,
    SpdyConnection,
    StreamAccepted,
    StreamEnded,
    StreamReceived,
    StreamReset,
)
from tests.wire.remote import SpdyServer

FIELDS = (("streamtype", "stdin"),)


class Peer(SpdyServer[Event]):
    """A connection, and the other side of it."""

    def __init__(self) -> None:
        self.core = SpdyConnection()
        super().__init__(self.core)

    def open(self) -> int:
        """Open a stream that is accepted."""
        stream_id = self.core.open_stream(FIELDS)
        assert self.feed(SynReply(stream_id)) == [StreamAccepted(stream_id)]
        self.sent()
        return stream_id


def violation_of(peer: Peer, *frames: Frame) -> str:
    peer.feed(*frames)
    assert isinstance(peer.core.error, RemoteProtocolError)
    assert peer.core.is_closed
    return peer.core.error.message


# Opening


def test_a_stream_is_opened_and_accepted() -> None:
    peer = Peer()
    assert [peer.core.open_stream(FIELDS), peer.core.open_stream()] == [1, 3]
    assert peer.sent() == [SynStream(1, FIELDS), SynStream(3)]
    assert not peer.core.can_send(1)
    assert peer.feed(SynReply(1, (("answer", "yes"),))) == [StreamAccepted(1)]
    assert peer.core.can_send(1)
    assert not peer.core.can_send(3)


def test_no_data_before_the_reply() -> None:
    peer = Peer()
    stream_id = peer.core.open_stream()
    for wrong in (peer.core.end_stream, lambda number: peer.core.send_data(number, b"x")):
        with pytest.raises(LocalProtocolError, match="OPENING"):
            wrong(stream_id)
    assert len(peer.sent()) == 1


def test_streams_of_the_peer_are_refused() -> None:
    peer = Peer()
    peer.core.open_stream()
    assert peer.feed(SynStream(2, FIELDS), Data(2, b"x"), SynReply(2), SynStream(6)) == []
    assert peer.feed(Data(2, b"", is_last=True), RstStream(4, 5)) == []
    assert peer.sent()[1:] == [
        RstStream(2, ResetStatus.REFUSED_STREAM),
        RstStream(6, ResetStatus.REFUSED_STREAM),
    ]
    assert peer.core.error is None


@pytest.mark.parametrize("numbers", [(1,), (2, 2), (4, 2)])
def test_streams_with_wrong_numbers(numbers: tuple[int, ...]) -> None:
    reason = violation_of(Peer(), *map(SynStream, numbers))
    assert reason == "the peer opened a SPDY stream with a wrong number"


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
        StreamReceived(stream_id, b"back")
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
        StreamReceived(stream_id, b"rest"),
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


@pytest.mark.parametrize("frame", [SynReply(1, FIELDS, True), HeadersFrame(1, FIELDS, True)])
def test_other_frames_can_end_a_stream(frame: Frame) -> None:
    peer = Peer()
    peer.core.open_stream()
    if isinstance(frame, HeadersFrame):
        peer.feed(SynReply(1))
        assert peer.feed(frame) == [StreamEnded(1)]
    else:
        assert peer.feed(frame) == [StreamAccepted(1), StreamEnded(1)]
    assert peer.core.can_send(1)


def test_resets() -> None:
    peer = Peer()
    first, second = peer.open(), peer.open()
    assert peer.feed(RstStream(first, 4711)) == [StreamReset(first, 4711)]
    assert peer.feed(Data(first, b"on its way"), HeadersFrame(first, ()), SynReply(first)) == []
    with pytest.raises(LocalProtocolError):
        peer.core.end_stream(first)
    assert peer.core.can_send(second)


# What the peer may not do on a stream


@pytest.mark.parametrize(
    ("before", "frame", "status"),
    [
        ([], Data(1, b"x"), ResetStatus.PROTOCOL_ERROR),
        ([], HeadersFrame(1, ()), ResetStatus.PROTOCOL_ERROR),
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
    [Data(1, b"x"), Data(2, b"x"), SynReply(1), HeadersFrame(2, ()), RstStream(1, 5)],
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
    assert peer.core.events_received() == [StreamReceived(stream_id, b"x")]
    assert peer.core.error is not None
    assert peer.core.error.message == "the peer does not speak SPDY/3"
    assert peer.feed(Data(stream_id, b"x")) == []
    assert not peer.core.can_send(stream_id)
    with pytest.raises(LocalProtocolError):
        peer.core.open_stream()


# Pings and farewells


def test_pings() -> None:
    peer = Peer()
    peer.core.ping()
    peer.core.ping()
    assert peer.sent() == [Ping(1), Ping(3)]
    assert peer.feed(Ping(3), Ping(2)) == []
    assert peer.sent() == [Ping(2)]


@pytest.mark.parametrize("frame", [Ping(2), Ping(1), Data(1, b"")], ids=["ping", "pong", "empty"])
def test_frames_without_content_are_limited(frame: Frame) -> None:
    """In a row, and each second."""
    peer = Peer()
    stream_id = peer.core.open_stream()
    peer.feed(SynReply(stream_id))
    for _ in range(limits.STREAM_IDLE_FRAMES - 1):
        peer.feed(frame)
    peer.feed(Data(stream_id, b"content"))
    for _ in range(limits.STREAM_IDLE_FRAMES):
        peer.feed(frame)
    assert not peer.core.is_closed
    empty = FrameEncoder().encode(frame)
    peer.core.receive_data(empty * limits.STREAM_IDLE_FRAMES_PER_S, 1.0)
    assert not peer.core.is_closed
    peer.core.receive_data(empty, 1.0)
    assert str(peer.core.error) == "the peer sends too many empty SPDY frames"


def test_the_peer_goes_away() -> None:
    peer = Peer()
    accepted = peer.open()
    looked_at, not_looked_at = peer.core.open_stream(), peer.core.open_stream()
    assert peer.feed(GoAway(looked_at), GoAway(looked_at)) == [
        StreamReset(not_looked_at, ResetStatus.REFUSED_STREAM),
    ]
    with pytest.raises(LocalProtocolError):
        peer.core.open_stream()
    assert peer.feed(SynReply(looked_at), Data(accepted, b"x")) == [
        StreamAccepted(looked_at),
        StreamReceived(accepted, b"x"),
    ]


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
    ]
    for call in wrong:
        with pytest.raises(LocalProtocolError):
            call()
    assert peer.feed(Data(stream_id, b"late")) == []
    assert peer.sent() == []


# Against the real one


# Any bytes

stream_ids = st.integers(1, 6)
random_frames = st.one_of(
    st.builds(SynStream, stream_ids, st.just(FIELDS), st.booleans()),
    st.builds(SynReply, stream_ids, st.just(()), st.booleans()),
    st.builds(HeadersFrame, stream_ids, st.just(()), st.booleans()),
    st.builds(Data, stream_ids, st.binary(max_size=5), st.booleans()),
    st.builds(RstStream, stream_ids, st.integers(1, 12)),
    st.builds(GoAway, stream_ids),
    st.builds(Ping, stream_ids),
)


@given(st.lists(random_frames | st.binary(max_size=12), max_size=30))
def test_nothing_makes_it_raise(inputs: list[Frame | bytes]) -> None:
    peer = Peer()
    opened = {peer.core.open_stream(), peer.core.open_stream()}
    for one in inputs:
        if isinstance(one, bytes):
            peer.core.receive_data(one)
            peer.core.events_received()
        else:
            peer.feed(one)
        for stream_id in opened:
            if peer.core.can_send(stream_id):
                peer.core.send_data(stream_id, b"x")
        assert len(peer.core._streams) <= 2
        assert sum(map(len, peer.core.data_to_send())) <= 200
    assert peer.core.is_closed == (peer.core.error is not None)
