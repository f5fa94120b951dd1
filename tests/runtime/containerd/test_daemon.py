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
    DEFAULT_PATH,
    CurrentDaemon,
    arrivals,
    config_path,
    find_daemon,
    listener_pid,
    read_settings,
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


# Settings of pulls in its configuration


CRI = '[plugins."io.containerd.grpc.v1.cri"]'
VERSION_2 = """
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  max_concurrent_downloads = 5
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
"""
VERSION_3 = """
version = 3
[plugins.'io.containerd.cri.v1.images']
  max_concurrent_downloads = 7
  snapshotter = "stargz"
[plugins.'io.containerd.grpc.v1.cri']
  stream_server_port = "0"
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def found(path: Path) -> tuple[int, str]:
    settings = read_settings(path)
    return settings.max_concurrent_downloads, settings.snapshotter


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[plugins.cri]\nmax_concurrent_downloads = 4\n", (4, "overlayfs")),
        (VERSION_2, (5, "native")),
        (VERSION_3, (7, "stargz")),
        ("", (3, "overlayfs")),
        ("not toml", (3, "overlayfs")),
        ('[plugins]\n"io.containerd.grpc.v1.cri" = 5', (3, "overlayfs")),
        (f'{CRI}\nmax_concurrent_downloads = "3"', (3, "overlayfs")),
        (f"{CRI}\ncontainerd = 5\nsnapshotter = 5", (3, "overlayfs")),
        ('imports = "x"', (3, "overlayfs")),
    ],
)
def test_versions_and_defaults(tmp_path: Path, text: str, expected: tuple[int, str]) -> None:
    assert found(write(tmp_path / "config.toml", text)) == expected


def test_imports_are_merged_in_version_3(tmp_path: Path) -> None:
    main = write(
        tmp_path / "config.toml", f'imports = ["conf.d/*.toml", "/none.toml"]\n{VERSION_3}'
    )
    section = "version = 3\n[plugins.'io.containerd.cri.v1.images']\n"
    write(tmp_path / "conf.d/a.toml", f"{section}max_concurrent_downloads = 8\nregistry = {{}}\n")
    write(tmp_path / "conf.d/b.toml", f"{section}max_concurrent_downloads = 9\n")
    write(tmp_path / "conf.d/c.conf", f"{section}max_concurrent_downloads = 10\n")
    assert found(main) == (9, "stargz")
    assert read_settings(main).registry_origin == str(tmp_path / "conf.d/a.toml")


def test_an_imported_section_replaces_the_whole_one_in_version_2(tmp_path: Path) -> None:
    imported = write(tmp_path / "extra.toml", f"version = 2\n{CRI}\nmax_concurrent_downloads = 8\n")
    main = write(
        tmp_path / "config.toml", f'imports = ["{imported}"]\n{VERSION_2}\n{CRI[:-1]}.registry]\n'
    )
    assert found(main) == (8, "overlayfs")
    assert read_settings(main).registry_origin == ""


def test_imports_in_a_circle(tmp_path: Path) -> None:
    main = write(tmp_path / "config.toml", f'imports = ["*.toml"]\n{VERSION_2}')
    write(tmp_path / "other.toml", 'version = 2\nimports = ["config.toml", 5, ""]\n')
    assert found(main) == (5, "native")


def run_with_arguments(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a process in ``folder`` that waits for a line on stdin."""
    script = write(folder / "daemon.py", 'input("ready\\n")')
    process = subprocess.Popen(
        [sys.executable, script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=folder,
    )
    # /proc may not yet show the arguments of a new process.
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--config", "/a/b.toml"), "/a/b.toml"),
        (("--root", "x", "--config=/a/b.toml"), "/a/b.toml"),
        (("-c", "/a/b.toml", "-l", "debug"), "/a/b.toml"),
        (("-c", "b.toml"), "{cwd}/b.toml"),
        (("--log-level", "info"), str(DEFAULT_PATH)),
    ],
)
def test_the_path_is_the_daemons_argument(
    tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    with run_with_arguments(tmp_path, *arguments) as process:
        path = config_path(process.pid)
        process.communicate(b"\n")
    assert str(path) == expected.format(cwd=tmp_path)


def test_the_usual_path_without_a_process() -> None:
    assert config_path(None) == config_path(0) == config_path(2**31 - 1) == DEFAULT_PATH
