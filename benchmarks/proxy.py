"""Cost of ``pycrictl proxy``: calls through it against the same calls without it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import grpc

from benchmarks.harness import Benchmark, CannotRunError, Goal, Measured, interleave, wall_s
from benchmarks.programs import cpu_clock, yardstick
from pycrictl._proto import cri_pb2
from pycrictl.proxy.server import AGE_S
from tests.e2e.node.kubelet import RUNTIME
from tests.e2e.node.lab import Lab
from tests.processes import resident_bytes
from tests.proxy.program import OPTIONS, Program

LIST = RUNTIME + "ListContainers"

LATENCY_ROUNDS = 9
LATENCY_CALLS = 300
IDLE_S = 8.0
MEMORY_CALLS = 1000
MEMORY_PULLS = 100
SETTLE_S = 2.0
MIB = 1024 * 1024
TIMEOUT_S = 30.0

Call = Callable[[], object]


def _latency() -> Measured:
    with (
        _node() as lab,
        _proxy(lab, "--max-parallel-image-pulls", "2") as proxy,
        _forwarder(lab) as bare,
    ):
        calls = [_list_call(channel) for channel in (proxy.channel, bare)]
        return interleave(
            lambda: _median_s(calls[0]), lambda: _median_s(calls[1]), rounds=LATENCY_ROUNDS
        )


@contextmanager
def _forwarder(lab: Lab) -> Iterator[grpc.Channel]:
    socket = lab.folder / "bare.sock"
    runtime = lab.node.endpoint.removeprefix("unix://")
    command = yardstick("bare_forwarder", runtime, str(socket))
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as process,
        grpc.insecure_channel(f"unix://{socket}", options=OPTIONS) as channel,
    ):
        assert process.stdout is not None
        try:
            if not process.stdout.readline():
                raise CannotRunError("the bare forwarder did not start")
            yield channel
        finally:
            process.terminate()


def _proxy(lab: Lab, *flags: str) -> Program:
    return Program(lab.folder, lab.node.endpoint, *flags, age_s=AGE_S)


@contextmanager
def _node() -> Iterator[Lab]:
    with Lab() as lab:
        pod = lab.node.kubelet.run_pod("web")
        lab.node.kubelet.pull(lab.reference(lab.busybox))
        for number in range(5):
            lab.node.kubelet.create_container(
                pod, lab.reference(lab.busybox), name=f"container-{number}"
            )
        yield lab


def _use(lab: Lab, proxy: Program) -> None:
    """Make calls and pulls, which fill the proxy's counters and records."""
    call = _list_call(proxy.channel)
    for _ in range(MEMORY_CALLS):
        call()
    pod = lab.node.kubelet.run_pod(f"use-{proxy.pid}")
    for _ in range(MEMORY_PULLS):
        proxy.kubelet.pull(lab.reference(lab.busybox), pod)


def _list_call(channel: grpc.Channel) -> Call:
    method: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(LIST)
    request = cri_pb2.ListContainersRequest().SerializeToString()
    return lambda: method(request, timeout=TIMEOUT_S)


def _median_s(call: Call) -> float:
    return median(wall_s(call) for _ in range(LATENCY_CALLS))


def _cpu() -> Measured:
    with _node() as lab, _proxy(lab) as proxy:
        call = _list_call(proxy.channel)
        for _ in range(LATENCY_CALLS):
            call()
        with _cpu_time(proxy) as spent_s:
            for _ in range(MEMORY_CALLS):
                call()
    return Measured(spent_s[0], MEMORY_CALLS, 1000 * spent_s[0] / MEMORY_CALLS)


def _resident() -> Measured:
    with _node() as lab, _proxy(lab) as proxy:
        _use(lab, proxy)
        time.sleep(SETTLE_S)
        used_bytes = resident_bytes(proxy.pid)
    return Measured(used_bytes, MIB, used_bytes / MIB)


def _idle() -> Measured:
    with Lab() as lab, _proxy(lab) as proxy:
        _list_call(proxy.channel)()
        time.sleep(1.0)
        with _cpu_time(proxy) as spent_s:
            time.sleep(IDLE_S)
    return Measured(spent_s[0], IDLE_S, 100 * spent_s[0] / IDLE_S)


@contextmanager
def _cpu_time(proxy: Program) -> Iterator[list[float]]:
    """Yield a list that receives the proxy's CPU time during the block, in seconds."""
    spent_s: list[float] = []
    clock = cpu_clock(proxy.pid)
    before_s = time.clock_gettime(clock)
    yield spent_s
    spent_s.append(time.clock_gettime(clock) - before_s)


BENCHMARKS = (
    Benchmark(
        name="proxy-p50",
        text="median time of ListContainers through the proxy / through a forwarder of gRPC alone",
        goal=Goal("<=", 1.15),
        show=lambda seconds: f"{seconds * 1000:.2f} ms",
        measure=_latency,
    ),
    Benchmark(
        name="proxy-cpu",
        text="CPU time of the proxy for a ListContainers, in ms",
        goal=Goal("<=", 0.7),
        show=lambda count: f"{count:g}",
        measure=_cpu,
    ),
    Benchmark(
        name="proxy-memory",
        text="memory of a proxy that has been used, in MiB",
        goal=Goal("<=", 72.0),
        show=lambda count: f"{count / MIB:.1f} MiB",
        measure=_resident,
    ),
    Benchmark(
        name="proxy-idle",
        text="CPU time of an idle proxy in percent of the wall time",
        goal=Goal("<=", 0.3),
        show=lambda seconds: f"{seconds:.3f} s",
        measure=_idle,
    ),
)
