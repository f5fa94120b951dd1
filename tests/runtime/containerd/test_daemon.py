"""Finding the process behind a socket, and the time of its start."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pycrictl.runtime.containerd.daemon import (
    DEFAULT_PATH,
    CurrentDaemon,
    config_path,
    listener_pid,
    quiet_s,
    read_settings,
    runtime_pid,
)
from tests.processes import Listener


def test_the_listener_of_the_socket(tmp_path: Path) -> None:
    path, before_s = tmp_path / "other.sock", time.time()
    with Listener(path, "containerd") as listener:
        assert listener_pid(f"unix://{path}") == listener_pid(str(path)) == listener.pid
        current = CurrentDaemon(f"unix://{path}")
        current.refresh()
        assert current.pid == listener.pid
        assert current.is_outlived(before_s - 1.0)
        assert not current.is_outlived(time.time())
    current.refresh()  # its process has ended
    assert current.pid == 0


def test_another_program_on_the_socket_says_nothing_of_containerds_age(tmp_path: Path) -> None:
    with Listener(tmp_path / "proxy.sock", "proxy"):
        current = CurrentDaemon(f"unix://{tmp_path}/proxy.sock")
        current.refresh()
        assert (current.pid, current.is_outlived(1000.0)) == (0, False)


def test_a_process_of_another_pid_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is as old as its socket."""
    with Listener(tmp_path / "c.sock", "containerd"):
        monkeypatch.setattr("pycrictl.runtime.containerd.daemon.listener_pid", lambda endpoint: 0)
        made_s = (tmp_path / "c.sock").stat().st_mtime
        current = CurrentDaemon(f"unix://{tmp_path}/c.sock")
        current.refresh()
        assert current.is_outlived(made_s - 1)
        assert not current.is_outlived(made_s)


def test_another_daemon_is_looked_for_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "c.sock"
    current = CurrentDaemon(f"unix://{path}")
    current.refresh()
    with Listener(path, "containerd") as listener:
        current.refresh()
        assert current.pid == 0
        current.look_again()
        current.refresh()
        assert current.pid == listener.pid


def test_endpoints_without_a_listener(tmp_path: Path) -> None:
    assert listener_pid(f"unix://{tmp_path}/none") == 0
    assert listener_pid("tcp://127.0.0.1:1") == 0
    assert listener_pid("") == 0
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(f"{tmp_path}/closed")
        assert listener_pid(f"unix://{tmp_path}/closed") == 0


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


@pytest.mark.parametrize(
    "is_elsewhere", [False, pytest.param(True, marks=pytest.mark.root)], ids=["here", "elsewhere"]
)
def test_only_what_arrives_on_its_own_connections_counts(
    monkeypatch: pytest.MonkeyPatch, is_elsewhere: bool
) -> None:
    """Bytes on a connection that another program opened to it are no download.

    The sockets of another network namespace are unknown to sock_diag.
    """
    if is_elsewhere:
        monkeypatch.setattr("pycrictl.runtime.containerd.daemon.tcp_sockets", lambda *_: ())
    with (
        socket.create_server(("127.0.0.1", 0)) as registry,
        subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(registry.getsockname()[1])],
            stdout=subprocess.PIPE,
            text=True,
        ) as client,
    ):
        assert client.stdout is not None
        assert quiet_s(client.pid) is None
        with socket.create_connection(("127.0.0.1", int(client.stdout.readline()))) as theirs:
            own, _ = registry.accept()
            own.send(b"x")
            assert client.stdout.readline() == "received\n"
            time.sleep(0.6)
            theirs.send(b"x" * 100)
            idle_s = quiet_s(client.pid)
            assert idle_s is not None
            assert 0.5 < idle_s < 60
            own.send(b"xyz")
            assert client.stdout.readline() == "received\n"
            assert (quiet_s(client.pid) or 0.0) < idle_s
            own.close()


def test_a_process_without_connections() -> None:
    assert quiet_s(2**22) is None


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


def settings_in(path: Path) -> tuple[int, str]:
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
    assert settings_in(write(tmp_path / "config.toml", text)) == expected


def test_imports_are_merged_in_version_3(tmp_path: Path) -> None:
    main = write(
        tmp_path / "config.toml", f'imports = ["conf.d/*.toml", "/none.toml"]\n{VERSION_3}'
    )
    section = "version = 3\n[plugins.'io.containerd.cri.v1.images']\n"
    write(tmp_path / "conf.d/a.toml", f"{section}max_concurrent_downloads = 8\nregistry = {{}}\n")
    write(tmp_path / "conf.d/b.toml", f"{section}max_concurrent_downloads = 9\n")
    write(tmp_path / "conf.d/c.conf", f"{section}max_concurrent_downloads = 10\n")
    assert settings_in(main) == (9, "stargz")
    assert read_settings(main).registry_origin == str(tmp_path / "conf.d/a.toml")


def test_an_imported_section_replaces_the_whole_one_in_version_2(tmp_path: Path) -> None:
    imported = write(tmp_path / "extra.toml", f"version = 2\n{CRI}\nmax_concurrent_downloads = 8\n")
    main = write(
        tmp_path / "config.toml", f'imports = ["{imported}"]\n{VERSION_2}\n{CRI[:-1]}.registry]\n'
    )
    assert settings_in(main) == (8, "overlayfs")
    assert read_settings(main).registry_origin == ""


def test_imports_in_a_circle(tmp_path: Path) -> None:
    main = write(tmp_path / "config.toml", f'imports = ["*.toml"]\n{VERSION_2}')
    write(tmp_path / "other.toml", 'version = 2\nimports = ["config.toml", 5, ""]\n')
    assert settings_in(main) == (5, "native")


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
