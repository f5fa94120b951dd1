"""A proxy with few file descriptors, and more clients than these are enough for."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.cri.calls.client import CriClient
from pycrictl.errors import PycrictlError
from pycrictl.proxy import admin
from tests.fakecri.server import FakeServer
from tests.proxy.program import Program
from tests.proxy.test_app import version
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


def test_who_is_connected_is_served_while_others_are_turned_away(proxy: Program) -> None:
    """Descriptors are left for what clients ask for, and when there is room, others are served."""
    assert version(proxy) == "fake"
    for _ in range(2):
        with crowd(proxy):
            time.sleep(0.3)
            assert len(list(Path(f"/proc/{proxy.pid}/fd").iterdir())) < DESCRIPTORS - 8
            assert admin.ask(str(proxy.admin_path), "sockets", timeout_s=20)
            for _ in range(20):
                assert version(proxy) == "fake"
        wait_until(lambda: others_are_served(proxy))
    assert all(line.startswith("level=") for line in proxy.log().splitlines())
    assert proxy.log().count("\n") < 20


def others_are_served(proxy: Program) -> bool:
    with suppress(PycrictlError), CriClient(str(proxy.socket_path), timeout_s=5) as client:
        return bool(client.call("Version", cri_pb2.VersionRequest()).runtime_name == "fake")
    return False


def test_half_requests_leave_descriptors_to_the_others(proxy: Program) -> None:
    host, _, port = proxy.streams.rpartition(":")
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
        client.sendall(f"GET /progress/x HTTP/1.1\r\nHost: {proxy.streams}\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 404 ")
    assert "accept_paused" not in proxy.log()
    assert proxy.log().count("\n") < 30
