"""``top`` in a real terminal, above the real containerd."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from .kubelet import Pod
from .lab import Lab
from .programs import Crictl, Session

pytestmark = pytest.mark.node


@pytest.fixture
def crashed(lab: Lab, pod: Pod, container: str) -> str:
    """A pod ``sessions`` whose container ``main`` runs, and ``bad`` has ended with 3."""
    reference = lab.reference(lab.busybox)
    words = ["/bin/busybox", "sh", "-c", "echo no database; exit 3"]
    made = lab.node.kubelet.create_container(pod, reference, name="bad", command=words)
    lab.node.kubelet.start_container(made)
    return made


@pytest.mark.parametrize("size", [(80, 24), (200, 50), (40, 10)])
def test_the_screen_and_its_keys(command: list[str], crashed: str, size: tuple[int, int]) -> None:
    session = Session([*command, "top", "--no-kube"])
    session.resize(*size)
    session.wait_for(b"crash")
    session.type(b"?")
    session.wait_for(b"this help")
    session.type(b"q")
    session.wait_for(b"q quit")
    session.type(b"w")
    session.wait_for(b"Sandbox")
    session.type(b"q")
    session.type(b"l")
    session.wait_for(b"Enter goes back")
    session.type(b"\r")
    session.type(b"q")
    assert session.end() == 0


def test_what_ends_it_leaves_the_terminal_as_it_was(command: list[str], crashed: str) -> None:
    session = Session([*command, "top", "--no-kube"])
    session.wait_for(b"crash")
    session.process.send_signal(signal.SIGTERM)
    assert session.end() == 128 + signal.SIGTERM


@pytest.mark.parametrize("keys", [b"", b"l"])
def test_it_ends_with_its_terminal(command: list[str], crashed: str, keys: bytes) -> None:
    session = Session([*command, "top", "--no-kube", "--interval", "0.5"])
    session.wait_for(b"crash")
    if keys:
        session.type(keys)
        session.wait_for(b"Enter goes back")
    assert session.hang_up() in (0, 128 + signal.SIGHUP)


def test_a_runtime_that_hangs_and_goes_on(lab: Lab, command: list[str], crashed: str) -> None:
    session = Session([*command, "-t", "1s", "top", "--no-kube", "--interval", "0.5"])
    session.wait_for(b"crash")
    os.kill(lab.node.pid, signal.SIGSTOP)
    try:
        session.wait_for(b"last seen at")
    finally:
        os.kill(lab.node.pid, signal.SIGCONT)
    time.sleep(2)
    session.shown = b""
    session.type(b"r")
    session.wait_for(b"PODS")
    session.type(b"q")
    assert session.end() == 0


def test_once_is_what_the_screen_has(crictl: Crictl, crashed: str) -> None:
    done = crictl("top", "--once", "--no-kube")
    assert done.returncode == 0, done.stderr
    sick = next(line for line in done.stdout.decode().splitlines() if line.startswith("!"))
    assert "exit 3, " in sick

    found = json.loads(crictl("top", "-o", "json", "--no-kube").stdout)
    assert found["counts"]["sick"] == 1
    assert any(row["memory"] for row in found["rows"])
