"""``port-forward`` as a whole, as far as no stream is needed."""

from __future__ import annotations

import grpc
import pytest

from pycrictl._proto import cri_pb2
from tests.cli.run import NO_TRANSPORT, Run
from tests.fakecri import FakeServer, Status


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["", "80"], "the pod sandbox ID is empty"),
        (["p", "abc"], 'invalid ports "abc"'),
        (["p", "80", "1:2:3"], 'invalid ports "1:2:3"'),
        (["p", "8080:0"], 'invalid ports "8080:0"'),
        (["--address", "x.test", "p", ":80"], '"x.test" is not an IP address'),
        (
            ["-r", "quic", "p", "80"],
            NO_TRANSPORT,
        ),
    ],
)
def test_nothing_is_sent_for_a_wrong_line(fake: FakeServer, words: list[str], line: str) -> None:
    result = Run("-r", fake.endpoint, "port-forward", *words)
    assert (result.code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[0] == f"pycrictl: {line}"
    assert fake.calls == []


@pytest.mark.parametrize("transport", ["auto", "spdy", "websocket"])
def test_the_runtimes_refusal_comes_before_any_line(fake: FakeServer, transport: str) -> None:
    fake.prepare("PortForward", Status(grpc.StatusCode.UNKNOWN, "it does not run"))
    result = Run("-r", fake.endpoint, "port-forward", "-r", transport, "p", ":80")
    assert (result.code, result.stdout) == (1, "")
    assert result.stderr == 'pycrictl: forwarding ports of pod sandbox "p": it does not run\n'


def test_an_error_names_what_was_typed(fake: FakeServer) -> None:
    listed = cri_pb2.ListPodSandboxResponse()
    listed.items.add(id="cc" * 32, metadata=cri_pb2.PodSandboxMetadata(name="web"))
    fake.offer("ListPodSandbox", listed)
    fake.offer("PortForward", Status(grpc.StatusCode.UNKNOWN, "it does not run"))
    result = Run("-r", fake.endpoint, "port-forward", "web", ":80")
    assert (result.code, result.stdout) == (1, "")
    shown = '"web" (ccccccccccccc)'
    assert result.stderr == f"pycrictl: forwarding ports of pod sandbox {shown}: it does not run\n"
