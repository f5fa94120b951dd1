"""``exec``, ``attach`` and ``port-forward`` as a whole."""

from __future__ import annotations

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.streams.remote_command import not_started
from pycrictl.streams.wire.command import ExitReported
from tests.cli.run import Run, start
from tests.cli.streaming_server import Played, playing
from tests.fakecri import FakeServer, Status


def run(fake: FakeServer, *words: str) -> Run:
    return Run("-t", "5s", "-r", fake.endpoint, "exec", *words)


def test_the_runtimes_refusal_is_one_line(fake: FakeServer) -> None:
    fake.offer("Exec", Status(grpc.StatusCode.NOT_FOUND, "no such container"))
    result = run(fake, "c", "ls", "-la", "--", "x")
    assert (result.code, result.stdout) == (1, "")
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("pycrictl: ")]
    assert line == 'pycrictl: running a command in container "c": not found: no such container'
    request = fake.calls[-1].request
    assert list(request.cmd) == ["ls", "-la", "--", "x"]
    assert (request.stdin, request.stdout, request.stderr, request.tty) == (0, 1, 1, 0)


def test_sync_keeps_the_output_of_a_failure(fake: FakeServer) -> None:
    answer = cri_pb2.ExecSyncResponse(stdout=b"out", stderr=b"err\n", exit_code=7)
    fake.prepare("ExecSync", answer)
    result = run(fake, "-s", "--timeout", "3", "c", "sh", "-c", "exit 7")
    assert (result.code, result.stdout, result.stderr) == (7, "out", "err\n")
    assert fake.calls[-1].request.timeout == 3


def test_a_negative_status_is_a_failure(fake: FakeServer) -> None:
    """CRI-O reports -1 if it has killed the command after ``--timeout``."""
    fake.prepare("ExecSync", cri_pb2.ExecSyncResponse(exit_code=-1))
    result = run(fake, "-s", "--timeout", "1", "c", "x")
    assert result.code == 1
    assert result.stderr.startswith("pycrictl: the runtime killed the command before it finished\n")


def containers(*ids: str) -> cri_pb2.ListContainersResponse:
    metadata = cri_pb2.ContainerMetadata(name="web")
    containers = [cri_pb2.Container(id=name, metadata=metadata) for name in ids]
    return cri_pb2.ListContainersResponse(containers=containers)


def test_selected_containers(fake: FakeServer) -> None:
    fake.offer("ListContainers", containers("a", "b"))
    fake.offer("ExecSync", cri_pb2.ExecSyncResponse(stdout=b"x\n", exit_code=4))
    result = run(fake, "-s", "--name", "web", "id")
    assert (result.code, result.stdout) == (4, "a:\nb:\nx\nx\n")
    assert run(fake, "-sx", "--name", "web", "id").stdout == "x\nx\n"
    ignored = run(fake, "-sqe", "--name", "web", "id")
    assert (ignored.code, ignored.stdout) == (0, "x\nx\n")
    nothing = run(fake, "--name", "other", "id")
    assert (nothing.code, nothing.stdout) == (1, "")
    assert nothing.stderr.startswith("pycrictl: no container is selected\n")
    ignored = run(fake, "-e", "--name", "other", "id")
    assert (ignored.code, ignored.stdout) == (0, "")
    assert ignored.stderr.endswith("warning: no container is selected\n")


@pytest.mark.parametrize("shell", ["sh", "/bin/bash", "ash"])
def test_without_a_shell_the_next_step_is_named(shell: str) -> None:
    said = f'OCI runtime exec failed: exec: "{shell}": executable file not found in $PATH: unknown'
    error = not_started("running a command", ExitReported(None, said))
    assert error.exit_code == 127
    assert "'pycrictl cp' copies files without one" in (error.hint or "")
    assert not_started("x", ExitReported(None, said.replace(shell, "psql"))).hint is None


@pytest.mark.parametrize(
    ("words", "doing"),
    [
        ("exec -s TYPED id", "running a command in container"),
        ("exec TYPED id", "running a command in container"),
        ("attach TYPED", "attaching to container"),
        ("port-forward TYPED :80", "forwarding ports of pod sandbox"),
    ],
)
@pytest.mark.parametrize("typed", ["web", "cc", "cc" * 32])
def test_an_error_names_what_was_typed(
    fake: FakeServer, words: str, doing: str, typed: str
) -> None:
    listed = cri_pb2.ListPodSandboxResponse()
    listed.items.add(id="cc" * 32, metadata=cri_pb2.PodSandboxMetadata(name="web"))
    fake.offer("ListPodSandbox", listed)
    fake.offer("ListContainers", containers("cc" * 32))
    for rpc in ("Exec", "ExecSync", "Attach", "PortForward"):
        fake.offer(rpc, Status(grpc.StatusCode.UNKNOWN, "no such luck"))
    result = Run("-r", fake.endpoint, *words.replace("TYPED", typed).split())
    beginning = "" if len(typed) == 64 else " (ccccccccccccc)"
    assert result.code == 1
    assert result.stderr == f'pycrictl: {doing} "{typed}"{beginning}: no such luck\n'


@pytest.mark.parametrize(
    ("transport", "status", "code"),
    [
        *(("spdy", 7, 7), ("spdy", 256, 255), ("spdy", -1, 255)),
        *(("websocket", 7, 7), ("websocket", 2**32 - 1, 255)),
    ],
)
def test_exit_status_of_the_process(
    fake: FakeServer, transport: str, status: int, code: int
) -> None:
    """A process's status has 8 bits; truncation must not turn a failure into success."""
    with playing(fake, Played(code=status)):
        process = start("-r", fake.endpoint, "exec", "-r", transport, "c", "x")
        assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == code


@pytest.mark.parametrize("words", [(), ("-r", "websocket"), ("-i", "-r", "websocket")])
def test_attaching_takes_spdy(fake: FakeServer, words: tuple[str, ...]) -> None:
    """Over WebSocket, a server ends an input that was not requested, and cannot end any other."""
    with playing(fake, Played(b"out\n")) as upgrades:
        result = Run("-r", fake.endpoint, "attach", *words, "c")
    assert (result.code, result.stdout, upgrades) == (0, "out\n", ["SPDY/3.1"])
    assert result.stderr.endswith("using SPDY\n") == bool(words)
