"""``cp`` against a fake runtime: what is refused, what is asked, and how it is reported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import grpc

from pycrictl._proto import cri_pb2
from tests.cli.run import Run
from tests.fakecri import FakeServer, Status

ID = "a" * 64
NO_RPC = Status(grpc.StatusCode.UNIMPLEMENTED, "unknown method")


def run(fake: FakeServer, *words: str) -> Run:
    return Run("-t", "5s", "-r", fake.endpoint, "cp", *words)


def container(
    container_id: str = ID, name: str = "web", pod: str = "p" * 64, *, runs: bool = True
) -> cri_pb2.Container:
    return cri_pb2.Container(
        id=container_id,
        pod_sandbox_id=pod,
        metadata=cri_pb2.ContainerMetadata(name=name),
        state=cri_pb2.CONTAINER_RUNNING if runs else cri_pb2.CONTAINER_EXITED,
    )


def offer(fake: FakeServer, *containers: cri_pb2.Container) -> None:
    fake.offer("ListContainers", cri_pb2.ListContainersResponse(containers=containers))


def test_containers_that_are_not_there(fake: FakeServer) -> None:
    offer(fake, container(runs=False), container("b" * 64, "db"))
    missing = run(fake, "nope:/a", "/b")
    assert missing.code == 1
    assert missing.stderr.splitlines() == [
        'pycrictl: no container "nope"',
        "hint: 'pycrictl ps -a' lists the containers of the node",
    ]
    stopped = run(fake, "web:/a", "/b")
    assert stopped.code == 1
    assert stopped.stderr.startswith('pycrictl: container "web" is not running\n')


def test_when_no_method_serves_each_tells_why(fake: FakeServer, tmp_path: Path) -> None:
    offer(fake, container())
    fake.offer("CopyFromContainer", NO_RPC)
    # It runs, but the runtime does not report its process; and tar is not in it.
    status = cri_pb2.ContainerStatus(id=ID, state=cri_pb2.CONTAINER_RUNNING)
    fake.offer("ContainerStatus", cri_pb2.ContainerStatusResponse(status=status))
    missing = 'exec: "tar": executable file not found in $PATH'
    fake.offer("ExecSync", Status(grpc.StatusCode.UNKNOWN, missing))
    result = run(fake, "web:/a", str(tmp_path))
    assert result.code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("pycrictl: cannot copy to or from this container (rpc: ")
    assert "; node: " in line
    assert line.endswith("; exec: there is no tar in the container)")
    alone = run(fake, "--method", "exec", "web:/a", str(tmp_path))
    assert alone.stderr.splitlines()[0] == "pycrictl: there is no tar in the container"
    assert list(tmp_path.iterdir()) == []


def test_a_failure_is_no_reason_to_try_another_method(fake: FakeServer, tmp_path: Path) -> None:
    offer(fake, container())
    refusal = Status(grpc.StatusCode.RESOURCE_EXHAUSTED, "too large, try again later")
    fake.offer("CopyFromContainer", refusal)
    result = run(fake, "web:/a", str(tmp_path))
    assert result.code == 1
    assert "too large, try again later" in result.stderr
    assert "ExecSync" not in fake.methods()


def test_archives_and_terminals(fake: FakeServer) -> None:
    controller, terminal = os.openpty()
    try:
        for words, line in (
            (["web:/a", "-"], "refusing to write an archive to a terminal"),
            (["-", "web:/a"], "refusing to read an archive from a terminal"),
        ):
            done = subprocess.run(
                [sys.executable, "-m", "pycrictl", "-r", fake.endpoint, "cp", *words],
                stdin=terminal,
                stdout=terminal,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
            assert done.returncode == 1
            assert done.stderr.splitlines()[0] == f"pycrictl: {line}"
        assert fake.calls == []
    finally:
        os.close(controller)
        os.close(terminal)
