"""One forwarded connection."""

from __future__ import annotations

import pytest

from pycrictl.streams.wire.channels import ChannelEnded, ChannelReceived, ChannelsOpened
from pycrictl.streams.wire.portforward import (
    MAX_ERROR_BYTES,
    Event,
    ForwardClosed,
    PortForward,
)
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
    """A forwarded connection, and its server."""

    def __init__(self) -> None:
        self.core = PortForward(8080)
        super().__init__(self.core, self.core.connection)
        assert len(self.sent()) == 2


def test_carries_data_both_ways() -> None:
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
def test_fails(frames: list[Frame], events: list[Event]) -> None:
    assert Spdy().feed(*frames) == events


@pytest.mark.parametrize(
    ("text", "error"), [(b"", "the connection to the runtime ended"), (b"why", "why")]
)
def test_connection_lost(text: bytes, error: str) -> None:
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
    core = PortForward(8080)
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
