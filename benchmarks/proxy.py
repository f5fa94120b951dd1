"""What ``pycrictl proxy`` costs: calls through it against the same calls without it.

And what its metrics, its history and its Events cost: one proxy with all of them against one
without.
"""

from __future__ import annotations

import re
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import grpc

from benchmarks.harness import Benchmark, Goal, Measured, interleave, wall_s
from benchmarks.programs import cpu_clock
from pycrictl._proto import cri_pb2
from pycrictl.proxy.server import AGE_S
from tests.kube.apiserver import make_node_certificates, serve, write_kubeconfig
from tests.node.kubelet import RUNTIME
from tests.node.lab import Lab
from tests.processes import resident_bytes
from tests.proxy.program import OPTIONS, Program

LIST = RUNTIME + "ListContainers"

LATENCY_ROUNDS = 9
LATENCY_CALLS = 300
FIGURES_ROUNDS = 15
IDLE_S = 8.0
MEMORY_ROUNDS = 3
MEMORY_CALLS = 1000
MEMORY_PULLS = 100
SCRAPES = 10
SETTLE_S = 2.0
MIB = 1024 * 1024
TIMEOUT_S = 30.0

Call = Callable[[], object]


def _compare(measure: Callable[[Call], float], rounds: int) -> Measured:
    """ListContainers of a real containerd with a few containers."""
    with (
        _node() as lab,
        Program(
            lab.folder, lab.node.endpoint, "--max-parallel-image-pulls", "2", age_s=AGE_S
        ) as proxy,
        grpc.insecure_channel(lab.node.endpoint, options=OPTIONS) as direct,
    ):
        calls = [_list_call(channel) for channel in (proxy.channel, direct)]
        return interleave(lambda: measure(calls[0]), lambda: measure(calls[1]), rounds=rounds)


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


@contextmanager
def _pair(lab: Lab) -> Iterator[tuple[Program, Program]]:
    """A proxy with metrics, history and Events, and one with none of them, on the same node."""
    with tempfile.TemporaryDirectory(prefix="px-") as name:
        folder = Path(name)
        certificates = make_node_certificates(folder)
        with serve(certificates) as api:
            kubeconfig = str(write_kubeconfig(api.kubeconfig(), folder))
            on = ("--metrics-listen", "127.0.0.1:0", "--events", kubeconfig)
            off = ("--state-dir", "")
            (folder / "a").mkdir()
            (folder / "b").mkdir()
            with (
                Program(folder / "a", lab.node.endpoint, *on, age_s=AGE_S) as rich,
                Program(folder / "b", lab.node.endpoint, *off, age_s=AGE_S) as plain,
            ):
                time.sleep(SETTLE_S)
                yield rich, plain


def _figures(measure: Callable[[Call], float], rounds: int) -> Measured:
    with _node() as lab, _pair(lab) as proxies:
        for proxy in proxies:
            _use(lab, proxy)
        rich, plain = (_list_call(proxy.channel) for proxy in proxies)
        return interleave(lambda: measure(rich), lambda: measure(plain), rounds=rounds)


def _memory() -> Measured:
    """Resident bytes after the same calls and pulls, and scrapes of the metrics."""
    found: list[list[int]] = []
    with _node() as lab:
        for _ in range(MEMORY_ROUNDS):
            with _pair(lab) as proxies:
                for proxy in proxies:
                    _use(lab, proxy)
                _scrape(proxies[0])
                time.sleep(SETTLE_S)
                found.append([resident_bytes(proxy.pid) for proxy in proxies])
    rich, plain = (median(values) for values in zip(*found, strict=True))
    return Measured(rich, plain, median(one / other for one, other in found))


def _use(lab: Lab, proxy: Program) -> None:
    """Give it the work that fills what it counts and remembers."""
    call = _list_call(proxy.channel)
    for _ in range(MEMORY_CALLS):
        call()
    pod = lab.node.kubelet.run_pod(f"use-{proxy.pid}")
    for _ in range(MEMORY_PULLS):
        proxy.kubelet.pull(lab.reference(lab.busybox), pod)


def _scrape(proxy: Program) -> None:
    where = re.search(r" metrics listen=(\S+)", proxy.log())
    assert where is not None
    for _ in range(SCRAPES):
        with urllib.request.urlopen(f"http://{where[1]}/metrics", timeout=TIMEOUT_S) as answer:
            answer.read()


def _list_call(channel: grpc.Channel) -> Call:
    method: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(LIST)
    request = cri_pb2.ListContainersRequest().SerializeToString()
    return lambda: method(request, timeout=TIMEOUT_S)


def _median_s(call: Call) -> float:
    return median(wall_s(call) for _ in range(LATENCY_CALLS))


def _cpu() -> Measured:
    """CPU milliseconds of the proxy for a call."""
    with _node() as lab, Program(lab.folder, lab.node.endpoint, age_s=AGE_S) as proxy:
        call = _list_call(proxy.channel)
        for _ in range(LATENCY_CALLS):
            call()
        clock = cpu_clock(proxy.pid)
        before_s = time.clock_gettime(clock)
        for _ in range(MEMORY_CALLS):
            call()
        cpu_s = time.clock_gettime(clock) - before_s
    return Measured(cpu_s, MEMORY_CALLS, 1000 * cpu_s / MEMORY_CALLS)


def _resident() -> Measured:
    """Resident MiB of a proxy after calls, pulls and somebody who watched."""
    with _node() as lab, Program(lab.folder, lab.node.endpoint, age_s=AGE_S) as proxy:
        _use(lab, proxy)
        time.sleep(SETTLE_S)
        used_bytes = resident_bytes(proxy.pid)
    return Measured(used_bytes, MIB, used_bytes / MIB)


def _idle() -> Measured:
    """CPU seconds and wall seconds of a proxy that has a client which asks for nothing."""
    with Lab() as lab, Program(lab.folder, lab.node.endpoint, age_s=AGE_S) as proxy:
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
        name="proxy-cpu",
        what="CPU time of the proxy for a ListContainers, in ms",
        goal=Goal("<=", 0.7),
        show=lambda count: f"{count:g}",
        measure=_cpu,
    ),
    Benchmark(
        name="proxy-memory",
        what="memory of a proxy that has been used, in MiB",
        goal=Goal("<=", 72.0),
        show=lambda count: f"{count / MIB:.1f} MiB",
        measure=_resident,
    ),
    Benchmark(
        name="figures-p50",
        what="median time of ListContainers with metrics, history and Events / without",
        goal=Goal("<=", 1.05),
        show=_milliseconds,
        measure=lambda: _figures(_median_s, FIGURES_ROUNDS),
    ),
    Benchmark(
        name="figures-memory",
        what=f"memory after {MEMORY_CALLS} calls and {MEMORY_PULLS} pulls with the same / without",
        goal=Goal("<=", 1.05),
        show=lambda count: f"{count / MIB:.1f} MiB",
        measure=_memory,
    ),
    Benchmark(
        name="proxy-idle",
        what="CPU time of an idle proxy in percent of the wall time",
        goal=Goal("<=", 0.3),
        show=lambda seconds: f"{seconds:.3f} s",
        measure=_idle,
    ),
)
