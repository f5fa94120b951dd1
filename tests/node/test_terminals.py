"""Commands on a terminal of their own, on a real containerd."""

from __future__ import annotations

import signal

import pytest

from .forked import Program
from .kubelet import Pod
from .lab import Lab
from .programs import Session


def shell(command: list[str], container: str, *more: str) -> Session:
    session = Session([*command, "exec", "-it", *more, container, "sh"])
    session.wait_for(b"# ")
    return session


@pytest.mark.parametrize("transport", ["spdy", "websocket"])
def test_a_terminal(command: list[str], container: str, transport: str) -> None:
    session = shell(command, container, "-r", transport)
    session.talk((b"echo up$((1+1))\n", b"up2\r\n"))
    session.resize(101, 34)
    session.process.send_signal(signal.SIGWINCH)
    session.talk(
        (b"until stty size | grep '34 101'; do sleep 0.1; done\n", b"\r\n34 101\r\n"),
        (b"sh -c 'echo sleep$((1+1)); exec sleep 60'\n", b"sleep2\r\n"),
        (b"\x03", b"# "),  # for the command, not for us
    )
    session.type(b"exit 6\n")
    assert session.end() == 6


def test_the_terminal_is_sane_after_the_containers_death(
    crictl: Program, command: list[str], container: str
) -> None:
    session = shell(command, container)
    session.talk((b"vi /tmp/text\n", b"\x1b[?1049h"))
    assert crictl.run("stop", container).status == 0
    session.wait_for(b"\x1b[?1049l")
    assert session.end() == 137


def test_the_terminal_is_sane_after_the_runtimes_death(
    lab: Lab, command: list[str], container: str
) -> None:
    session = shell(command, container)
    lab.node.kill9()
    try:
        session.wait_for(b"pycrictl: ")
        assert session.end() == 1
    finally:
        lab.node.start()


def test_attach_and_detach(lab: Lab, pod: Pod, command: list[str]) -> None:
    container_id = lab.container(pod, ["sh"], tty=True, stdin=True)
    for number in (1, 2):  # it goes on without us
        session = Session([*command, "attach", "-it", container_id])
        session.talk((b"echo here$((1+%d))\n" % number, b"here%d\r\n" % (1 + number)))
        session.type(b"\x10\x11")
        assert session.end() == 0
    lab.node.kubelet.run(container_id, "true")
