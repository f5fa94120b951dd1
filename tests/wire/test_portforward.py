from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.errors import LocalProtocolError, RemoteProtocolError, StreamError
from pycrictl.wire.portforward import (
    MAX_ERROR_BYTES,
    MESSAGE_BYTES,
    Event,
    ForwardClosed,
    ForwardEnded,
    ForwardOpened,
    ForwardReceived,
    PortForward,
    SpdyForward,
    WebSocketForward,
)
from pycrictl.wire.spdy.frames import (
    Data,
    Frame,
    FrameDecoder,
    FrameEncoder,
    GoAway,
    Headers,
    Ping,
    ResetStatus,
    RstStream,
    SynReply,
    SynStream,
)

from .recorded import RECORDED

LOST = "the connection to the runtime ended"


def fed(core: PortForward, *pieces: bytes) -> list[Event]:
    for piece in pieces:
        core.receive_data(piece)
    return core.events_received()


class Spdy:
    """A port forward over SPDY, and the server's frames by hand."""

    def __init__(self) -> None:
        self.core = SpdyForward()
        self._encoder = FrameEncoder()
        self._decoder = FrameDecoder()

    def feed(self, *frames: Frame) -> list[Event]:
        return fed(self.core, *map(self._encoder.encode, frames))

    def sent(self) -> list[Frame]:
        frames = self._decoder.receive_data(b"".join(self.core.data_to_send()))
        assert self._decoder.error is None
        return frames

    def open(self) -> tuple[int, int, int]:
        """Open a connection that is accepted; return its number and its two streams."""
        number = self.core.open(8080)
        error, data = self.sent()
        assert isinstance(error, SynStream)
        assert isinstance(data, SynStream)
        error_id, data_id = error.stream_id, data.stream_id
        assert self.feed(SynReply(data_id), SynReply(error_id)) == [ForwardOpened(number)]
        assert self.sent() == [Data(error_id, b"", is_last=True)]
        return number, error_id, data_id


# SPDY


def test_spdy_opens_a_pair_of_streams() -> None:
    spdy = Spdy()
    assert [spdy.core.open(80), spdy.core.open(65535)] == [0, 1]
    assert spdy.sent() == [
        SynStream(1, (("streamtype", "error"), ("port", "80"), ("requestid", "0"))),
        SynStream(3, (("streamtype", "data"), ("port", "80"), ("requestid", "0"))),
        SynStream(5, (("streamtype", "error"), ("port", "65535"), ("requestid", "1"))),
        SynStream(7, (("streamtype", "data"), ("port", "65535"), ("requestid", "1"))),
    ]
    assert spdy.feed(SynReply(1)) == []
    assert spdy.feed(SynReply(7), SynReply(5)) == [ForwardOpened(1)]


def test_spdy_carries_data_both_ways() -> None:
    spdy = Spdy()
    number, error_id, data_id = spdy.open()
    spdy.core.send(number, b"ask")
    spdy.core.send(number, b"")
    spdy.core.end(number)
    assert spdy.sent() == [Data(data_id, b"ask"), Data(data_id, b"", is_last=True)]
    assert spdy.feed(Data(data_id, b"tell", is_last=True)) == [
        ForwardReceived(number, b"tell"),
        ForwardEnded(number),
    ]
    assert spdy.feed(Data(error_id, b"", is_last=True)) == [ForwardClosed(number, "")]
    assert spdy.sent() == []
    assert not spdy.core.is_over
    assert spdy.open()[0] == 1


def test_spdy_ends_what_the_peer_has_ended() -> None:
    spdy = Spdy()
    number, error_id, data_id = spdy.open()
    spdy.feed(Data(data_id, b"", is_last=True))
    spdy.core.send(number, b"still")
    spdy.sent()
    spdy.feed(Data(error_id, b"", is_last=True))
    assert spdy.sent() == [Data(data_id, b"", is_last=True)]
    spdy.core.send(number, b"gone")
    spdy.core.end(number)
    assert spdy.sent() == []


def test_spdy_nobody_listens() -> None:
    """The text comes after the end of the data; the other connections go on."""
    spdy = Spdy()
    number, error_id, data_id = spdy.open()
    other = spdy.open()
    assert spdy.feed(
        Data(data_id, b"", is_last=True),
        Data(error_id, b"connection "),
        Data(error_id, b"refused\n"),
        Data(error_id, b"", is_last=True),
        Data(other[2], b"x"),
    ) == [
        ForwardEnded(number),
        ForwardClosed(number, "connection refused"),
        ForwardReceived(other[0], b"x"),
    ]


def test_spdy_error_texts_are_limited() -> None:
    spdy = Spdy()
    number, error_id, data_id = spdy.open()
    for _ in range(3):
        spdy.feed(Data(error_id, b"x" * (MAX_ERROR_BYTES // 2 + 1)))
    (_, closed) = spdy.feed(Data(data_id, b"", True), Data(error_id, b"", True))
    assert closed == ForwardClosed(number, "x" * MAX_ERROR_BYTES)


def test_spdy_refused_and_reset() -> None:
    spdy = Spdy()
    number = spdy.core.open(80)
    spdy.sent()
    assert spdy.feed(RstStream(1, ResetStatus.REFUSED_STREAM)) == [
        ForwardClosed(number, "the runtime refused to forward the connection")
    ]
    assert spdy.sent() == [RstStream(3, ResetStatus.CANCEL)]
    number, error_id, data_id = spdy.open()
    assert spdy.feed(RstStream(data_id, 5)) == [
        ForwardClosed(number, "the runtime reset the connection")
    ]
    assert spdy.sent() == [RstStream(error_id, ResetStatus.CANCEL)]
    assert spdy.feed(Data(error_id, b"late"), RstStream(error_id, 5)) == []


def test_spdy_accepted_and_reset_at_once() -> None:
    spdy = Spdy()
    number = spdy.core.open(80)
    encoder = FrameEncoder()
    frames: list[Frame] = [SynReply(1), SynReply(3), RstStream(1, ResetStatus.CANCEL)]
    assert fed(spdy.core, b"".join(map(encoder.encode, frames))) == [
        ForwardOpened(number),
        ForwardClosed(number, "the runtime reset the connection"),
    ]
    spdy.core.send(number, b"x")
    assert spdy.sent()[2:] == [RstStream(3, ResetStatus.CANCEL)]


def test_spdy_wrong_calls() -> None:
    spdy = Spdy()
    number = spdy.core.open(80)
    calls: list[Callable[[], object]] = [
        lambda: spdy.core.send(number, b"x"),
        lambda: spdy.core.end(number),
        lambda: spdy.core.open(0),
        lambda: spdy.core.open(65536),
    ]
    for call in calls:
        with pytest.raises(LocalProtocolError):
            call()
    assert spdy.core.can_end


def test_spdy_ping() -> None:
    spdy = Spdy()
    spdy.core.ping()
    assert spdy.sent() == [Ping(1)]
    assert spdy.feed(Ping(1)) == []


def test_spdy_other_frames_mean_nothing() -> None:
    spdy = Spdy()
    _, _, data_id = spdy.open()
    assert spdy.feed(Ping(2), Headers(data_id, ()), SynStream(2)) == []


def test_spdy_the_peer_goes_away() -> None:
    spdy = Spdy()
    number, _, data_id = spdy.open()
    late = spdy.core.open(80)
    assert spdy.feed(GoAway(data_id)) == [
        ForwardClosed(late, "the runtime refused to forward the connection")
    ]
    assert spdy.feed(Data(data_id, b"x")) == [ForwardReceived(number, b"x")]


def test_spdy_connection_lost() -> None:
    spdy = Spdy()
    number, error_id, _ = spdy.open()
    other, _, _ = spdy.open()
    spdy.feed(Data(error_id, b"why"))
    spdy.core.receive_eof()
    assert spdy.core.events_received() == [ForwardClosed(number, "why"), ForwardClosed(other, LOST)]
    assert spdy.core.is_over
    assert type(spdy.core.error) is StreamError
    spdy.core.receive_eof()
    assert spdy.core.events_received() == []


def test_spdy_violations() -> None:
    spdy = Spdy()
    number, _, data_id = spdy.open()
    assert fed(spdy.core, b"\x80\x02\0\0\0\0\0\0") == [
        ForwardClosed(number, "the peer does not speak SPDY/3")
    ]
    assert isinstance(spdy.core.error, RemoteProtocolError)
    spdy = Spdy()
    number, _, data_id = spdy.open()
    events = spdy.feed(Data(data_id, b"", True), Data(data_id, b"x"))
    assert events == [
        ForwardEnded(number),
        ForwardClosed(number, "the runtime reset the connection"),
    ]
    assert spdy.core.error is None


@pytest.mark.parametrize("piece_bytes", [1, 65536])
@pytest.mark.parametrize(
    ("exchange", "data"), [("forward", b"got hello"), ("forward-refused", b"")]
)
def test_recorded_by_containerd(exchange: str, data: bytes, piece_bytes: int) -> None:
    """What its server said makes these events, and what we send is what it took then."""
    ours = FrameDecoder()
    core = SpdyForward()
    sent = b""
    events: list[Event] = []
    recorded = b"".join(piece for side, piece in RECORDED[exchange] if side == "c")
    (first, *_) = ours.receive_data(recorded)
    assert isinstance(first, SynStream)
    core.open(int(dict(first.headers)["port"]))
    for side, piece in RECORDED[exchange]:
        if side == "s":
            for start in range(0, len(piece), piece_bytes):
                for event in fed(core, piece[start : start + piece_bytes]):
                    events.append(event)
                    if isinstance(event, ForwardOpened):
                        core.send(0, b"hello")
                        core.end(0)
        sent += b"".join(core.data_to_send())
    assert sent.startswith(RECORDED[exchange][0][1])
    assert events[0] == ForwardOpened(0)
    assert b"".join(event.data for event in events if isinstance(event, ForwardReceived)) == data
    assert events[-2] == ForwardEnded(0)
    assert isinstance(events[-1], ForwardClosed)
    assert ("connection refused" in events[-1].error) == (exchange == "forward-refused")
    assert bool(events[-1].error) == (exchange == "forward-refused")


# WebSocket


def opened() -> WebSocketForward:
    core = WebSocketForward([18080, 80])
    assert fed(core, b"\x00\xa0\x46", b"\x01\xa0\x46") == [ForwardOpened(0)]
    assert fed(core, b"\x03\x50\x00", b"\x02\x50\x00") == [ForwardOpened(1)]
    return core


def test_websocket_carries_data_both_ways() -> None:
    core = opened()
    core.send(1, b"x" * (MESSAGE_BYTES + 1))
    core.send(0, b"")
    assert core.data_to_send() == [b"\x02" + b"x" * MESSAGE_BYTES, b"\x02x"]
    assert core.data_to_send() == []
    assert fed(core, b"\x00answer", b"\x02", b"", b"\x02\x00\xff") == [
        ForwardReceived(0, b"answer"),
        ForwardReceived(1, b"\x00\xff"),
    ]
    core.receive_eof()
    assert core.events_received() == [ForwardClosed(0, ""), ForwardClosed(1, "")]
    assert core.error is None
    assert core.is_over
    core.receive_eof()
    assert fed(core, b"\x00x") == []


def test_websocket_the_port_may_come_in_any_pieces() -> None:
    core = WebSocketForward([18080])
    assert fed(core, b"\x00\xa0", b"\x00", b"\x00\x46early", b"\x01\xa0\x46no") == [
        ForwardReceived(0, b"early"),
        ForwardOpened(0),
        ForwardClosed(0, "no"),
    ]


def test_websocket_nobody_listens() -> None:
    core = opened()
    assert fed(core, b"\x01connection refused\n") == [ForwardClosed(0, "connection refused")]
    assert fed(core, b"\x01more", b"\x00x", b"\x02x") == [ForwardReceived(1, b"x")]
    core.send(0, b"x")
    core.end(0)
    assert core.data_to_send() == []
    core.receive_eof()
    assert core.events_received() == [ForwardClosed(1, "")]


def test_spdy_streams_of_the_peer_are_refused() -> None:
    spdy = Spdy()
    number = spdy.core.open(80)
    spdy.sent()
    assert spdy.feed(SynStream(2), Data(2, b"x"), Data(2, b"", is_last=True)) == []
    assert spdy.sent() == [RstStream(2, ResetStatus.REFUSED_STREAM)]
    spdy.core.receive_eof()
    assert spdy.core.events_received() == [ForwardClosed(number, LOST)]


def test_websocket_wrong_calls() -> None:
    core = WebSocketForward([18080])
    with pytest.raises(LocalProtocolError):
        core.send(0, b"x")
    assert not core.can_end
    with pytest.raises(StreamError, match="cannot be ended") as caught:
        opened().end(0)
    assert caught.value.hint == "use the transport spdy"
    for ports in ([], [0], [65536], [80] * 129):
        with pytest.raises(LocalProtocolError):
            WebSocketForward(ports)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"\x00\xa1\x46x", "the peer forwards another port than it was asked for"),
        (b"\x02\xa0\x46", "the peer sent data on a channel that does not exist"),
    ],
)
def test_websocket_violations(message: bytes, reason: str) -> None:
    core = WebSocketForward([18080])
    assert fed(core, message, b"\x00\xa0\x46") == [ForwardClosed(0, reason)]
    assert isinstance(core.error, RemoteProtocolError)
    assert core.error.message == reason


# Any bytes


@given(st.lists(st.binary(max_size=10) | st.sampled_from([b"\x00\xa0\x46", b"\x01\xa0\x46"])))
def test_no_message_makes_it_raise(messages: list[bytes]) -> None:
    core = WebSocketForward([18080])
    events = fed(core, *messages)
    core.receive_eof()
    events += core.events_received()
    assert sum(isinstance(event, ForwardClosed) for event in events) == 1


REPLIES = b"".join(data for side, data in RECORDED["forward-refused"] if side == "s")


@given(st.lists(st.tuples(st.integers(0, len(REPLIES) - 1), st.integers(1, 255)), max_size=4))
def test_no_change_of_a_recording_makes_it_raise(changes: list[tuple[int, int]]) -> None:
    data = bytearray(REPLIES)
    for position, mask in changes:
        data[position] ^= mask
    core = SpdyForward()
    core.open(80)
    for start in range(0, len(data), 40):
        core.receive_data(bytes(data[start : start + 40]))
    core.receive_eof()
    events = core.events_received()
    assert core.is_over
    assert sum(isinstance(event, ForwardClosed) for event in events) == 1


stream_ids = st.integers(1, 10)
some_frames = st.one_of(
    st.builds(SynReply, stream_ids, st.just(()), st.booleans()),
    st.builds(Data, stream_ids, st.binary(max_size=5), st.booleans()),
    st.builds(RstStream, stream_ids, st.integers(1, 12)),
    st.builds(SynStream, stream_ids),
    st.builds(Headers, stream_ids, st.just(())),
    st.builds(GoAway, stream_ids),
    st.builds(Ping, stream_ids),
)


@given(st.integers(1, 4), st.lists(some_frames, max_size=40))
def test_no_frames_make_it_raise(count: int, frames: list[Frame]) -> None:
    """Every connection ends once, and says nothing after that."""
    spdy = Spdy()
    numbers = [spdy.core.open(80) for _ in range(count)]
    spdy.sent()
    events = [event for frame in frames for event in spdy.feed(frame)]
    assert len(spdy.sent()) <= 4 * (count + len(frames))
    spdy.core.receive_eof()
    events += spdy.core.events_received()
    assert spdy.core.is_over
    for number in numbers:
        mine = [event for event in events if event.number == number]
        assert [isinstance(event, ForwardClosed) for event in mine].index(True) == len(mine) - 1
