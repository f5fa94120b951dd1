"""A client's connection over SPDY/3.1: its frames and its streams."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.base import limits
from pycrictl.streams.wire.channels import (
    MESSAGE_BYTES,
    ChannelEnded,
    ChannelReceived,
    ChannelsOpened,
    Event,
)
from pycrictl.streams.wire.spdy import MAX_CONTROL_BYTES, Kind, SpdyChannels
from tests.streams.wire.remote import SpdyServer
from tests.streams.wire.spdyframes import (
    Data,
    Frame,
    FrameEncoder,
    GoAway,
    Ping,
    RstStream,
    SynReply,
    SynStream,
    control,
)

STDIN = (("streamtype", "stdin"),)
A, B = 7, 8
"""Channels, carried by the streams 1 and 3."""


class Peer(SpdyServer[Event]):
    """A connection with two channels, and its server."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.core = SpdyChannels({A: STDIN, B: ()})
        super().__init__(self.core, self.core)
        if is_open:
            assert self.feed(SynReply(1), SynReply(3)) == [ChannelsOpened()]
            self.sent()


def encoded(*frames: Frame) -> bytes:
    encoder = FrameEncoder()
    return b"".join(map(encoder.encode, frames))


# Frames


def test_reserved_bits_and_unknown_flags_are_left_out() -> None:
    peer = Peer()
    peer.core.receive_data(struct.pack(">II", 1, 0xFE << 24))
    peer.core.receive_data(control(Kind.RST_STREAM, b"\x80\0\0\x01\0\0\0\x05"))
    assert peer.core.events_received() == [ChannelEnded(A, is_reset=True)]


def test_control_frames_that_say_nothing_are_left_out() -> None:
    peer = Peer()
    for kind, payload in (
        (10, b"credential"),
        (4, b"\0\0\0\x01\x03\0\0\x04\0\0\0\x09"),  # SETTINGS; the next is malformed
        (4, b""),
        (9, b"\0\0\0\x01\0\0\0\x05"),  # WINDOW_UPDATE
        (Kind.HEADERS, b"\0\0\0\x01nonsense"),
        (Kind.SYN_REPLY, b"\0\0\0\x01nonsense"),
    ):
        peer.core.receive_data(control(kind, payload) + encoded(Ping(2)))
        assert peer.sent() == [Ping(2)]


def test_data_is_passed_on_as_it_comes() -> None:
    core = Peer().core
    core.receive_data(struct.pack(">II", 1, 0x01FFFFFF))
    core.receive_data(b"a")
    assert core.events_received() == [ChannelReceived(A, b"a")]
    rest = bytes(2**24 - 2)
    core.receive_data(rest + encoded(Ping(2)))
    assert core.events_received() == [ChannelReceived(A, rest), ChannelEnded(A)]
    assert core.data_to_send() == [encoded(Ping(2))]


WHOLE = encoded(
    SynReply(1, (("answer", "yes"),)),
    Ping(2),
    SynReply(3),
    Data(1, b"data"),
    Data(3, b""),
    Data(3, b"more", is_last=True),
    RstStream(1, 5),
)


@given(st.lists(st.integers(0, len(WHOLE))))
def test_pieces_may_end_anywhere(cuts: list[int]) -> None:
    peer = Peer(is_open=False)
    peer.sent()
    received: dict[int, bytes] = {A: b"", B: b""}
    ends = []
    for start, end in pairwise([0, *sorted(cuts), len(WHOLE)]):
        peer.core.receive_data(WHOLE[start:end])
        for event in peer.core.events_received():
            if isinstance(event, ChannelReceived):
                received[event.channel] += event.data
            else:
                ends.append(event)
    assert received == {A: b"data", B: b"more"}
    assert ends == [ChannelsOpened(), ChannelEnded(B), ChannelEnded(A, is_reset=True)]
    assert peer.sent() == [Ping(2)]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (control(6, b"\0\0\0\1", version=2), "the peer does not speak SPDY/3"),
        (control(6, bytes(MAX_CONTROL_BYTES + 1)), "a SPDY control frame is too long"),
        (control(2, b"\0\0\0"), "a SPDY frame is cut off"),
        (control(7, b""), "a SPDY frame is cut off"),
    ],
)
def test_frames_that_are_none(data: bytes, reason: str) -> None:
    peer = Peer()
    peer.core.receive_data(encoded(Ping(2)) + data)
    assert str(peer.core.error) == reason
    assert peer.sent() == [Ping(2), GoAway(0, 1)]
    peer.core.receive_data(encoded(Ping(4)))
    assert peer.sent() == []


# Streams


def test_streams_are_opened_and_accepted() -> None:
    peer = Peer(is_open=False)
    assert peer.sent() == [SynStream(1, STDIN), SynStream(3)]
    assert peer.feed(SynReply(3, (("answer", "yes"),))) == []
    peer.core.send(B, b"dropped")
    peer.core.end(B)
    assert peer.sent() == []
    assert peer.feed(SynReply(1, (), True)) == [ChannelsOpened(), ChannelEnded(A)]
    peer.core.send(A, b"sent")
    peer.core.send(9, b"dropped")
    assert peer.sent() == [Data(1, b"sent")]


def test_data_both_ways() -> None:
    peer = Peer()
    data = bytes(range(256)) * 256
    peer.core.send(A, data + b"!")
    peer.core.send(A, b"")
    pieces = data[:MESSAGE_BYTES], data[MESSAGE_BYTES:], b"!"
    assert peer.sent() == [Data(1, piece) for piece in pieces]
    assert peer.feed(Data(1, b"back"), Data(1, b"")) == [ChannelReceived(A, b"back")]


def test_each_side_ends_its_own() -> None:
    peer = Peer()
    peer.core.end(A)
    assert peer.sent() == [Data(1, b"", is_last=True)]
    peer.core.send(A, b"dropped")
    peer.core.end(A)
    assert peer.sent() == []
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
        (Data(1, b"x"), "the peer sent data on a SPDY stream before accepting it"),
        (Data(0, b"x"), "the peer used a SPDY stream that was never opened"),
        (Data(5, b"x"), "the peer used a SPDY stream that was never opened"),
        (SynReply(5), "the peer used a SPDY stream that was never opened"),
        (RstStream(2, 5), "the peer used a SPDY stream that was never opened"),
        (SynStream(2, STDIN), "the peer opened a SPDY stream"),
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
    assert peer.feed(Ping(3), Ping(2)) == []
    assert peer.sent() == [Ping(2)]


@pytest.mark.parametrize("frame", [Ping(2), Ping(1), Data(1, b"")], ids=["ping", "pong", "empty"])
def test_frames_without_content_are_limited(frame: Frame) -> None:
    """Both in a row and per second."""
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
