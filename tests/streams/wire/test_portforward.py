"""One forwarded connection over either transport."""

from __future__ import annotations

import pytest

from pycrictl.streams.wire.channels import ChannelEnded, ChannelReceived, ChannelsOpened
from pycrictl.streams.wire.portforward import (
    MAX_ERROR_BYTES,
    Event,
    ForwardClosed,
    PortForward,
    port_forward,
)
from tests.streams.wire.frames import BINARY, close_frame, frame, read_frames
from tests.streams.wire.recorded import RECORDED
from tests.streams.wire.remote import SpdyServer
from tests.streams.wire.spdyframes import Data, Frame, GoAway, RstStream, SynReply

ERROR, DATA = 1, 3
"""The stream numbers over SPDY."""

ACCEPTED = [SynReply(DATA), SynReply(ERROR)]
LONG = Data(ERROR, b"x" * MAX_ERROR_BYTES)
RESET = ForwardClosed("the runtime reset the connection")
REFUSED = ForwardClosed("the runtime refused to forward the connection")


def fed(core: PortForward, *pieces: bytes) -> list[Event]:
    for piece in pieces:
        core.connection.receive_data(piece)
    return core.events_received()


class Spdy(SpdyServer[Event]):
    """A port forward over SPDY, and its server."""

    def __init__(self) -> None:
        self.core = port_forward("spdy", 8080)
        super().__init__(self.core, self.core.connection)
        assert len(self.sent()) == 2


# SPDY


def test_spdy_carries_data_both_ways() -> None:
    spdy = Spdy()
    assert spdy.feed(*ACCEPTED) == [ChannelsOpened()]
    assert spdy.sent() == [Data(ERROR, b"", is_last=True)]
    spdy.core.connection.send(0, b"ask")
    spdy.core.connection.end(0)
    assert spdy.sent() == [Data(DATA, b"ask"), Data(DATA, b"", is_last=True)]
    told = [ChannelReceived(0, b"tell"), ChannelEnded(0)]
    assert spdy.feed(Data(DATA, b"tell", is_last=True)) == told
    assert not spdy.core.is_over
    assert spdy.feed(Data(ERROR, b"", is_last=True)) == [ForwardClosed("")]
    assert spdy.core.is_over


@pytest.mark.parametrize(
    ("frames", "events"),
    [
        ([RstStream(ERROR, 3)], [REFUSED]),
        ([GoAway(0)], [REFUSED]),
        (
            [*ACCEPTED, RstStream(DATA, 5), Data(ERROR, b"late"), RstStream(ERROR, 5)],
            [ChannelsOpened(), RESET],
        ),
        (
            [*ACCEPTED, LONG, LONG, Data(DATA, b"", True), Data(ERROR, b"", True)],
            [ChannelsOpened(), ChannelEnded(0), ForwardClosed("x" * MAX_ERROR_BYTES)],
        ),
    ],
    ids=["refused", "goaway", "reset", "long text"],
)
def test_spdy_fails(frames: list[Frame], events: list[Event]) -> None:
    assert Spdy().feed(*frames) == events


@pytest.mark.parametrize(
    ("text", "error"), [(b"", "the connection to the runtime ended"), (b"why", "why")]
)
def test_spdy_connection_lost(text: bytes, error: str) -> None:
    spdy = Spdy()
    spdy.feed(*ACCEPTED, Data(ERROR, text))
    spdy.core.connection.receive_eof()
    assert spdy.core.events_received() == [ForwardClosed(error)]
    assert spdy.core.is_over
    assert spdy.core.events_received() == []


@pytest.mark.parametrize("piece_bytes", [1, 65536])
@pytest.mark.parametrize(
    ("exchange", "data"), [("forward", b"got hello"), ("forward-refused", b"")]
)
def test_recorded_by_containerd(exchange: str, data: bytes, piece_bytes: int) -> None:
    """The recorded responses yield these events."""
    core = port_forward("spdy", 8080)
    events: list[Event] = []
    for side, piece in RECORDED[exchange]:
        if side == "s":
            for start in range(0, len(piece), piece_bytes):
                for event in fed(core, piece[start : start + piece_bytes]):
                    events.append(event)
                    if isinstance(event, ChannelsOpened):
                        core.connection.send(0, b"hello")
                        core.connection.end(0)
    assert events[0] == ChannelsOpened()
    assert b"".join(event.data for event in events if isinstance(event, ChannelReceived)) == data
    assert events[-2] == ChannelEnded(0)
    assert isinstance(events[-1], ForwardClosed)
    assert ("connection refused" in events[-1].error) == (exchange == "forward-refused")
    assert bool(events[-1].error) == (exchange == "forward-refused")


# WebSocket

PORTS = [frame(BINARY, b"\x00\xa0\x46"), frame(BINARY, b"\x01\xa0\x46")]
OTHER_PORT = "the peer forwards another port than it was asked for"
NO_CHANNEL = "the peer sent data on a channel that does not exist"
GARBLED = "the runtime broke the WebSocket protocol: invalid opcode"


def heard(core: PortForward, *messages: bytes) -> list[Event]:
    return fed(core, *(frame(BINARY, message) for message in messages))


@pytest.mark.parametrize("is_closed", [True, False])
def test_websocket_carries_data_both_ways(is_closed: bool) -> None:
    core = port_forward("websocket", 18080)
    assert fed(core, *PORTS) == [ChannelsOpened()]
    core.connection.send(0, b"ask")
    assert read_frames(core.connection.data_to_send()) == [(BINARY, b"\x00ask")]
    assert heard(core, b"\x00answer", b"\x00", b"", b"\x00\x00\xff") == [
        ChannelReceived(0, b"answer"),
        ChannelReceived(0, b"\x00\xff"),
    ]
    if is_closed:
        core.connection.receive_data(close_frame(1000))
    else:  # as runtimes do
        core.connection.receive_eof()
    assert core.events_received() == [ForwardClosed("")]
    assert core.is_over
    assert heard(core, b"\x00x") == []


@pytest.mark.parametrize(
    ("pieces", "events"),
    [
        (
            [frame(BINARY, text) for text in (b"\x00\xa0", b"\x00", b"\x00\x46early")]
            + [frame(BINARY, b"\x01\xa0\x46no")],
            [ChannelReceived(0, b"early"), ChannelsOpened(), ForwardClosed("no")],
        ),
        (
            [*PORTS, frame(BINARY, b"\x01refused\n"), frame(BINARY, b"\x01more")],
            [ChannelsOpened(), ForwardClosed("refused")],
        ),
        ([frame(BINARY, b"\x00\xa1\x46x"), *PORTS], [ForwardClosed(OTHER_PORT)]),
        ([frame(BINARY, b"\x02\xa0\x46"), *PORTS], [ForwardClosed(NO_CHANNEL)]),
        ([b"\x83\x00", *PORTS], [ForwardClosed(GARBLED)]),
        (
            [close_frame(1011, "oops"), *PORTS],
            [ForwardClosed("the runtime closed the stream with status 1011: 'oops'")],
        ),
    ],
    ids=["torn port", "refused", "other port", "no channel", "garbled", "failure"],
)
@pytest.mark.parametrize("is_torn", [True, False])
def test_websocket_answers(pieces: list[bytes], events: list[Event], is_torn: bool) -> None:
    if is_torn:
        pieces = [bytes((byte,)) for byte in b"".join(pieces)]
    assert fed(port_forward("websocket", 18080), *pieces) == events
