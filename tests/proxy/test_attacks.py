"""What one client can make a whole proxy do: memory, work and log, while another one is served."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.wire import limits
from tests.fakecri import FakeServer, hang
from tests.processes import resident_bytes
from tests.proxy.program import Program
from tests.waiting import settled
from tools.torture import attacks
from tools.torture.attacks import MIB, PATIENCE_S, VERSION, Attacker

Start = Callable[..., Program]

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
    """What happens costs the proxy no more than that, little memory and few lines."""
    lines = proxy.log().count("\n")
    clock = ~proxy.pid << 3 | 2  # as clock_getcpuclockid(3) makes it
    before_s = time.clock_gettime(clock)
    yield
    good_client(proxy)
    assert time.clock_gettime(clock) - before_s < cpu_s
    assert proxy.peak_bytes() < MEMORY_BYTES
    assert proxy.log().count("\n") - lines <= 2 * limits.FAULT_LINES
    assert "Traceback" not in proxy.log()


def good_client(proxy: Program) -> None:
    began = time.monotonic()
    response = proxy.kubelet.call(
        VERSION, cri_pb2.VersionRequest(), cri_pb2.VersionResponse, timeout_s=PATIENCE_S
    )
    assert response.runtime_name == "fake"
    assert time.monotonic() - began < 5.0


def test_headers_in_very_many_frames(proxy: Program, attackers: Callable[[], Attacker]) -> None:
    with bounded(proxy, cpu_s=3.0):
        attacks.continuations(attackers())


def test_calls_that_are_refused_give_their_memory_back(
    proxy: Program, attackers: Callable[[], Attacker]
) -> None:
    before = resident_bytes(proxy.pid)
    with bounded(proxy, cpu_s=10.0):
        for _ in range(12):
            attacker = attackers()
            attacks.header_of_megabytes(attacker)
            attacker.read(wait_s=5.0)
            attacker.close()
        good_client(proxy)
        assert settled(lambda: resident_bytes(proxy.pid) - before < MOST_KEPT_BYTES, limit_s=10)


@pytest.mark.parametrize("size", [16 * MIB - 6, attacks.BODY_BYTES], ids=["16MiB", "4MiB"])
def test_bodies_that_never_end(
    proxy: Program, attackers: Callable[[], Attacker], fake: FakeServer, size: int
) -> None:
    """Who asks for little is served all the same."""
    fake.offer("ImageStatus", cri_pb2.ImageStatusResponse())
    fake.offer("PullImage", cri_pb2.PullImageResponse(image_ref="sha256:1"))
    with bounded(proxy, cpu_s=5.0):
        for _ in range(4):
            attacker = attackers()
            attacks.unending_bodies(attacker, size)
        answer = proxy.kubelet.start_pull("registry.example/app", None).result(PATIENCE_S)
        assert answer.image_ref == "sha256:1"


def test_pulls_that_are_given_up_are_counted(
    proxy: Program, attackers: Callable[[], Attacker], fake: FakeServer
) -> None:
    fake.offer("ImageStatus", cri_pb2.ImageStatusResponse())
    fake.offer("PullImage", hang(PATIENCE_S))
    with bounded(proxy, cpu_s=20.0):
        attacks.pulls_given_up(attackers())
        assert proxy.log().count(" pull image=") <= 2 * limits.FAULT_LINES
