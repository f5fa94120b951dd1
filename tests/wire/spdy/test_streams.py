from __future__ import annotations

import pytest

from pycrictl.errors import LocalProtocolError
from pycrictl.wire import limits
from pycrictl.wire.channels import (
    MESSAGE_BYTES,
    ChannelEnded,
    ChannelReceived,
    ChannelsOpened,
    Event,
)
from pycrictl.wire.spdy.frames import (
    Data,
    Frame,
    FrameEncoder,
    GoAway,
    Ping,
    RstStream,
    SynReply,
    SynStream,
)
from pycrictl.wire.spdy.streams import SpdyChannels
from tests.wire.remote import SpdyServer

FIELDS = (("streamtype", "stdin"),)
A, B = 7, 8
"""Channels, on the streams 1 and 3."""


class Peer(SpdyServer[Event]):
    """A connection with two channels, and the other side of it."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.core = SpdyChannels({A: FIELDS, B: ()})
        super().__init__(self.core)
        if is_open:
            assert self.feed(SynReply(1), SynReply(3)) == [ChannelsOpened()]
            self.sent()


def test_streams_are_opened_and_accepted() -> None:
    peer = Peer(is_open=False)
    assert peer.sent() == [SynStream(1, FIELDS), SynStream(3)]
    assert peer.feed(SynReply(3, (("answer", "yes"),))) == []
    assert not peer.core.can_send(B)
    for wrong in (peer.core.end, lambda channel: peer.core.send(channel, b"x")):
        with pytest.raises(LocalProtocolError):
            wrong(B)
    assert peer.feed(SynReply(1, (), True)) == [ChannelsOpened(), ChannelEnded(A)]
    assert peer.core.can_send(A)
    assert not peer.core.can_send(9)


def test_data_both_ways() -> None:
    peer = Peer()
    data = bytes(range(256)) * 256
    peer.core.send(A, data + b"!")
    peer.core.send(A, b"")
    assert peer.sent() == [
        Data(1, data[:MESSAGE_BYTES]),
        Data(1, data[MESSAGE_BYTES:]),
        Data(1, b"!"),
    ]
    assert peer.feed(Data(1, b"back"), Data(1, b"")) == [ChannelReceived(A, b"back")]


def test_each_side_ends_its_own() -> None:
    peer = Peer()
    peer.core.end(A)
    assert peer.sent() == [Data(1, b"", is_last=True)]
    for wrong in (peer.core.end, lambda channel: peer.core.send(channel, b"x")):
        with pytest.raises(LocalProtocolError):
            wrong(A)
    assert peer.feed(Data(1, b"rest", is_last=True)) == [
        ChannelReceived(A, b"rest"),
        ChannelEnded(A),
    ]
    assert peer.feed(Data(1, b"late"), RstStream(1, 5)) == []
    assert peer.feed(Data(3, b"", is_last=True)) == [ChannelEnded(B)]
    peer.core.send(B, b"still")
    peer.core.end(B)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (Data(1, b"x"), "the peer sent data on a SPDY stream before it accepted it"),
        (Data(0, b"x"), "the peer used a SPDY stream that was never opened"),
        (Data(5, b"x"), "the peer used a SPDY stream that was never opened"),
        (SynReply(5), "the peer used a SPDY stream that was never opened"),
        (RstStream(2, 5), "the peer used a SPDY stream that was never opened"),
        (SynStream(2, FIELDS), "the peer opened a SPDY stream"),
    ],
)
def test_violations_end_the_connection(frame: Frame, reason: str) -> None:
    peer = Peer(is_open=False)
    peer.sent()
    assert peer.feed(frame) == []
    assert peer.core.is_over
    assert str(peer.core.error) == reason
    assert peer.sent() == [GoAway(0, 1)]


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
    for _ in range(limits.STREAM_IDLE_FRAMES - 2):
        peer.feed(frame)
    peer.feed(Data(1, b"content"))
    for _ in range(limits.STREAM_IDLE_FRAMES):
        peer.feed(frame)
    empty = FrameEncoder().encode(frame)
    peer.core.receive_data(empty * limits.STREAM_IDLE_FRAMES_PER_S, 1.0)
    assert not peer.core.is_over
    peer.core.receive_data(empty, 1.0)
    assert str(peer.core.error) == "the peer sends too many empty SPDY frames"


def test_the_peer_goes_away() -> None:
    peer = Peer(is_open=False)
    assert peer.feed(SynReply(1), GoAway(0), GoAway(0)) == [ChannelEnded(B, is_reset=True)]
    assert peer.feed(Data(1, b"x")) == [ChannelReceived(A, b"x")]
