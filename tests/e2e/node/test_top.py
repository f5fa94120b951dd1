"""``top`` in a real terminal, on a real containerd."""

from __future__ import annotations

import os
import signal

import pytest

from .kubelet import Pod
from .lab import Lab
from .programs import Session

pytestmark = pytest.mark.node


@pytest.fixture
def crashed(lab: Lab, pod: Pod, container: str) -> str:
    """A pod ``sessions``: its container ``main`` runs, and ``bad`` has exited with 3."""
    return lab.container(pod, ["sh", "-c", "echo no database; exit 3"], name="bad")


def top(command: list[str], *more: str) -> Session:
    session = Session([*command, "top", "--no-kube", "--interval", "0.5", *more])
    session.wait_for(b"crash")
    return session


def test_ctrl_c_ends_it_and_leaves_the_terminal_as_it_was(command: list[str], crashed: str) -> None:
    session = Session(["setsid", "--ctty", "--wait", *command, "top", "--no-kube"])
    session.wait_for(b"! default/sessions")
    session.type(b"\x03")
    assert session.end() == 0


def test_a_runtime_that_hangs_and_goes_on(lab: Lab, command: list[str], crashed: str) -> None:
    session = top([*command, "-t", "1s"])
    os.kill(lab.node.pid, signal.SIGSTOP)
    try:
        session.wait_for(b"last seen at")
    finally:
        os.kill(lab.node.pid, signal.SIGCONT)
    session.wait_for(b"1 running\r\r\n\x1b[K\x1b[31m! default")  # no line in between
    session.process.send_signal(signal.SIGINT)
    assert session.end() == 0
