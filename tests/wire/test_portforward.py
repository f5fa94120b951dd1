"""One forwarded connection over either transport."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.wire.channels import (
    MESSAGE_BYTES,
    ChannelEnded,
    ChannelReceived,
    ChannelsOpened,
)
from pycrictl.wire.portforward import (
    MAX_ERROR_BYTES,
    Event,
    ForwardClosed,
    PortForward,
    port_forward,
)
from tests.wire.frames import BINARY, CLOSE, close_frame, frame, read_frames
from tests.wire.recorded import RECORDED
from tests.wire.remote import SpdyServer
from tests.wire.spdyframes import (
    Data,
    Frame,
    FrameDecoder,
    FrameEncoder,
    GoAway,
    Ping,
    RstStream,
    SynReply,
    SynStream,
)

LOST = "the connection to the runtime ended"
ERROR, DATA = 1, 3
"""Numbers of the streams over SPDY."""


def fed(core: PortForward, *pieces: bytes) -> list[Event]:
    for piece in pieces:
        core.receive_data(piece)
    return core.events_received()


class Spdy(SpdyServer[Event]):
    """A port forward over SPDY, and its server."""

    def __init__(self) -> None:
        self.core = port_forward("spdy", 8080)
        super().__init__(self.core)

    def open(self) -> Spdy:
        """Have the server accept it."""
        assert len(self.sent()) == 2
        assert self.feed(SynReply(DATA), SynReply(ERROR)) == [ChannelsOpened()]
        assert self.sent() == [Data(ERROR, b"", is_last=True)]
        return self


# SPDY


def test_spdy_carries_data_both_ways() -> None:
    spdy = Spdy().open()
    spdy.core.send(b"ask")
    spdy.core.send(b"")
    spdy.core.end()
    assert spdy.sent() == [Data(DATA, b"ask"), Data(DATA, b"", is_last=True)]
    assert spdy.feed(Data(DATA, b"tell", is_last=True)) == [
        ChannelReceived(0, b"tell"),
        ChannelEnded(0),
    ]
    assert not spdy.core.is_over
    assert spdy.feed(Data(ERROR, b"", is_last=True)) == [ForwardClosed("")]
    assert spdy.core.is_over
    assert spdy.sent() == []


def test_spdy_error_texts_are_limited() -> None:
    spdy = Spdy().open()
    for _ in range(3):
        spdy.feed(Data(ERROR, b"x" * (MAX_ERROR_BYTES // 2 + 1)))
    (_, closed) = spdy.feed(Data(DATA, b"", True), Data(ERROR, b"", True))
    assert closed == ForwardClosed("x" * MAX_ERROR_BYTES)


def test_spdy_refused() -> None:
    spdy = Spdy()
    refused = ForwardClosed("the runtime refused to forward the connection")
    assert spdy.feed(RstStream(ERROR, 3)) == [refused]
    assert Spdy().feed(GoAway(0)) == [refused]


def test_spdy_reset() -> None:
    spdy = Spdy().open()
    reset = ForwardClosed("the runtime reset the connection")
    assert spdy.feed(RstStream(DATA, 5)) == [reset]
    assert spdy.feed(Data(ERROR, b"late"), RstStream(ERROR, 5)) == []


def test_spdy_accepted_and_reset_at_once() -> None:
    spdy = Spdy()
    encoder = FrameEncoder()
    frames: list[Frame] = [SynReply(ERROR), SynReply(DATA), RstStream(ERROR, 5)]
    assert fed(spdy.core, b"".join(map(encoder.encode, frames))) == [
        ChannelsOpened(),
        ForwardClosed("the runtime reset the connection"),
    ]
    spdy.core.send(b"x")
    assert spdy.sent()[2:] == []


@pytest.mark.parametrize(("text", "error"), [(b"", LOST), (b"why", "why")])
def test_spdy_connection_lost(text: bytes, error: str) -> None:
    spdy = Spdy().open()
    spdy.feed(Data(ERROR, text))
    spdy.core.receive_eof()
    assert spdy.core.events_received() == [ForwardClosed(error)]
    assert spdy.core.is_over
    spdy.core.receive_eof()
    assert spdy.core.events_received() == []


@pytest.mark.parametrize("piece_bytes", [1, 65536])
@pytest.mark.parametrize(
    ("exchange", "data"), [("forward", b"got hello"), ("forward-refused", b"")]
)
def test_recorded_by_containerd(exchange: str, data: bytes, piece_bytes: int) -> None:
    """What its server said makes these events, and what we send is what it took then."""
    recorded = b"".join(piece for side, piece in RECORDED[exchange] if side == "c")
    (first, *_) = FrameDecoder().receive_data(recorded)
    assert isinstance(first, SynStream)
    core = port_forward("spdy", int(dict(first.headers)["port"]))
    sent = b""
    events: list[Event] = []
    for side, piece in RECORDED[exchange]:
        if side == "s":
            for start in range(0, len(piece), piece_bytes):
                for event in fed(core, piece[start : start + piece_bytes]):
                    events.append(event)
                    if isinstance(event, ChannelsOpened):
                        core.send(b"hello")
                        core.end()
        sent += b"".join(core.data_to_send())
    assert sent.startswith(RECORDED[exchange][0][1])
    assert events[0] == ChannelsOpened()
    assert b"".join(event.data for event in events if isinstance(event, ChannelReceived)) == data
    assert events[-2] == ChannelEnded(0)
    assert isinstance(events[-1], ForwardClosed)
    assert ("connection refused" in events[-1].error) == (exchange == "forward-refused")
    assert bool(events[-1].error) == (exchange == "forward-refused")


# WebSocket


def heard(core: PortForward, *messages: bytes) -> list[Event]:
    """What comes of messages of the server."""
    return fed(core, *(frame(BINARY, message) for message in messages))


def opened() -> PortForward:
    core = port_forward("websocket", 18080)
    assert heard(core, b"\x00\xa0\x46", b"\x01\xa0\x46") == [ChannelsOpened()]
    return core


def test_websocket_carries_data_both_ways() -> None:
    core = opened()
    core.send(b"x" * (MESSAGE_BYTES + 1))
    core.send(b"")
    assert read_frames(core.data_to_send()) == [
        (BINARY, b"\x00" + b"x" * MESSAGE_BYTES),
        (BINARY, b"\x00x"),
    ]
    assert core.data_to_send() == []
    assert heard(core, b"\x00answer", b"\x00", b"", b"\x00\x00\xff") == [
        ChannelReceived(0, b"answer"),
        ChannelReceived(0, b"\x00\xff"),
    ]
    assert fed(core, close_frame(1000)) == [ForwardClosed("")]
    assert core.is_over
    core.receive_eof()
    assert heard(core, b"\x00x") == []
    assert read_frames(core.data_to_send()) == [(CLOSE, b"\x03\xe8")]


def test_websocket_the_port_may_come_in_any_pieces() -> None:
    core = port_forward("websocket", 18080)
    assert heard(core, b"\x00\xa0", b"\x00", b"\x00\x46early", b"\x01\xa0\x46no") == [
        ChannelReceived(0, b"early"),
        ChannelsOpened(),
        ForwardClosed("no"),
    ]


@pytest.mark.parametrize("piece_bytes", [1, 5, 100])
def test_websocket_nobody_listens(piece_bytes: int) -> None:
    core = opened()
    text = frame(BINARY, b"\x01connection refused\n")
    pieces = [text[start : start + piece_bytes] for start in range(0, len(text), piece_bytes)]
    assert fed(core, *pieces) == [ForwardClosed("connection refused")]
    assert heard(core, b"\x01more", b"\x00x") == []
    core.send(b"x")
    core.end()
    assert core.data_to_send() == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (
            frame(BINARY, b"\x00\xa1\x46x"),
            "the peer forwards another port than it was asked for",
        ),
        (
            frame(BINARY, b"\x02\xa0\x46"),
            "the peer sent data on a channel that does not exist",
        ),
        (b"\x83\x00", "the runtime broke the WebSocket protocol: invalid opcode"),
        (close_frame(1011, "oops"), "the runtime closed the stream with status 1011: 'oops'"),
    ],
)
def test_websocket_violations(data: bytes, reason: str) -> None:
    core = port_forward("websocket", 18080)
    assert fed(core, data, frame(BINARY, b"\x00\xa0\x46")) == [ForwardClosed(reason)]


# Any bytes


@given(st.lists(st.binary(max_size=10) | st.sampled_from([b"\x00\xa0\x46", b"\x01\xa0\x46"])))
def test_no_message_makes_it_raise(messages: list[bytes]) -> None:
    core = port_forward("websocket", 18080)
    events = heard(core, *messages)
    core.receive_eof()
    events += core.events_received()
    assert sum(isinstance(event, ForwardClosed) for event in events) == 1


stream_ids = st.integers(1, 5)
some_frames = st.one_of(
    st.builds(SynReply, stream_ids, st.just(()), st.booleans()),
    st.builds(Data, stream_ids, st.binary(max_size=5), st.booleans()),
    st.builds(RstStream, stream_ids, st.integers(1, 12)),
    st.builds(SynStream, stream_ids, st.just(()), st.booleans()),
    st.builds(GoAway, stream_ids, st.just(1)),
    st.builds(Ping, stream_ids),
)


@given(st.lists(some_frames, max_size=40))
def test_no_frames_make_it_raise(frames: list[Frame]) -> None:
    """It ends once, and says nothing after that."""
    spdy = Spdy()
    spdy.sent()
    events = [event for frame in frames for event in spdy.feed(frame)]
    assert len(spdy.sent()) <= 4 * (1 + len(frames))
    spdy.core.receive_eof()
    events += spdy.core.events_received()
    assert spdy.core.is_over
    assert [isinstance(event, ForwardClosed) for event in events].index(True) == len(events) - 1
