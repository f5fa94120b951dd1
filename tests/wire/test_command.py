from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.errors import LocalProtocolError, RemoteProtocolError, StreamError
from pycrictl.wire.channels import remote_command
from pycrictl.wire.command import (
    MAX_STATUS_BYTES,
    ExitReported,
    OutcomeUnknown,
    Ready,
    RemoteCommand,
    StderrReceived,
    StdoutReceived,
    Streams,
    parse_status,
)

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
        b"x",
        b"[]",
        b"{}",
        b"null",
        b"\xff",
        b"[" * 100_000,
        b'{"status":"Failure","details":"x"}',
        b'{"status":"Failure","details":{"causes":1}}',
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


# What both transports have in common, at the one that needs no frames

V1, V4, V5 = "channel.k8s.io", "v4.channel.k8s.io", "v5.channel.k8s.io"
PIPED = Streams(stdin=True)


def begun(protocol: str = V4, streams: Streams = PIPED) -> RemoteCommand:
    command = remote_command("websocket", protocol, streams)
    assert command.events_received() == [Ready()]
    assert command.is_ready
    assert not command.awaits_outcome_only
    return command


def test_outputs_and_outcome_in_pieces() -> None:
    command = begun()
    for message in (b"\x01a", b"\x02b", b'\x03{"status":', b'\x03"Success"}', b"\x03 "):
        command.receive_data(message)
    events = command.events_received()
    assert events == [StdoutReceived(b"a"), StderrReceived(b"b"), ExitReported(0)]
    command.receive_eof()
    assert command.is_over
    assert command.error is None


def test_an_outcome_in_more_pieces_than_are_tried() -> None:
    command = begun()
    for byte in b'{"status":"Success"}':
        command.receive_data(bytes((3, byte)))
    assert command.events_received() == []
    command.receive_eof()
    assert command.events_received() == [ExitReported(0)]


@pytest.mark.parametrize(
    ("said", "outcome"), [(b"", ExitReported(0)), (b"no luck", ExitReported(None, "no luck"))]
)
def test_an_outcome_before_version_4_is_a_text(said: bytes, outcome: ExitReported) -> None:
    command = begun(V1)
    command.receive_data(b"\x01a")
    command.receive_data(b"\x03" + said)
    command.receive_eof()
    assert command.events_received() == [StdoutReceived(b"a"), outcome]
    assert command.error is None


def test_no_outcome() -> None:
    command = begun()
    command.receive_eof()
    assert isinstance(command.error, OutcomeUnknown)
    assert command.error.hint is not None


def test_an_endless_outcome() -> None:
    command = begun()
    for _ in range(MAX_STATUS_BYTES // 32768 + 1):
        command.receive_data(b"\x03" + bytes(32768))
    assert isinstance(command.error, RemoteProtocolError)


@pytest.mark.parametrize("channel", [0, 4])
def test_data_where_none_comes(channel: int) -> None:
    command = begun()
    command.receive_data(bytes((channel, 1)))
    assert isinstance(command.error, RemoteProtocolError)


def test_an_output_that_was_not_asked_for() -> None:
    command = begun(V4, Streams(stderr=False))
    command.receive_data(b"\x02x")
    assert isinstance(command.error, RemoteProtocolError)


def test_input_and_its_end() -> None:
    command = begun(V5)
    command.send_stdin(b"")
    command.send_stdin(b"x")
    command.end_stdin()
    assert command.data_to_send() == [b"\x00x", b"\xff\x00"]
    for wrong in (command.end_stdin, lambda: command.send_stdin(b"y")):
        with pytest.raises(LocalProtocolError):
            wrong()


def test_input_after_the_end_of_all_is_thrown_away() -> None:
    command = begun(V5)
    command.receive_eof()
    command.send_stdin(b"x")
    command.end_stdin()
    assert command.data_to_send() == []


def test_an_end_that_cannot_be_told() -> None:
    command = begun(V4)
    assert not command.can_end_stdin
    with pytest.raises(StreamError, match="cannot be sent"):
        command.end_stdin()


def test_sizes() -> None:
    command = begun(V4, Streams(stdin=True, stderr=False, tty=True))
    for width, height in ((80, 24), (0, 24), (80, 0), (65536, 24), (80, 65536)):
        command.resize(width=width, height=height)
    assert command.data_to_send() == [b'\x04{"Width":80,"Height":24}\n']
    command.receive_eof()
    command.resize(width=80, height=24)
    assert command.data_to_send() == []
    with pytest.raises(LocalProtocolError):
        begun().resize(width=80, height=24)
