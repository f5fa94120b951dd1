"""What processes say of themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pycrictl.progress.crio.downloaders import (
    PodmanProcesses,
    children,
    pulled_reference,
    unpacker_read_bytes,
)
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("line", "reference"),
    [
        ("podman pull a.io/b:1", "a.io/b:1"),
        ("podman pull -q --tls-verify=false a.io/b:1", "a.io/b:1"),
        ("podman --root /x --runroot=/y pull --authfile /z busybox", "busybox"),
        ("podman image pull docker://a.io/b", "a.io/b"),
        ("podman pull a b", ""),
        ("podman run -it busybox sh", ""),
        ("podman system service", ""),
        ("podman pull", ""),
        ("podman", ""),
    ],
)
def test_what_a_podman_pulls(line: str, reference: str) -> None:
    assert pulled_reference(line.split()) == reference


PODMAN = """
import sys, time
from pathlib import Path
Path("/proc/self/comm").write_text("podman")
time.sleep(1000)
"""


def test_a_podman_is_found_with_its_own_settings() -> None:
    words = ["--root", "/my/store", "pull", "--tls-verify=false", "a.io/b:1"]
    environ = {**os.environ, "HTTPS_PROXY": "http://p:1", "SECRET": "s"}
    processes = PodmanProcesses()
    with subprocess.Popen([sys.executable, "-c", PODMAN, *words], env=environ) as process:

        def mine() -> list[object]:
            return [found for found in processes.look() if found.store == "/my/store"]

        try:
            wait_until(mine)
            (found,) = [one for one in processes.look() if one.pid == process.pid]
        finally:
            process.kill()
    # The program is Python here, and its first word is the code.
    assert (found.store, found.verifies_tls) == ("/my/store", False)
    assert found.environ["HTTPS_PROXY"] == "http://p:1"
    assert "SECRET" not in found.environ
    assert "p:1" not in repr(found)
    assert not [one for one in processes.look() if one.pid == process.pid]


def test_a_podman_without_arguments_is_not_remembered() -> None:
    """execve(2) sets the name before the arguments; a process that has ended has none, either."""
    processes = PodmanProcesses()
    pid = os.fork()
    if not pid:
        Path("/proc/self/comm").write_text("podman")
        os._exit(0)
    try:
        comm = Path(f"/proc/{pid}/comm")
        wait_until(lambda: comm.read_text() == "podman\n" and _state(pid) == "Z")
        assert pid not in [one.pid for one in processes.look()]
    finally:
        os.waitpid(pid, 0)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


UNPACKER = """
import os, sys
code = "import sys, time; sys.stdin.buffer.read(); time.sleep(1000)"
os.execv(sys.executable, ["storage-untar", "-c", code])
"""


def test_how_much_an_unpacker_has_read() -> None:
    before = set(children(os.getpid()))
    assert unpacker_read_bytes(os.getpid()) is None
    read, write = os.pipe()
    with subprocess.Popen([sys.executable, "-c", UNPACKER], stdin=read) as process:
        try:
            wait_until(lambda: unpacker_read_bytes(os.getpid()) is not None)
            start = unpacker_read_bytes(os.getpid()) or 0
            for _ in range(50):
                os.write(write, b"x" * 20_000)
            wait_until(
                lambda: (unpacker_read_bytes(os.getpid()) or 0) >= start + 1_000_000 - 70_000
            )
            assert set(children(os.getpid())) - before == {process.pid}
        finally:
            process.kill()
            os.close(write)
            os.close(read)
    assert unpacker_read_bytes(os.getpid()) is None
