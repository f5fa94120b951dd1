"""``attach`` as a whole, as far as no stream is needed."""

from __future__ import annotations

import grpc
import pytest

from pycrictl._proto import cri_pb2
from tests.cli.run import NO_TRANSPORT, Run
from tests.cli.streaming_server import Played, playing
from tests.fakecri import FakeServer, Status


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([""], "the container ID is empty"),
        (["-t", "c"], "--tty needs --stdin"),
        (["-t", "-i", "c"], "--tty needs a terminal as standard input"),
        (["-r", "quic", "c"], NO_TRANSPORT),
        (["--tls-key", "x", "c"], "--tls-cert and --tls-key go together"),
    ],
)
def test_nothing_is_sent_for_a_wrong_line(fake: FakeServer, words: list[str], line: str) -> None:
    result = Run("-r", fake.endpoint, "attach", *words)
    assert (result.code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[0] == f"pycrictl: {line}"
    assert fake.calls == []


@pytest.mark.parametrize(
    "answer",
    [
        Status(grpc.StatusCode.NOT_FOUND, "no such container"),
        cri_pb2.AttachResponse(),
        cri_pb2.AttachResponse(url="http://127.0.0.1:1/attach/secret"),
    ],
)
def test_a_failure_is_one_line(fake: FakeServer, answer: Status | cri_pb2.AttachResponse) -> None:
    fake.offer("Attach", answer)
    result = Run("-r", fake.endpoint, "attach", "c")
    assert (result.code, result.stdout) == (1, "")
    assert result.stderr.count("pycrictl: ") == 1
    assert "secret" not in result.stderr


def test_an_error_names_what_was_typed(fake: FakeServer) -> None:
    listed = cri_pb2.ListContainersResponse()
    listed.containers.add(id="cc" * 32, metadata=cri_pb2.ContainerMetadata(name="web"))
    fake.offer("ListContainers", listed)
    fake.offer("Attach", Status(grpc.StatusCode.UNKNOWN, "it does not run"))
    result = Run("-r", fake.endpoint, "attach", "web")
    assert (result.code, result.stdout) == (1, "")
    shown = '"web" (ccccccccccccc)'
    assert result.stderr == f"pycrictl: attaching to container {shown}: it does not run\n"


def test_without_input_no_input_is_ended(fake: FakeServer) -> None:
    """The server speaks the WebSocket version that would."""
    with playing(fake, Played(b"out\n")) as upgrades:
        result = Run("-r", fake.endpoint, "attach", "c")
        assert (result.code, result.stdout, result.stderr) == (0, "out\n", "")
        assert upgrades == ["websocket", "SPDY/3.1"]
        refused = Run("-r", fake.endpoint, "attach", "-r", "websocket", "c")
        given = Run("-r", fake.endpoint, "attach", "-i", "-r", "websocket", "c")
    assert (refused.code, refused.stdout) == (1, "")
    first, hint = refused.stderr.splitlines()
    assert first.startswith("pycrictl: the runtime's WebSocket could end the standard input")
    assert hint == "hint: use --transport spdy"
    assert (given.code, given.stdout) == (0, "out\n")
