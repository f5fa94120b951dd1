"""What ``pycrictl proxy`` costs: calls through it against the same calls without it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import grpc

from benchmarks.harness import Benchmark, CannotRunError, Goal, Measured, interleave, wall_s
from benchmarks.programs import cpu_clock, server
from benchmarks.stream_server import CONTAINERS
from pycrictl._proto import cri_pb2
from tests.node.kubelet import RUNTIME
from tests.node.lab import Lab
from tests.proxy.program import OPTIONS, Program

LIST = RUNTIME + "ListContainers"
STREAM = RUNTIME + "StreamContainers"

LATENCY_ROUNDS = 9
LATENCY_CALLS = 300
THREADS = 16
CALLS_PER_THREAD = 60
THROUGHPUT_ROUNDS = 7
STREAM_ROUNDS = 9
IDLE_S = 8.0
TIMEOUT_S = 30.0

Call = Callable[[], object]


def _compare(measure: Callable[[Call], float], rounds: int) -> Measured:
    """ListContainers of a real containerd with a few containers."""
    with Lab() as lab:
        pod = lab.node.kubelet.run_pod("web")
        lab.node.kubelet.pull(lab.reference(lab.busybox))
        for number in range(5):
            lab.node.kubelet.create_container(
                pod, lab.reference(lab.busybox), name=f"container-{number}"
            )
        with (
            Program(lab.folder, lab.node.endpoint, "--max-parallel-image-pulls", "2") as proxy,
            grpc.insecure_channel(lab.node.endpoint, options=OPTIONS) as direct,
        ):
            calls = [_list_call(channel) for channel in (proxy.channel, direct)]
            return interleave(lambda: measure(calls[0]), lambda: measure(calls[1]), rounds=rounds)


def _list_call(channel: grpc.Channel) -> Call:
    method: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(LIST)
    request = cri_pb2.ListContainersRequest().SerializeToString()
    return lambda: method(request, timeout=TIMEOUT_S)


def _median_s(call: Call) -> float:
    return median(wall_s(call) for _ in range(LATENCY_CALLS))


def _calls_per_s(call: Call) -> float:
    def many(_: int) -> None:
        for _ in range(CALLS_PER_THREAD):
            call()

    with ThreadPoolExecutor(THREADS) as threads:
        took_s = wall_s(lambda: list(threads.map(many, range(THREADS))))
    return THREADS * CALLS_PER_THREAD / took_s


def _stream() -> Measured:
    with (
        server("stream_server") as upstream,
        tempfile.TemporaryDirectory(prefix="px-") as folder,
        Program(Path(folder), f"unix://{upstream}") as proxy,
        grpc.insecure_channel(f"unix://{upstream}", options=OPTIONS) as direct,
    ):
        return interleave(
            lambda: _stream_s(proxy.channel), lambda: _stream_s(direct), rounds=STREAM_ROUNDS
        )


def _stream_s(channel: grpc.Channel) -> float:
    method: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(STREAM)
    start = time.perf_counter()
    if sum(1 for _ in method(b"", timeout=TIMEOUT_S)) != CONTAINERS:
        raise CannotRunError("the list is not complete")
    return time.perf_counter() - start


def _idle() -> Measured:
    """CPU seconds and wall seconds of a proxy that has a client which asks for nothing."""
    with Lab() as lab, Program(lab.folder, lab.node.endpoint) as proxy:
        _list_call(proxy.channel)()
        time.sleep(1.0)
        clock = cpu_clock(proxy.pid)
        before_s = time.clock_gettime(clock)
        time.sleep(IDLE_S)
        cpu_s = time.clock_gettime(clock) - before_s
    return Measured(cpu_s, IDLE_S, 100 * cpu_s / IDLE_S)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"


BENCHMARKS = (
    Benchmark(
        name="proxy-p50",
        what="median time of ListContainers through the proxy / directly",
        goal=Goal("<=", 3.0),
        show=_milliseconds,
        measure=lambda: _compare(_median_s, LATENCY_ROUNDS),
    ),
    Benchmark(
        name="proxy-many",
        what=f"ListContainers a second by {THREADS} threads through the proxy / directly",
        goal=Goal(">=", 0.3),
        show=lambda rate: f"{rate:.0f}/s",
        measure=lambda: _compare(_calls_per_s, THROUGHPUT_ROUNDS),
    ),
    Benchmark(
        name="proxy-stream",
        what=f"time of a streamed list of {CONTAINERS} containers through the proxy / directly",
        goal=Goal("<=", 2.5),
        show=_milliseconds,
        measure=_stream,
    ),
    Benchmark(
        name="proxy-idle",
        what="CPU time of an idle proxy in percent of the wall time",
        goal=Goal("<=", 0.3),
        show=lambda seconds: f"{seconds:.3f} s",
        measure=_idle,
    ),
)
