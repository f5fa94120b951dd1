"""Commands over SPDY."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.errors import RemoteProtocolError, StreamError
from pycrictl.wire.channels import ChannelEnded, ChannelReceived, ChannelsOpened
from pycrictl.wire.command import (
    V4,
    Channel,
    Event,
    ExitReported,
    OutcomeUnknown,
    Streams,
    remote_command,
)
from tests.wire.remote import (
    EXIT_7,
    PIPED,
    SUCCESS,
    TERMINAL,
    Spdy,
    fed,
    out,
    violation_of,
)
from tests.wire.spdyframes import (
    Data,
    Frame,
    FrameEncoder,
    GoAway,
    Ping,
    RstStream,
    SynReply,
    SynStream,
)

from .recorded import RECORDED

# SPDY


@pytest.mark.parametrize(
    ("streams", "names"),
    [
        (PIPED, ["error", "stdin", "stdout", "stderr"]),
        (Streams(), ["error", "stdout", "stderr"]),
        (TERMINAL, ["error", "stdin", "stdout", "resize"]),
        (Streams(stdin=True, stdout=False, stderr=False), ["error", "stdin"]),
    ],
)
def test_spdy_streams(streams: Streams, names: list[str]) -> None:
    spdy = Spdy(streams)
    assert spdy.ids == dict(zip(names, (1, 3, 5, 7), strict=False))
    assert spdy.command.data_to_send() == []


def test_spdy_is_ready_when_all_streams_are_accepted() -> None:
    spdy = Spdy(ready=False)
    first, *others = spdy.ids.values()
    assert spdy.feed(*map(SynReply, others)) == []
    assert spdy.feed(SynReply(first)) == [ChannelsOpened()]


def test_spdy_takes_nothing_before_it_is_ready() -> None:
    spdy = Spdy(TERMINAL, ready=False)
    spdy.command.send_stdin(b"x")
    spdy.command.end_stdin()
    spdy.command.resize(width=80, height=24)
    assert spdy.sent() == []


def test_spdy_outcome_before_the_outputs_end() -> None:
    spdy = Spdy()
    assert spdy.feed(spdy.data("error", EXIT_7)) == [ExitReported(7, "exit code 7")]
    assert not spdy.command.is_over
    events = spdy.feed(spdy.reset("stdin"), spdy.reset("error"), spdy.data("stdout", b"late"))
    assert events == [ChannelEnded(Channel.STDIN, is_reset=True), out(b"late")]
    spdy.feed(spdy.reset("stdout"), spdy.reset("stderr"))
    assert spdy.command.is_over
    assert spdy.command.error is None


def test_spdy_ends_by_the_end_of_its_streams() -> None:
    spdy = Spdy()
    events = spdy.feed(
        spdy.data("error", SUCCESS, is_last=True),
        spdy.reset("stdout"),
        Ping(2),
        spdy.end("stdin"),
        spdy.end("stderr"),
    )
    assert events == [
        ExitReported(0),
        ChannelEnded(Channel.STDOUT, is_reset=True),
        ChannelEnded(Channel.STDERR),
    ]
    assert spdy.command.is_over
    assert spdy.command.error is None


def test_spdy_outcome_at_the_end_of_the_connection() -> None:
    spdy = Spdy()
    assert spdy.feed(spdy.data("error", SUCCESS)) == [ExitReported(0)]
    spdy.command.receive_eof()
    assert spdy.command.is_over
    assert spdy.command.error is None
    spdy = Spdy()
    spdy.feed(spdy.data("error", SUCCESS[:5]))
    spdy.command.receive_eof()
    assert isinstance(spdy.command.error, RemoteProtocolError)


def test_spdy_connection_lost() -> None:
    spdy = Spdy()
    spdy.feed(spdy.data("stdout", b"x"))
    spdy.command.receive_eof()
    assert isinstance(spdy.command.error, OutcomeUnknown)
    reason = "the connection to the runtime ended"
    assert spdy.command.error.message == f"the runtime sent no exit status: {reason}"


def test_spdy_ends_without_an_outcome() -> None:
    spdy = Spdy()
    assert spdy.feed(spdy.reset("error")) == []
    assert not spdy.command.is_over
    spdy.feed(spdy.reset("stdout"), spdy.reset("stderr"))
    assert spdy.command.is_over
    assert isinstance(spdy.command.error, OutcomeUnknown)


def test_spdy_awaits_nothing_but_the_outcome() -> None:
    spdy = Spdy()
    spdy.feed(spdy.end("stdout"))
    assert not spdy.command.awaits_outcome_only
    spdy.feed(spdy.end("stderr"))
    assert spdy.command.awaits_outcome_only
    spdy.command.ping()
    assert spdy.sent() == [Ping(1)]
    assert spdy.feed(Ping(1)) == []
    assert spdy.feed(spdy.data("error", SUCCESS)) == [ExitReported(0)]
    assert not spdy.command.awaits_outcome_only


def test_spdy_input_that_nobody_takes() -> None:
    spdy = Spdy()
    assert spdy.feed(spdy.reset("stdin")) == [ChannelEnded(Channel.STDIN, is_reset=True)]
    spdy.command.send_stdin(b"x")
    spdy.command.end_stdin()
    assert spdy.sent() == []


def test_spdy_resize() -> None:
    spdy = Spdy(TERMINAL)
    spdy.command.resize(width=80, height=24)
    assert spdy.sent() == [spdy.data("resize", b'{"Width":80,"Height":24}\n')]
    spdy.feed(spdy.reset("resize"))
    spdy.command.resize(width=81, height=25)
    assert spdy.sent() == []


def test_spdy_stream_refused() -> None:
    spdy = Spdy(ready=False)
    assert not spdy.command.is_ready
    spdy.feed(spdy.reset("stdout"))
    assert type(spdy.command.error) is StreamError
    assert spdy.command.error.message == "the server refused the stream stdout"
    assert spdy.feed(spdy.end("stderr")) == []


def test_spdy_violations() -> None:
    spdy = Spdy()
    reason = "the peer sent data on the stream stdin"
    assert violation_of(spdy.command, FrameEncoder().encode(spdy.data("stdin", b"x"))) == reason
    assert "SPDY/3" in violation_of(Spdy().command, b"\x80\x02\0\0\0\0\0\0")


def of(events: list[Event], channel: Channel) -> bytes:
    received = (event for event in events if isinstance(event, ChannelReceived))
    return b"".join(event.data for event in received if event.channel == channel)


@pytest.mark.parametrize("piece_bytes", [1, 65536])
@pytest.mark.parametrize(
    ("exchange", "streams", "expected"),
    [
        ("cat", PIPED, (b"hello\n" + bytes(range(256)), b"", 0)),
        ("outputs-and-exit-7", Streams(), (b"out\n", b"err\n", 7)),
        ("resize", TERMINAL, (b"34 101\r\n", b"", 0)),
        ("missing-command", Streams(), (b"", b"", None)),
    ],
)
def test_recorded_by_containerd(
    exchange: str, streams: Streams, expected: tuple[bytes, bytes, int | None], piece_bytes: int
) -> None:
    """What its server said makes these events, and what we send is what it took then."""
    command = remote_command("spdy", V4, streams)
    ours = b"".join(command.data_to_send())
    events: list[Event] = []
    for side, data in RECORDED[exchange]:
        if side == "s":
            for start in range(0, len(data), piece_bytes):
                events += fed(command, data[start : start + piece_bytes])
    assert command.is_over
    assert command.error is None
    assert events[0] == ChannelsOpened()
    stdout, stderr = of(events, Channel.STDOUT), of(events, Channel.STDERR)
    (outcome,) = (event for event in events if isinstance(event, ExitReported))
    assert (stdout, stderr, outcome.exit_code) == expected
    assert ours == RECORDED[exchange][0][1]
    if exchange == "missing-command":
        assert "executable file not found" in outcome.message


# Any bytes


stream_ids = st.integers(1, 12)
some_frames = st.one_of(
    st.builds(SynReply, stream_ids, st.just(()), st.booleans()),
    st.builds(Data, stream_ids, st.binary(max_size=5) | st.just(SUCCESS), st.booleans()),
    st.builds(Data, stream_ids, st.just(b""), st.just(True)),
    st.builds(RstStream, stream_ids, st.integers(1, 12)),
    st.builds(SynStream, stream_ids, st.just(()), st.booleans()),
    st.builds(GoAway, stream_ids, st.just(1)),
    st.builds(Ping, stream_ids),
)


@given(
    st.sampled_from([PIPED, TERMINAL, Streams()]),
    st.booleans(),
    st.lists(some_frames, max_size=40),
)
def test_no_frames_make_it_raise(streams: Streams, ready: bool, frames: list[Frame]) -> None:
    spdy = Spdy(streams, ready=ready)
    events = [event for frame in frames for event in spdy.feed(frame)]
    assert len(spdy.sent()) <= len(frames) + 1
    spdy.command.receive_eof()
    events += spdy.command.events_received()
    assert spdy.command.is_over
    reported = sum(isinstance(event, ExitReported) for event in events)
    assert reported <= 1
    assert reported or spdy.command.error is not None
