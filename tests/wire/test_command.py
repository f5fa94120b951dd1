"""Commands over WebSocket, what is the same over both transports, and outcomes."""

from __future__ import annotations

import json
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.errors import RemoteProtocolError, StreamError
from pycrictl.wire.channels import MESSAGE_BYTES, ChannelEnded
from pycrictl.wire.command import (
    MAX_STATUS_BYTES,
    V4,
    V5,
    Channel,
    ExitReported,
    OutcomeUnknown,
    Streams,
    parse_status,
    remote_command,
)
from tests.wire.frames import BINARY, CLOSE, frame, read_frames
from tests.wire.remote import (
    EXIT_7,
    PIPED,
    SUCCESS,
    TERMINAL,
    Spdy,
    closed,
    err,
    fed,
    heard,
    out,
    said,
    violation_of,
    websocket,
)
from tests.wire.spdyframes import Data, FrameEncoder

Transport = Literal["spdy", "websocket"]


@pytest.mark.parametrize(
    ("transport", "protocol"), [("spdy", V5), ("websocket", ""), ("websocket", "v6.channel.k8s.io")]
)
def test_a_protocol_that_was_not_offered(transport: Transport, protocol: str) -> None:
    with pytest.raises(RemoteProtocolError, match="chose no known version"):
        remote_command(transport, protocol, PIPED)


# WebSocket


def test_websocket_output_and_outcome() -> None:
    command = websocket()
    outputs = (b"\x01", b"\x01out", b"\x02err", b"", b"\x01\x00\xff")
    events = heard(command, *outputs, b"\x03" + SUCCESS[:9], b"\x03" + SUCCESS[9:])
    assert events == [
        out(b"out"),
        err(b"err"),
        out(b"\x00\xff"),
        ExitReported(0),
    ]
    assert not command.is_over
    closed(command)
    assert command.is_over
    assert command.error is None
    assert [opcode for opcode, _ in read_frames(command.data_to_send())] == [CLOSE]
    assert heard(command, b"\x01late") == []
    command.receive_eof()
    assert command.events_received() == []


def test_websocket_input() -> None:
    command = websocket()
    command.send_stdin(b"x" * (MESSAGE_BYTES + 1))
    command.send_stdin(b"")
    assert said(command) == [b"\x00" + b"x" * MESSAGE_BYTES, b"\x00x"]
    assert command.data_to_send() == []
    command.receive_eof()
    command.send_stdin(b"too late")
    assert command.data_to_send() == []


def test_websocket_cannot_end_the_input_before_version_5() -> None:
    command = websocket()
    assert not command.can_end_stdin
    command.end_stdin()
    command.send_stdin(b"go on")
    assert said(command) == [b"\x00go on"]


def test_websocket_version_5_closes_channels() -> None:
    command = websocket(V5)
    command.end_stdin()
    assert said(command) == [b"\xff\x00"]
    events = heard(command, b"\xff\x01", b"\x03" + SUCCESS, b"\x02late", b"\xff\x02")
    assert events == [
        ChannelEnded(Channel.STDOUT, is_reset=True),
        ExitReported(0),
        err(b"late"),
        ChannelEnded(Channel.STDERR, is_reset=True),
    ]


def test_websocket_resize() -> None:
    command = websocket(streams=TERMINAL)
    command.resize(width=80, height=24)
    for width, height in ((0, 24), (80, 0), (-1, 24), (65536, 24), (80, 65536)):
        command.resize(width=width, height=height)
    assert said(command) == [b'\x04{"Width":80,"Height":24}\n']
    command.receive_eof()
    command.resize(width=80, height=24)
    assert command.data_to_send() == []


@pytest.mark.parametrize("protocol", [V4, V5])
def test_websocket_ends_without_an_outcome(protocol: str) -> None:
    command = closed(websocket(protocol))
    assert isinstance(command.error, OutcomeUnknown)
    assert command.error.message == "the runtime sent no exit status"
    assert command.error.hint is not None


@pytest.mark.parametrize("protocol", [V4, V5])
def test_websocket_breaks_off_without_an_outcome(protocol: str) -> None:
    """The reason is the connection's if that broke, and the WebSocket's if not."""
    dropped, reset, garbled = (websocket(protocol) for _ in range(3))
    dropped.receive_eof()
    reset.receive_eof(StreamError("reset by peer"))
    garbled.receive_data(b"\xff\xff")
    for command, reason in (
        (dropped, "the runtime dropped the connection without closing the stream"),
        (reset, "reset by peer"),
        (garbled, "the runtime broke the WebSocket protocol: invalid opcode"),
    ):
        assert command.is_over
        assert isinstance(command.error, OutcomeUnknown)
        assert command.error.message == f"the runtime sent no exit status: {reason}"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"\x00x", "the peer sent data on the stream stdin"),
        (b"\x04x", "the peer sent data on the stream resize"),
        (b"\x05x", "the peer sent data on a channel that does not exist"),
        (b"\xffx", "the peer sent data on a channel that does not exist"),
        (b"\x03" + b"x" * (MAX_STATUS_BYTES + 1), "the outcome of the command is too long"),
    ],
)
def test_websocket_violations(message: bytes, reason: str) -> None:
    command = websocket()
    assert violation_of(command, frame(BINARY, message)).endswith(reason)
    assert heard(command, b"\x01x") == []


@pytest.mark.parametrize("status", [b"x", EXIT_7[:-1], EXIT_7 + b"x", b"{}"])
def test_an_outcome_that_is_none(status: bytes) -> None:
    commands = [websocket(), Spdy().command]
    assert heard(commands[0], b"\x03" + status) == []
    assert fed(commands[1], FrameEncoder().encode(Data(1, status))) == []
    for command in commands:
        command.receive_eof()
        assert command.is_over
        assert isinstance(command.error, RemoteProtocolError)
        assert command.error.message == "the outcome of the command is not a Status object"


def test_an_outcome_in_very_many_pieces() -> None:
    command = websocket()
    assert heard(command, *(b"\x03" + bytes((byte,)) for byte in EXIT_7)) == []
    command.receive_eof()
    assert command.events_received() == [ExitReported(7, "exit code 7")]


def test_output_that_was_not_asked_for() -> None:
    only_stderr = Streams(stdout=False)
    assert heard(websocket(streams=only_stderr), b"\x01", b"\x02x") == [err(b"x")]
    assert "stdout" in violation_of(websocket(streams=only_stderr), frame(BINARY, b"\x01x"))
    assert "stderr" in violation_of(websocket(streams=TERMINAL), frame(BINARY, b"\x02x"))


@pytest.mark.parametrize("message", [b"\xff", b"\xff\x05", b"\xff\x00\x01"])
def test_channels_that_cannot_be_closed(message: bytes) -> None:
    reason = "the peer closed a channel that does not exist"
    assert violation_of(websocket(V5), frame(BINARY, message)).endswith(reason)


# Any bytes


@given(
    st.sampled_from([V4, V5]),
    st.lists(st.binary(max_size=20) | st.sampled_from([b"\x03" + SUCCESS, b"\xff\x01", b"\x01x"])),
)
def test_no_message_makes_it_raise(protocol: str, messages: list[bytes]) -> None:
    command = remote_command("websocket", protocol, PIPED)
    events = heard(command, *messages)
    command.receive_eof()
    events += command.events_received()
    assert command.is_over
    reported = sum(isinstance(event, ExitReported) for event in events)
    assert reported <= 1
    assert reported or command.error is not None


# Outcomes

CAUSE = {"reason": "ExitCode", "message": "7"}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"status": "Success"}, ExitReported(0)),
        ({"status": "Success", "metadata": {}, "reason": "x"}, ExitReported(0)),
        ({"status": "Failure", "message": "m"}, ExitReported(None, "m")),
        (
            {"status": "Failure"},
            ExitReported(None, "the runtime reported a failure without a reason"),
        ),
        (
            {
                "status": "Failure",
                "message": "m",
                "reason": "NonZeroExitCode",
                "details": {"causes": [{"reason": "other"}, CAUSE]},
            },
            ExitReported(7, "m"),
        ),
        (
            {
                "status": "Failure",
                "message": "m",
                "reason": "InternalError",
                "details": {"causes": [CAUSE]},
            },
            ExitReported(None, "m"),
        ),
        (
            {"status": "Failure", "message": "m", "reason": "NonZeroExitCode", "details": None},
            ExitReported(None, "m"),
        ),
    ],
)
def test_outcomes(status: dict[str, object], expected: ExitReported) -> None:
    assert parse_status(json.dumps(status).encode()) == expected


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"status":"Failure","details":"x"}',
        b'{"status":"Failure","details":{"causes":["x"]}}',
        b'{"status":"Failure","reason":"NonZeroExitCode",'
        b'"details":{"causes":[{"reason":"ExitCode","message":7}]}}',
        b'{"status":"Failure","reason":"NonZeroExitCode",'
        b'"details":{"causes":[{"reason":"ExitCode"}]}}',
    ],
)
def test_what_is_none(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        parse_status(text)
    assert caught.value.message == "the outcome of the command is not a Status object"


@pytest.mark.parametrize(
    "code", ["seven", "", "1_0", "+1", "٣", "4294967296", "-2147483649", "9" * 5000]
)
def test_exit_status_that_is_no_number_of_32_bits(code: str) -> None:
    details = {"causes": [{"reason": "ExitCode", "message": code}]}
    status = {"status": "Failure", "reason": "NonZeroExitCode", "details": details}
    with pytest.raises(RemoteProtocolError) as caught:
        parse_status(json.dumps(status).encode())
    assert caught.value.message == "the command's exit status is not a number of 32 bits"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
statuses = st.fixed_dictionaries(
    {"status": st.sampled_from(["Failure", "Success"]) | values},
    optional={
        "message": values,
        "reason": st.sampled_from(["NonZeroExitCode"]) | values,
        "details": values
        | st.fixed_dictionaries(
            {"causes": values | st.lists(st.fixed_dictionaries({"reason": st.just("ExitCode")}))}
        ),
    },
)


@given(statuses)
def test_any_object(status: dict[str, object]) -> None:
    try:
        outcome = parse_status(json.dumps(status).encode())
    except RemoteProtocolError:
        return
    assert outcome.exit_code is None or status["status"] == "Success"
