"""Finding the process behind a socket, and the time of its start."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest

from pycrictl.base.errors import Unavailable
from pycrictl.runtime.containerd.daemon import (
    CurrentDaemon,
    arrivals,
    find_daemon,
    listener_pid,
    runtime_pid,
)
from pycrictl.runtime.containerd.grpc_client import ContainerdClient
from tests.processes import Listener
from tests.runtime.containerd.fakectd import FakeContainerd
from tests.waiting import wait_until


def own_pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def test_a_daemon_that_tells_its_process(fake: FakeContainerd, client: ContainerdClient) -> None:
    before_s = time.time()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        fake.pid, fake.pidns = process.pid, own_pid_namespace()
        daemon = find_daemon(client)
        assert daemon is not None
        assert daemon.pid == process.pid
        assert before_s - 0.05 <= daemon.started_s <= time.time() + 0.05
        assert daemon.still_runs()
        process.communicate(b"\n")
    assert not daemon.still_runs()
    assert find_daemon(client) is None


def test_a_process_of_another_pid_namespace(
    fake: FakeContainerd, client: ContainerdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.pid, fake.pidns = os.getpid(), own_pid_namespace() + 1
    assert find_daemon(client) is None  # the listener on the socket is another program
    monkeypatch.setattr("pycrictl.runtime.containerd.daemon.listener_pid", lambda endpoint: 0)
    made_s = Path(fake.path).stat().st_mtime
    assert find_daemon(client) == (0, 0, made_s)
    current = CurrentDaemon(client)
    current.refresh()
    assert current.is_outlived(made_s - 1)
    assert not current.is_outlived(made_s)


@pytest.mark.parametrize(("name", "is_found"), [("containerd", True), ("proxy", False)])
def test_the_listener_of_the_socket(
    fake: FakeContainerd, client: ContainerdClient, tmp_path: Path, name: str, is_found: bool
) -> None:
    path = tmp_path / "other.sock"
    listener = Listener(path, name)
    try:
        assert listener_pid(f"unix://{path}") == listener_pid(str(path)) == listener.pid
        client.endpoint = f"unix://{path}"
        daemon = find_daemon(client)
        assert (daemon is not None and daemon.pid == listener.pid) is is_found
    finally:
        listener.close()


def test_endpoints_without_a_listener(tmp_path: Path) -> None:
    assert listener_pid(f"unix://{tmp_path}/none") == 0
    assert listener_pid("tcp://127.0.0.1:1") == 0
    assert listener_pid("") == 0
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(f"{tmp_path}/closed")
        assert listener_pid(f"unix://{tmp_path}/closed") == 0


def test_another_daemon(fake: FakeContainerd, client: ContainerdClient) -> None:
    """The daemon is looked up again after an error, otherwise only when its process has ended."""
    fake.pid, fake.pidns = os.getpid(), own_pid_namespace()
    current = CurrentDaemon(client)
    for _ in range(3):
        current.refresh()
    assert fake.calls["server"] == 1
    assert current.is_outlived(1000.0)
    assert not current.is_outlived(time.time() + 1)
    current.look_again()
    fake.failures["server"] = (grpc.StatusCode.UNAVAILABLE, "restarting")
    with pytest.raises(Unavailable):
        current.refresh()
    fake.failures.clear()
    current.refresh()
    assert fake.calls["server"] == 3


def test_the_process_of_a_runtime(tmp_path: Path) -> None:
    """That of its socket; behind a proxy, the only one of its name."""
    name = "pctl-runtime"
    runtime, proxy = tmp_path / "runtime.sock", tmp_path / "proxy.sock"
    with Listener(runtime, name) as listener, Listener(proxy, "proxy"):
        assert runtime_pid(f"unix://{runtime}", name) == listener.pid
        assert runtime_pid(f"unix://{proxy}", name) == listener.pid
        with Listener(tmp_path / "other.sock", name):
            assert runtime_pid(f"unix://{runtime}", name) == listener.pid
            assert runtime_pid(f"unix://{proxy}", name) == 0
    assert runtime_pid(f"unix://{runtime}", name) == 0


CLIENT = """
import socket, sys
served = socket.create_server(("127.0.0.1", 0))
print(served.getsockname()[1], flush=True)
theirs, _ = served.accept()
own = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
while own.recv(100):
    print("received", flush=True)
"""


def test_only_what_arrives_on_its_own_connections_counts() -> None:
    """Bytes on a connection that another program opened to it are no download."""
    with (
        socket.create_server(("127.0.0.1", 0)) as registry,
        subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(registry.getsockname()[1])],
            stdout=subprocess.PIPE,
            text=True,
        ) as client,
    ):
        assert client.stdout is not None
        assert arrivals(client.pid) is None
        with socket.create_connection(("127.0.0.1", int(client.stdout.readline()))) as theirs:
            own, _ = registry.accept()
            own.send(b"x")
            assert client.stdout.readline() == "received\n"
            time.sleep(0.6)
            theirs.send(b"x" * 100)
            found = arrivals(client.pid)
            assert found is not None
            assert 0.5 < found.since_s < 60
            assert [*found.received.values()] == [1]
            own.send(b"xyz")
            wait_until(lambda: (arrivals(client.pid) or found).gained(found) == 3)
            own.close()


def test_a_process_without_connections() -> None:
    assert arrivals(2**22) is None
