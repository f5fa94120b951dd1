"""The streaming cores against a real containerd, over SPDY."""

from __future__ import annotations

import hashlib
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pycrictl.wire.command import ExitReported
from pycrictl.wire.portforward import (
    ForwardClosed,
    ForwardEnded,
    ForwardOpened,
    ForwardReceived,
)

from .kubelet import Kubelet, Pod
from .lab import MIB, Lab
from .programs import closed_port
from .streams import open_forward, run_command


@contextmanager
def echo_server() -> Iterator[int]:
    """A port of this machine that sends back what it got, with a word before it, up to 5 bytes."""

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                got = b""
                while len(got) < 5 and (piece := connection.recv(5)):
                    got += piece
                connection.sendall(b"got " + got)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join(5)


@pytest.fixture
def kubelet(lab: Lab) -> Kubelet:
    return lab.node.kubelet


@pytest.fixture
def pod(kubelet: Kubelet) -> Pod:
    return kubelet.run_pod("streams")


@pytest.fixture
def container(lab: Lab, kubelet: Kubelet, pod: Pod) -> str:
    reference = lab.reference(lab.busybox)
    kubelet.pull(reference)
    container_id = kubelet.create_container(pod, reference)
    kubelet.start_container(container_id)
    return container_id


def test_piped_input_ends_with_all_its_output(kubelet: Kubelet, container: str) -> None:
    data = random.Random(1).randbytes(8 * MIB + 1)
    outcome = run_command(kubelet, container, ["cat"], stdin=data)
    assert hashlib.sha256(outcome.stdout).digest() == hashlib.sha256(data).digest()
    assert outcome.stderr == b""
    assert outcome.exit == ExitReported(0)


def test_every_byte_value_is_intact(kubelet: Kubelet, container: str) -> None:
    data = bytes(range(256)) * 3
    script = "cat | tee /dev/stderr"
    outcome = run_command(kubelet, container, ["sh", "-c", script], stdin=data)
    assert (outcome.stdout, outcome.stderr) == (data, data)


@pytest.mark.parametrize("status", [0, 1, 7, 126, 137])
def test_exit_status(kubelet: Kubelet, container: str, status: int) -> None:
    outcome = run_command(kubelet, container, ["sh", "-c", f"echo out; exit {status}"])
    assert outcome.stdout == b"out\n"
    assert outcome.exit is not None
    assert outcome.exit.exit_code == status
    assert bool(outcome.exit.message) == bool(status)


def test_a_missing_command(kubelet: Kubelet, container: str) -> None:
    outcome = run_command(kubelet, container, ["nosuch"])
    assert outcome.exit is not None
    assert outcome.exit.exit_code is None
    assert '"nosuch": executable file not found' in outcome.exit.message


def test_input_that_nobody_reads(kubelet: Kubelet, container: str) -> None:
    outcome = run_command(kubelet, container, ["true"], stdin=b"unread")
    assert outcome.exit == ExitReported(0)


def test_the_terminal_has_the_size(kubelet: Kubelet, container: str) -> None:
    command = ["sh", "-c", "until stty size 2>/dev/null | grep -v '^0'; do sleep 0.05; done"]
    outcome = run_command(kubelet, container, command, stdin=b"", size=(101, 34))
    assert outcome.stdout == b"34 101\r\n"
    assert outcome.exit == ExitReported(0)


def forwarded(kubelet: Kubelet, pod: Pod, port: int) -> tuple[bytes, list[object]]:
    """What a port of a pod answers, and how the connection ends."""
    driver, core = open_forward(kubelet, pod, port)
    answer, ends = b"", []

    def handle(event: object) -> None:
        nonlocal answer
        match event:
            case ForwardOpened():
                core.send(b"hello")
                core.end()
            case ForwardReceived():
                answer += event.data
            case _:
                ends.append(event)

    driver.run(core, handle)
    return answer, ends


def test_a_connection_to_a_port(kubelet: Kubelet, pod: Pod) -> None:
    with echo_server() as port:
        answer, ends = forwarded(kubelet, pod, port)
    assert answer == b"got hello"
    assert ends == [ForwardEnded(), ForwardClosed("")]


def test_a_port_where_nobody_listens(kubelet: Kubelet, pod: Pod) -> None:
    with closed_port() as port:
        answer, (ended, closed) = forwarded(kubelet, pod, port)
    assert answer == b""
    assert ended == ForwardEnded()
    assert isinstance(closed, ForwardClosed)
    assert "connection refused" in closed.error
