"""A proxy with few file descriptors, and more clients than these are enough for."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from pycrictl._proto import cri_pb2
from tests.fakecri.server import FakeServer
from tests.node.kubelet import RUNTIME
from tests.proxy.program import Program
from tests.waiting import wait_until

DESCRIPTORS = 64
CLIENTS = 200


@pytest.fixture
def proxy(folder: Path, fake: FakeServer) -> Iterator[Program]:
    fake.offer("Version", cri_pb2.VersionResponse(runtime_name="fake"))
    with Program(folder, fake.endpoint, descriptors=DESCRIPTORS) as proxy:
        yield proxy


@contextmanager
def crowd(proxy: Program) -> Iterator[None]:
    """More clients than the proxy can take, who say nothing."""
    with ExitStack() as stack:
        for _ in range(CLIENTS):
            client = stack.enter_context(closing(socket.socket(socket.AF_UNIX)))
            client.connect(str(proxy.socket_path))
        yield


def version(proxy: Program) -> str:
    request, response = cri_pb2.VersionRequest(), cri_pb2.VersionResponse
    return proxy.kubelet.call(RUNTIME + "Version", request, response, timeout_s=20).runtime_name


def held(proxy: Program) -> int:
    return len(list(Path(f"/proc/{proxy.pid}/fd").iterdir()))


def has_lines(proxy: Program, event: str, count: int) -> bool:
    return proxy.log().count(f" {event} listener=cri ") == count


def test_accepting_pauses_when_descriptors_run_out(proxy: Program) -> None:
    """It says so once, others wait, and when there is room they are served."""
    for count in range(1, 4):
        with crowd(proxy):
            wait_until(partial(has_lines, proxy, "accept_paused", count))
            time.sleep(1.0)
            assert held(proxy) < DESCRIPTORS
        assert version(proxy) == "fake"
        wait_until(partial(has_lines, proxy, "accept_resumed", count))
        assert has_lines(proxy, "accept_paused", count)
    assert all(line.startswith("level=") for line in proxy.log().splitlines())
    assert proxy.log().count("\n") < 20


def test_who_is_accepted_is_served_while_others_wait(proxy: Program) -> None:
    assert version(proxy) == "fake"
    with crowd(proxy):
        wait_until(lambda: has_lines(proxy, "accept_paused", 1))
        for _ in range(20):
            assert version(proxy) == "fake"


def test_half_requests_leave_descriptors_to_the_others(proxy: Program) -> None:
    streams = proxy.log().partition(" streams=")[2].split()[0]
    host, _, port = streams.rpartition(":")
    with ExitStack() as stack:
        for _ in range(CLIENTS):
            with suppress(ConnectionResetError):
                client = stack.enter_context(socket.create_connection((host, int(port))))
                client.sendall(b"GET / HTTP/1.1\r\n")
        wait_until(lambda: "stream_dropped" in proxy.log())
        began = time.monotonic()
        assert version(proxy) == "fake"
        assert time.monotonic() - began < 5.0
        client = stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
        client.sendall(f"GET /progress/x HTTP/1.1\r\nHost: {streams}\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 404 ")
    assert "accept_paused" not in proxy.log()
    assert proxy.log().count("\n") < 30
