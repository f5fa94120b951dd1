from __future__ import annotations

from collections.abc import Callable

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.cri import sessions
from pycrictl.cri.calls.client import CriClient
from pycrictl.errors import DeadlineExceeded, NotFound, RemoteProtocolError
from tests.fakecri import FakeServer, Status

URL = "http://127.0.0.1:1/exec/secret"
ASKS: dict[str, Callable[[CriClient], str]] = {
    "Exec": lambda client: sessions.exec_url(client, "c\n", ["ls"], stdin=False, tty=False),
    "Attach": lambda client: sessions.attach_url(client, "c\n", stdin=False, tty=False),
    "PortForward": lambda client: sessions.forward_url(client, "c\n"),
}


@pytest.mark.parametrize("stdin", [False, True])
@pytest.mark.parametrize("tty", [False, True])
def test_the_streams_that_are_asked_for(
    fake: FakeServer, client: CriClient, stdin: bool, tty: bool
) -> None:
    """A terminal has one output."""
    fake.prepare("Exec", cri_pb2.ExecResponse(url=URL))
    fake.prepare("Attach", cri_pb2.AttachResponse(url=URL))
    assert sessions.exec_url(client, "c", ["sh", "-c", "--"], stdin=stdin, tty=tty) == URL
    assert sessions.attach_url(client, "c", stdin=stdin, tty=tty) == URL
    streams = {"stdin": stdin, "tty": tty, "stdout": True, "stderr": not tty}
    assert [call.request for call in fake.calls] == [
        cri_pb2.ExecRequest(container_id="c", cmd=["sh", "-c", "--"], **streams),
        cri_pb2.AttachRequest(container_id="c", **streams),
    ]


def test_the_ports_that_are_asked_for(fake: FakeServer, client: CriClient) -> None:
    fake.prepare("PortForward", cri_pb2.PortForwardResponse(url=URL), repeat=True)
    assert sessions.forward_url(client, "p") == URL
    assert sessions.forward_url(client, "p", [80, 81]) == URL
    assert [list(call.request.port) for call in fake.calls] == [[], [80, 81]]


@pytest.mark.parametrize("method", ASKS)
def test_a_refusal_names_what_it_is_about(fake: FakeServer, client: CriClient, method: str) -> None:
    fake.prepare(method, Status(grpc.StatusCode.NOT_FOUND, "gone"))
    with pytest.raises(NotFound, match=r'"c\\n": not found: gone') as caught:
        ASKS[method](client)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("method", ASKS)
def test_no_url(fake: FakeServer, client: CriClient, method: str) -> None:
    fake.prepare(method, None)
    with pytest.raises(RemoteProtocolError, match="gave no URL"):
        ASKS[method](client)


def test_a_command_with_its_output_as_a_whole(fake: FakeServer, client: CriClient) -> None:
    answer = cri_pb2.ExecSyncResponse(stdout=b"\x00\xff", stderr=b"e", exit_code=137)
    fake.prepare("ExecSync", answer)
    assert sessions.exec_sync(client, "c", ["x"], limit_s=3) == answer
    request = cri_pb2.ExecSyncRequest(container_id="c", cmd=["x"], timeout=3)
    assert [call.request for call in fake.calls] == [request]


def test_the_runtime_kills_it_in_time(fake: FakeServer, client: CriClient) -> None:
    fake.prepare("ExecSync", Status(grpc.StatusCode.DEADLINE_EXCEEDED, "timeout 1s exceeded"))
    with pytest.raises(DeadlineExceeded, match="1s"):
        sessions.exec_sync(client, "c", ["sleep", "9"], limit_s=1)


def test_a_command_may_take_as_long_as_it_wants(fake: FakeServer, client: CriClient) -> None:
    fake.prepare("ExecSync", cri_pb2.ExecSyncResponse(), repeat=True)
    sessions.exec_sync(client, "c", ["x"], limit_s=0)
    sessions.exec_sync(client, "c", ["x"], limit_s=60)
    without, with_limit = (call.deadline_s for call in fake.calls)
    assert without is None
    assert with_limit is not None
    assert with_limit > 60
