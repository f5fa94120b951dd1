from __future__ import annotations

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.runtime.cri import sessions
from pycrictl.runtime.cri.calls.client import CriClient
from tests.fakecri import FakeServer

URL = "http://127.0.0.1:1/exec/secret"


@pytest.mark.parametrize("stdin", [False, True])
@pytest.mark.parametrize("tty", [False, True])
def test_the_streams_that_are_asked_for(
    fake: FakeServer, client: CriClient, stdin: bool, tty: bool
) -> None:
    """A terminal has no separate stderr."""
    fake.prepare("Exec", cri_pb2.ExecResponse(url=URL))
    fake.prepare("Attach", cri_pb2.AttachResponse(url=URL))
    assert sessions.exec_url(client, "c", ["sh", "-c", "--"], stdin=stdin, tty=tty) == URL
    assert sessions.attach_url(client, "c", stdin=stdin, tty=tty) == URL
    streams = {"stdin": stdin, "tty": tty, "stdout": True, "stderr": not tty}
    assert [call.request for call in fake.calls] == [
        cri_pb2.ExecRequest(container_id="c", cmd=["sh", "-c", "--"], **streams),
        cri_pb2.AttachRequest(container_id="c", **streams),
    ]


def test_a_pod_to_forward_to(fake: FakeServer, client: CriClient) -> None:
    fake.prepare("PortForward", cri_pb2.PortForwardResponse(url=URL))
    assert sessions.forward_url(client, "p") == URL
    assert [call.request.pod_sandbox_id for call in fake.calls] == ["p"]
