"""The memory, work and log lines that a client can cause, while another one is served."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.base import limits
from pycrictl.base.errors import PycrictlError
from pycrictl.proxy import admin
from pycrictl.proxy.server import AGE_S
from pycrictl.runtime.cri.calls.client import CriClient
from tests.fakecri import FakeServer, hang
from tests.processes import resident_bytes
from tests.proxy.program import Program
from tests.support.limited_pulls import version
from tests.waiting import settled, wait_until
from tools.torture import attacks
from tools.torture.attacks import MIB, PATIENCE_S, Attacker

Start = Callable[..., Program]

DESCRIPTORS = 64
CLIENTS = 200

MEMORY_BYTES = 192 * MIB
MOST_KEPT_BYTES = 32 * MIB


@pytest.fixture
def proxy(fake: FakeServer, start: Start) -> Program:
    fake.offer("Version", cri_pb2.VersionResponse(runtime_name="fake"))
    return start("--max-parallel-image-pulls", "1")


@pytest.fixture
def attackers(proxy: Program) -> Iterator[Callable[[], Attacker]]:
    made = []

    def make() -> Attacker:
        made.append(Attacker(str(proxy.socket_path)))
        return made[-1]

    yield make
    for attacker in made:
        attacker.close()


@contextmanager
def bounded(proxy: Program, *, cpu_s: float) -> Iterator[None]:
    """Check that the block costs the proxy less than ``cpu_s``, little memory and few log lines."""
    lines = proxy.log().count("\n")
    clock = ~proxy.pid << 3 | 2  # as clock_getcpuclockid(3) computes it
    before_s = time.clock_gettime(clock)
    yield
    good_client(proxy)
    assert time.clock_gettime(clock) - before_s < cpu_s
    assert proxy.peak_bytes() < MEMORY_BYTES
    assert proxy.log().count("\n") - lines <= 2 * limits.FAULT_LINES
    assert "Traceback" not in proxy.log()


def good_client(proxy: Program) -> None:
    began = time.monotonic()
    assert version(proxy) == "fake"
    assert time.monotonic() - began < PATIENCE_S


def test_headers_in_very_many_frames(proxy: Program, attackers: Callable[[], Attacker]) -> None:
    with bounded(proxy, cpu_s=3.0):
        attacks.continuations(attackers())


@pytest.mark.slow
def test_calls_that_are_refused_give_their_memory_back(
    proxy: Program, attackers: Callable[[], Attacker]
) -> None:
    before = resident_bytes(proxy.pid)

    def has_shrunk() -> bool:
        good_client(proxy)  # calls go on, as those of a kubelet: each has the memory checked
        return resident_bytes(proxy.pid) - before < MOST_KEPT_BYTES

    with bounded(proxy, cpu_s=10.0):
        for _ in range(12):
            attacker = attackers()
            attacks.header_of_megabytes(attacker)
            attacker.read(wait_s=5.0)
            attacker.close()
        assert settled(has_shrunk)


@pytest.mark.slow
@pytest.mark.parametrize("size", [16 * MIB - 6, attacks.BODY_BYTES], ids=["16MiB", "4MiB"])
def test_bodies_that_never_end(
    proxy: Program, attackers: Callable[[], Attacker], fake: FakeServer, size: int
) -> None:
    """A client with a small request is still served."""
    fake.offer("ImageStatus", cri_pb2.ImageStatusResponse())
    fake.offer("PullImage", cri_pb2.PullImageResponse(image_ref="sha256:1"))
    with bounded(proxy, cpu_s=5.0):
        for _ in range(4):
            attacker = attackers()
            attacks.unending_bodies(attacker, size)
        answer = proxy.kubelet.start_pull("registry.example/app", None).result(PATIENCE_S)
        assert answer.image_ref == "sha256:1"


@pytest.mark.slow
def test_pulls_that_are_given_up_are_counted(
    proxy: Program, attackers: Callable[[], Attacker], fake: FakeServer
) -> None:
    fake.offer("ImageStatus", cri_pb2.ImageStatusResponse())
    fake.offer("PullImage", hang(PATIENCE_S))
    with bounded(proxy, cpu_s=20.0):
        attacks.pulls_given_up(attackers())
        assert proxy.log().count(" pull image=") <= 2 * limits.FAULT_LINES


# More clients than file descriptors


@pytest.fixture
def few(fake: FakeServer, start: Start) -> Program:
    """A proxy with few file descriptors; its clients stay connected for the whole test."""
    fake.offer("Version", cri_pb2.VersionResponse(runtime_name="fake"))
    return start(descriptors=DESCRIPTORS, age_s=AGE_S)


@contextmanager
def crowd(few: Program) -> Iterator[None]:
    """Connect more clients than the proxy can accept; they send nothing."""
    with ExitStack() as stack:
        for _ in range(CLIENTS):
            client = stack.enter_context(closing(socket.socket(socket.AF_UNIX)))
            client.connect(str(few.socket_path))
        yield


def test_who_is_connected_is_served_while_others_are_turned_away(few: Program) -> None:
    """Some descriptors stay free for requested work; once the crowd leaves, others are served."""
    assert version(few) == "fake"
    for _ in range(2):
        with crowd(few):
            time.sleep(0.3)
            assert len(list(Path(f"/proc/{few.pid}/fd").iterdir())) < DESCRIPTORS - 8
            assert admin.ask(str(few.admin_path), "sockets", timeout_s=20)
            for _ in range(20):
                assert version(few) == "fake"
        wait_until(lambda: others_are_served(few))
    assert all(line.startswith("level=") for line in few.log().splitlines())
    assert few.log().count("\n") < 20


def others_are_served(few: Program) -> bool:
    with suppress(PycrictlError), CriClient(str(few.socket_path), timeout_s=5) as client:
        return bool(client.call("Version", cri_pb2.VersionRequest()).runtime_name == "fake")
    return False


def test_half_requests_leave_descriptors_to_the_others(few: Program) -> None:
    host, _, port = few.streams.rpartition(":")
    with ExitStack() as stack:
        for _ in range(CLIENTS):
            with suppress(ConnectionResetError):
                client = stack.enter_context(socket.create_connection((host, int(port))))
                client.sendall(b"GET / HTTP/1.1\r\n")
        wait_until(lambda: "stream_dropped" in few.log())
        good_client(few)
        client = stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
        client.sendall(f"GET /progress/x HTTP/1.1\r\nHost: {few.streams}\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 404 ")
    assert "accept_paused" not in few.log()
    assert few.log().count("\n") < 30
