"""gRPC channels: silent servers, servers of other kinds, signals, and gRPC's log and threads."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import PycrictlError, RuntimeFault
from pycrictl.runtime.cri.calls import errmap
from pycrictl.runtime.cri.calls.channel import GrpcCall, GrpcChannel
from pycrictl.runtime.cri.calls.errmap import MEANINGS, Status, one_line, to_error
from tests.cli.run import PROGRAM
from tests.fakecri import FakeServer, hostile
from tests.processes import connections

IMAGES = "/runtime.v1.ImageService/ListImages"
GOAWAY = b"\0\0\x10\7\0\0\0\0\0" + bytes(4) + b"\0\0\0\2" + b"\x1b[2Jgone"


@contextmanager
def call_of(
    path: str, *, timeout_s: float | None = 30.0, handshake_s: float = 20.0
) -> Iterator[GrpcCall]:
    with GrpcChannel(path, handshake_s=handshake_s) as channel:
        yield images_of(channel, timeout_s=timeout_s)


def images_of(channel: GrpcChannel, *, timeout_s: float | None = 30.0) -> GrpcCall:
    return GrpcCall(channel, IMAGES, b"", timeout_s=timeout_s)


def test_calls_share_a_channel(fake: FakeServer) -> None:
    fake.prepare("ListImages", cri_pb2.ListImagesResponse(), repeat=True)
    seen = []
    with GrpcChannel(fake.path) as channel:
        for _ in range(5):
            assert list(images_of(channel).messages()) == [b""]
            seen.append([line.split()[6] for line in connections(Path(fake.path))])
    assert len(seen[0]) == 1
    assert seen == seen[:1] * 5


@pytest.mark.parametrize("answer", [b"", hostile.HTTP2_SETTINGS[:5]])
def test_a_server_that_says_nothing_has_less_time_than_the_call(answer: bytes) -> None:
    with (
        hostile.answering(answer) as path,
        call_of(path, timeout_s=None, handshake_s=0.1) as call,
    ):
        assert list(call.messages()) == []
        assert call.status is not None
        assert call.status.obstacle == errmap.SILENT


def test_an_acknowledgement_is_no_beginning_of_http2() -> None:
    with hostile.answering(hostile.HTTP2_SETTINGS_ACK) as path:
        obstacle = errmap.probe(path, timeout_s=60)
    assert obstacle is not None
    assert obstacle.reason.startswith("it is not a gRPC server: it answers")


def test_what_a_server_sends_never_reaches_the_terminal_by_grpcs_log() -> None:
    with hostile.answering(hostile.HTTP2_SETTINGS + GOAWAY) as path:
        command = [*PROGRAM, "--runtime-endpoint", f"unix://{path}", "--timeout", "1s", "images"]
        environ = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
        ran = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert ran.returncode
    assert "\x1b" not in ran.stderr
    assert ran.stderr.startswith("pycrictl: ")


def test_the_librarys_threads_take_no_signal_that_ends_the_program(fake: FakeServer) -> None:
    fake.prepare("ListImages", cri_pb2.ListImagesResponse())
    # Read while the channel is open: its threads end with it.
    code = f"""
import pathlib
from pycrictl.runtime.cri.calls.channel import GrpcCall, GrpcChannel
channel = GrpcChannel({fake.path!r})
for _ in GrpcCall(channel, {IMAGES!r}, b"", timeout_s=30).messages():
    for path in pathlib.Path("/proc/self/task").glob("*/status"):
        try:
            print(path.read_text().partition("SigBlk:")[2].split()[0])
        except (FileNotFoundError, ProcessLookupError):
            pass
"""
    said = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60)
    masks = [int(word, 16) for word in said.split()]
    ending = sum(1 << (number - 1) for number in (signal.SIGINT, signal.SIGTERM))
    assert len(masks) > 2
    assert [mask & ending for mask in masks].count(0) == 1  # the main thread's


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (lambda: nullcontext("/" + "x" * 107), "AF_UNIX path too long"),
        (hostile.forbidden, "permission denied"),
    ],
)
def test_what_cannot_be_connected_to(
    kind: Callable[[], AbstractContextManager[str]], reason: str
) -> None:
    with kind() as path:
        obstacle = errmap.try_connect(path, 0.2)
    assert isinstance(obstacle, errmap.Obstacle)
    assert obstacle.reason.startswith(reason)
    assert obstacle.hint
    assert not obstacle.may_pass


def test_a_full_queue() -> None:
    with hostile.unaccepted(backlog=0) as path:
        waiting = errmap.try_connect(path, 0.2)
        assert isinstance(waiting, socket.socket)
        started = time.monotonic()
        with waiting:
            obstacle = errmap.try_connect(path, 0.2)
        assert isinstance(obstacle, errmap.Obstacle)
        assert obstacle.reason == "its queue of connections is full"
        assert 0.15 < time.monotonic() - started < 60


# Statuses as errors


ENDPOINT = "unix:///run/x.sock"


def error(code: str, details: str = "", **named: object) -> PycrictlError:
    arguments = {"action": 'pulling image "x"', "endpoint": ENDPOINT, **named}
    status = Status(grpc.StatusCode[code].value[0], details)
    return to_error(status, **arguments)  # type: ignore[arg-type]  # mixed types


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_every_status_is_mapped(code: grpc.StatusCode) -> None:
    meant, _ = MEANINGS[code.value[0]]
    for details in ("", "some words"):
        raised = error(code.name, details)
        assert type(raised) is meant
        assert isinstance(raised, RuntimeFault)
        name = raised.code.lower().replace("canceled", "cancelled")
        assert name == code.name.replace("_", "").lower()
        assert raised.details == details
        assert 'pulling image "x"' in raised.message
        assert raised.message.isprintable()


@pytest.mark.parametrize(
    ("code", "details", "message"),
    [
        ("UNKNOWN", "401 Unauthorized", 'pulling image "x": 401 Unauthorized'),
        ("UNKNOWN", "", 'pulling image "x": the runtime gave no reason'),
        ("NOT_FOUND", 'image "x": not found', 'pulling image "x": image "x": not found'),
        ("NOT_FOUND", "no such tag", 'pulling image "x": not found: no such tag'),
        ("NOT_FOUND", "", 'pulling image "x": not found'),
        ("INTERNAL", "Broken.", 'pulling image "x": internal error: Broken'),
        (
            "UNAVAILABLE",
            "Socket closed",
            'pulling image "x": the runtime at "unix:///run/x.sock" is unavailable: Socket closed',
        ),
        (
            "DEADLINE_EXCEEDED",
            "context deadline exceeded",
            'pulling image "x": the runtime ran out of time: context deadline exceeded',
        ),
    ],
)
def test_wording(code: str, details: str, message: str) -> None:
    assert error(code, details).message == message


def test_a_deadline_of_ours_names_itself_and_its_flag() -> None:
    raised = error("DEADLINE_EXCEEDED", "Deadline Exceeded", timeout_s=90.0)
    assert raised.message == 'pulling image "x": no answer within 1m30s'
    assert raised.hint is not None
    assert raised.hint.endswith(" with --timeout")
    other = error("DEADLINE_EXCEEDED", timeout_s=1.0, timeout_flag="--pull-timeout")
    assert other.hint is not None
    assert other.hint.endswith(" with --pull-timeout")


def test_credentials_in_details_are_not_shown() -> None:
    raised = error("UNKNOWN", 'Get "https://joe:hunter2@reg.io/?sig=abc": EOF')
    assert "hunter2" not in raised.message
    assert "abc" not in raised.message
    assert "reg.io" in raised.message


@given(st.text())
def test_any_details_become_one_line(details: str) -> None:
    assert one_line(details).isprintable()
