"""Remote commands over both transports, and parsing their outcomes."""

from __future__ import annotations

import json

import pytest

from pycrictl.base.errors import RemoteProtocolError, StreamError
from pycrictl.streams.wire.channels import (
    MESSAGE_BYTES,
    ChannelEnded,
    ChannelReceived,
    ChannelsOpened,
)
from pycrictl.streams.wire.command import (
    MAX_STATUS_BYTES,
    Channel,
    Event,
    ExitReported,
    RemoteCommand,
    Streams,
    parse_status,
    remote_command,
)
from tests.streams.wire.frames import BINARY, CLOSE, close_frame, frame, read_frames
from tests.streams.wire.recorded import RECORDED
from tests.streams.wire.remote import SpdyServer
from tests.streams.wire.spdyframes import Data, Frame, Ping, RstStream, SynReply, SynStream

SUCCESS = b'{"metadata":{},"status":"Success"}'
CAUSE = {"reason": "ExitCode", "message": "7"}
NON_ZERO = {"status": "Failure", "message": "m", "reason": "NonZeroExitCode"}
EXIT_7 = json.dumps({**NON_ZERO, "details": {"causes": [CAUSE]}}).encode()
PIPED = Streams(stdin=True)
TERMINAL = Streams(stdin=True, stderr=False, tty=True)
ERROR, STDIN, STDOUT, STDERR = 1, 3, 5, 7
"""The stream numbers of a piped command over SPDY."""

LATE = ChannelReceived(Channel.STDOUT, b"late")
STDOUT_ENDED, STDERR_ENDED = ChannelEnded(Channel.STDOUT), ChannelEnded(Channel.STDERR)


def reset(channel: Channel) -> ChannelEnded:
    return ChannelEnded(channel, is_reset=True)


def websocket(streams: Streams = PIPED) -> RemoteCommand:
    command = remote_command("websocket", streams)
    assert command.events_received() == [ChannelsOpened()]
    return command


def fed(command: RemoteCommand, *pieces: bytes) -> list[Event]:
    for piece in pieces:
        command.connection.receive_data(piece)
    return command.events_received()


def heard(command: RemoteCommand, *messages: bytes) -> list[Event]:
    return fed(command, *(frame(BINARY, message) for message in messages))


def said(command: RemoteCommand) -> list[bytes]:
    sent = read_frames(command.connection.data_to_send())
    assert {opcode for opcode, _ in sent} <= {BINARY}
    return [payload for _, payload in sent]


class Spdy(SpdyServer[Event]):
    def __init__(self, streams: Streams = PIPED, *, is_ready: bool = True) -> None:
        self.command = remote_command("spdy", streams)
        super().__init__(self.command, self.command.connection)
        self.opened = self.sent()
        if is_ready:
            replies = [SynReply(2 * number + 1) for number in range(len(self.opened))]
            assert self.feed(*replies) == [ChannelsOpened()]


def over_both(*messages: bytes) -> list[tuple[RemoteCommand, list[Event]]]:
    """Receive an outcome in pieces over each transport; return the commands and events."""
    spdy, other = Spdy(), websocket()
    spoken = spdy.feed(*(Data(ERROR, message) for message in messages))
    written = heard(other, *(b"\x03" + message for message in messages))
    return [(spdy.command, spoken), (other, written)]


# WebSocket


def test_websocket_output_and_outcome() -> None:
    command = websocket()
    outputs = (b"\x01", b"\x01out", b"\x02err", b"", b"\x01\x00\xff")
    assert heard(command, *outputs, b"\x03" + SUCCESS[:9], b"\x03" + SUCCESS[9:]) == [
        ChannelReceived(Channel.STDOUT, b"out"),
        ChannelReceived(Channel.STDERR, b"err"),
        ChannelReceived(Channel.STDOUT, b"\x00\xff"),
        ExitReported(0),
    ]
    assert not command.is_over
    assert fed(command, close_frame(1000)) == []
    assert command.is_over
    assert command.error is None
    assert [opcode for opcode, _ in read_frames(command.connection.data_to_send())] == [CLOSE]
    assert heard(command, b"\x01late") == []


def test_websocket_input() -> None:
    command = websocket(TERMINAL)
    command.connection.send(Channel.STDIN, b"x" * (MESSAGE_BYTES + 1))
    command.connection.send(Channel.STDIN, b"")
    command.connection.end(Channel.STDIN)  # this version cannot signal it
    for width, height in ((80, 24), (0, 24), (80, 0), (-1, 24), (65536, 24), (80, 65536)):
        command.resize(width=width, height=height)
    sent = [b"\x00" + b"x" * MESSAGE_BYTES, b"\x00x", b'\x04{"Width":80,"Height":24}\n']
    assert said(command) == sent
    command.connection.receive_eof()
    command.connection.send(Channel.STDIN, b"too late")
    command.resize(width=80, height=24)
    assert said(command) == []


def test_websocket_ends_without_an_outcome() -> None:
    """The reason is the error of the connection if that broke, else of the WebSocket."""
    closed, dropped, broken, garbled = (websocket() for _ in range(4))
    closed.connection.receive_data(close_frame(1000))
    dropped.connection.receive_eof()
    broken.connection.receive_eof(StreamError("reset by peer"))
    garbled.connection.receive_data(b"\xff\xff")
    for command, reason in (
        (closed, ""),
        (dropped, ": the runtime dropped the connection without closing the stream"),
        (broken, ": reset by peer"),
        (garbled, ": the runtime broke the WebSocket protocol: invalid opcode"),
    ):
        assert command.events_received() == []
        assert command.is_over
        assert isinstance(command.error, StreamError)
        assert command.error.message == f"the runtime sent no exit status{reason}"
        assert command.error.hint is not None


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"\x00x", "the peer sent data on the stream stdin"),
        (b"\x02x", "the peer sent data on the stream stderr"),  # a terminal has no stderr
        (b"\x04x", "the peer sent data on the stream resize"),
        (b"\x05x", "the peer sent data on a channel that does not exist"),
        (b"\x03" + b"x" * (MAX_STATUS_BYTES + 1), "the outcome of the command is too long"),
        (b"\xff\x00", "the peer sent data on a channel that does not exist"),
    ],
)
def test_websocket_violations(message: bytes, reason: str) -> None:
    command = websocket(TERMINAL)
    assert heard(command, message) == []
    assert command.is_over
    assert command.error is not None
    assert command.error.message.endswith(reason)
    assert heard(command, b"\x01x") == []


# The outcome


@pytest.mark.parametrize("status", [b"x", EXIT_7[:-1], EXIT_7 + b"x", b"{}"])
def test_an_outcome_that_is_none(status: bytes) -> None:
    for command, events in over_both(status):
        assert events == []
        command.connection.receive_eof()
        assert command.events_received() == []
        assert command.is_over
        assert isinstance(command.error, RemoteProtocolError)
        assert command.error.message == "the outcome of the command is not a Status object"


def test_an_outcome_in_very_many_pieces() -> None:
    for command, events in over_both(*(bytes((byte,)) for byte in EXIT_7)):
        assert events == []
        command.connection.receive_eof()
        assert command.events_received() == [ExitReported(7, "m")]
        assert command.is_over
        assert command.error is None


# SPDY


@pytest.mark.parametrize(
    ("streams", "names"),
    [
        (PIPED, ["error", "stdin", "stdout", "stderr"]),
        (Streams(), ["error", "stdout", "stderr"]),
        (TERMINAL, ["error", "stdin", "stdout", "resize"]),
    ],
)
def test_spdy_streams(streams: Streams, names: list[str]) -> None:
    opened = [SynStream(2 * n + 1, (("streamtype", name),)) for n, name in enumerate(names)]
    assert Spdy(streams, is_ready=False).opened == opened


@pytest.mark.parametrize(
    ("frames", "events", "last", "events_of_last", "error"),
    [
        (  # the outcome before the outputs end
            [Data(ERROR, EXIT_7), RstStream(STDIN, 5), RstStream(ERROR, 5), Data(STDOUT, b"late")],
            [ExitReported(7, "m"), reset(Channel.STDIN), LATE],
            [RstStream(STDOUT, 5), RstStream(STDERR, 5)],
            [reset(Channel.STDOUT), reset(Channel.STDERR)],
            None,
        ),
        (  # it is over once these streams have ended
            [Data(ERROR, SUCCESS, True), RstStream(STDOUT, 5), Ping(2), Data(STDIN, b"", True)],
            [ExitReported(0), reset(Channel.STDOUT)],
            [Data(STDERR, b"", True)],
            [STDERR_ENDED],
            None,
        ),
        (
            [RstStream(ERROR, 5), Data(STDOUT, b"", True)],
            [STDOUT_ENDED],
            [Data(STDERR, b"", True)],
            [STDERR_ENDED],
            "the runtime sent no exit status",
        ),
        ([], [], [Data(STDIN, b"x")], [], "the peer sent data on the stream stdin"),
    ],
    ids=["outcome first", "outcome", "none", "violation"],
)
def test_spdy_ends(
    frames: list[Frame],
    events: list[Event],
    last: list[Frame],
    events_of_last: list[Event],
    error: str | None,
) -> None:
    spdy = Spdy()
    assert spdy.feed(*frames) == events
    assert not spdy.command.is_over
    assert spdy.feed(*last) == events_of_last
    assert spdy.command.is_over
    assert (spdy.command.error and spdy.command.error.message) == error
    assert spdy.feed(Data(STDOUT, b"x")) == []


@pytest.mark.parametrize(
    ("said", "error"),
    [(b"", "no exit status: the connection to the runtime ended"), (SUCCESS[:5], "not a Status")],
)
def test_spdy_connection_lost(said: bytes, error: str) -> None:
    spdy = Spdy()
    assert spdy.feed(Data(ERROR, said)) == []
    spdy.command.connection.receive_eof()
    assert spdy.command.events_received() == []
    assert spdy.command.error is not None
    assert error in spdy.command.error.message


def test_spdy_stream_refused() -> None:
    spdy = Spdy(is_ready=False)
    spdy.command.resize(width=80, height=24)
    assert spdy.sent() == []
    assert not spdy.command.is_ready
    assert spdy.feed(RstStream(STDOUT, 3)) == []
    assert type(spdy.command.error) is StreamError
    assert spdy.command.error.message == "the server refused the stream stdout"


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
    """The recorded responses yield these events."""
    command = remote_command("spdy", streams)
    events: list[Event] = []
    for side, data in RECORDED[exchange]:
        if side == "s":
            for start in range(0, len(data), piece_bytes):
                events += fed(command, data[start : start + piece_bytes])
    assert command.is_over
    assert command.error is None
    assert events[0] == ChannelsOpened()
    (outcome,) = (event for event in events if isinstance(event, ExitReported))
    outputs = of(events, Channel.STDOUT), of(events, Channel.STDERR)
    assert (*outputs, outcome.exit_code) == expected
    if exchange == "missing-command":
        assert "executable file not found" in outcome.message


# Outcomes


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"status": "Success", "metadata": {}, "reason": "x"}, ExitReported(0)),
        ({"status": "Failure", "message": "m"}, ExitReported(None, "m")),
        (
            {"status": "Failure"},
            ExitReported(None, "the runtime reported a failure without a reason"),
        ),
        ({**NON_ZERO, "details": {"causes": [{"reason": "x"}, CAUSE]}}, ExitReported(7, "m")),
        (
            {**NON_ZERO, "reason": "InternalError", "details": {"causes": [CAUSE]}},
            ExitReported(None, "m"),
        ),
        ({**NON_ZERO, "details": None}, ExitReported(None, "m")),
    ],
)
def test_outcomes(status: dict[str, object], expected: ExitReported) -> None:
    assert parse_status(json.dumps(status).encode()) == expected


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"[]", b"{}", b"\xff", b"[" * 100_000),
        b'{"status":"Failure","details":"x"}',
        b'{"status":"Failure","details":{"causes":["x"]}}',
        EXIT_7.replace(b'"7"', b"7"),
        EXIT_7.replace(b', "message": "7"', b""),
    ],
)
def test_what_is_none(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="the outcome of the command is not a Status"):
        parse_status(text)


@pytest.mark.parametrize(
    "code", ["seven", "", "1_0", "+1", "٣", "4294967296", "-2147483649", "9" * 5000]
)
def test_exit_status_that_is_no_number_of_32_bits(code: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        parse_status(EXIT_7.replace(b'"7"', json.dumps(code).encode()))
    assert caught.value.message == "the command's exit status is not a number of 32 bits"
