"""``exec`` and ``attach``, without a terminal and with one, on a real containerd."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator

import pytest

from pycrictl._proto import cri_pb2
from tests.waiting import wait_until

from .forked import Program
from .kubelet import Pod
from .lab import MIB, Lab
from .programs import Session

TRANSPORTS = [["-r", "spdy"], ["-r", "websocket"], ["-s"]]


@pytest.fixture(scope="module")
def containers(shared_lab: Lab) -> Iterator[Callable[[], str]]:
    """A function that returns a running container; it starts one only if the last is gone."""
    kubelet = shared_lab.node.kubelet
    container_id = ""

    def find() -> str:
        nonlocal container_id
        if container_id not in kubelet.running_containers():
            container_id = shared_lab.container(kubelet.run_pod("sessions"))
        return container_id

    yield find
    shared_lab.clean()


@pytest.fixture
def container(containers: Callable[[], str]) -> str:
    """One container for all tests: they leave nothing in it that would affect others."""
    return containers()


@pytest.mark.parametrize("how", TRANSPORTS, ids=" ".join)
def test_status_and_output_are_the_commands(
    crictl: Program, container: str, how: list[str]
) -> None:
    for status in (7, 137):
        script = f"echo out; echo err >&2; exit {status}"
        ended = crictl.run("exec", *how, container, "sh", "-c", script)
        assert ended == (status, b"out\n", "err\n")
    octal = "".join(f"\\{value:03o}" for value in range(256))
    script = f"printf '{octal}'; printf '{octal}' >&2"
    ended = crictl.run("exec", *how, container, "sh", "-c", script)
    every = bytes(range(256))
    assert ended == (0, every, every.decode("utf-8", "surrogateescape"))


def test_piped_input_ends_with_all_its_output(crictl: Program, container: str) -> None:
    words = ("exec", "-i", container)
    assert crictl.run(*words, "cat", stdin=b"x\n") == (0, b"x\n", "")
    assert crictl.run(*words, "true", stdin=b"unread") == (0, b"", "")


@pytest.mark.parametrize(("transport", "size_mib"), [("spdy", 96), ("websocket", 16)])
def test_many_mebibytes_come_back(
    command: list[str], container: str, transport: str, size_mib: int
) -> None:
    """WebSocket of released runtimes cannot signal the end of the input: SPDY is used there."""
    blocks = [random.Random(number).randbytes(MIB) for number in range(8)]
    words = [*command, "exec", "-i", "-r", transport, container, "cat"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, **pipes) as process:  # type: ignore[call-overload]  # pipes

        def feed() -> None:
            with process.stdin as stdin:
                for number in range(size_mib):
                    stdin.write(blocks[number % len(blocks)])

        feeding = threading.Thread(target=feed)
        feeding.start()
        wrong = [n for n in range(size_mib) if process.stdout.read(MIB) != blocks[n % len(blocks)]]
        rest = process.stdout.read()
        feeding.join(60)
        assert not feeding.is_alive()
        said = process.stderr.read()
        assert process.wait(60) == 0
    assert (wrong, rest) == ([], b"")
    assert said.count(b"\n") == (transport == "websocket")


def test_a_missing_command(crictl: Program, container: str) -> None:
    ended = crictl.run("exec", container, "nosuch")
    assert ended.status == 127
    (line,) = ended.stderr.splitlines()
    assert '"nosuch": executable file not found' in line


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["int", "term"]
)
def test_a_signal_ends_it(
    command: list[str], container: str, number: signal.Signals, status: int
) -> None:
    words = [*command, "exec", "-i", container, "sh", "-c", "echo up; sleep 30"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(number)
        assert process.wait(60) == status


@pytest.mark.parametrize("how", [["-r", "spdy"], ["-s"]], ids=" ".join)
def test_the_runtimes_death_is_one_line(
    lab: Lab, command: list[str], container: str, how: list[str]
) -> None:
    script = "echo up; touch /up; sleep 60"
    words = [*command, "exec", *how, container, "sh", "-c", script]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        up = ("sh", "-c", "until [ -e /up ]; do sleep 0.1; done")
        lab.node.kubelet.run(container, *up)
        assert process.stdout is not None
        shown = b"" if "-s" in how else process.stdout.readline()
        lab.node.kill9()
        try:
            stdout, stderr = process.communicate(timeout=60)
        finally:
            lab.node.start()
    assert process.returncode == 1
    assert (shown, stdout) == (b"" if "-s" in how else b"up\n", b"")
    first, *hints = stderr.decode().splitlines()
    assert first.startswith("pycrictl: ")
    assert all(line.startswith("hint: ") for line in hints)
    if "-s" not in how:
        assert "the runtime sent no exit status" in first


def test_attach(lab: Lab, pod: Pod, crictl: Program, command: list[str]) -> None:
    # It does not end by itself: containerd may lose what is written right before the end.
    script = "read line; echo $line; echo err >&2; read line"
    container_id = lab.container(pod, ["sh", "-c", script], stdin=True)
    words = [*command, "attach", "-i", container_id]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, bufsize=0, **pipes) as process:  # type: ignore[call-overload]  # pipes
        process.stdin.write(b"out\n")
        assert (process.stdout.readline(), process.stderr.readline()) == (b"out\n", b"err\n")
        process.stdin.write(b"end\n")
        assert (process.stdout.read(), process.stderr.read()) == (b"", b"")
        assert process.wait(60) == 0
    wait_until(lambda: lab.node.kubelet.state(container_id) == cri_pb2.CONTAINER_EXITED)
    again = crictl.run("attach", container_id)
    assert again.status == 1
    assert len(again.stderr.splitlines()) == 1


@pytest.mark.parametrize(("once", "tty"), [(False, False), (True, True)])
def test_attaching_ends_nobodys_input(
    lab: Lab, pod: Pod, command: list[str], once: bool, tty: bool
) -> None:
    script = "while :; do echo on; sleep 0.2; done & cat; exit 3"
    words = ["sh", "-c", script]
    container_id = lab.container(pod, words, tty=tty, stdin=True, stdin_once=once)
    words = [*command, "attach", *(("-r", "websocket") if once else ()), container_id]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert [process.stdout.readline().rstrip() for _ in range(5)] == [b"on"] * 5
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    lab.node.kubelet.run(container_id, "sh", "-c", "kill -0 1")


# On a terminal


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
        (b"\x03", b"# "),  # for the remote command only
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
    for number in (1, 2):  # the shell survives detaching
        session = Session([*command, "attach", "-it", container_id])
        session.talk((b"echo here$((1+%d))\n" % number, b"here%d\r\n" % (1 + number)))
        session.type(b"\x10\x11")
        assert session.end() == 0
    lab.node.kubelet.run(container_id, "true")
