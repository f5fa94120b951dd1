"""Listing many containers, start-up included, against a minimal program that does the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.harness import Benchmark, Goal, Measured, interleave, milliseconds
from benchmarks.programs import peak_bytes, pycrictl, run, yardstick
from pycrictl._proto import cri_pb2
from tests.fakecri.server import FakeServer, serve

ROUNDS = 15
MIB = 1024 * 1024
NOW_NS = 1_795_209_010_000_000_000


def container(number: int) -> cri_pb2.Container:
    """Return a container like those that kubelet creates."""
    return cri_pb2.Container(
        id=f"{number:064x}",
        pod_sandbox_id=f"{number // 2:064x}",
        metadata=cri_pb2.ContainerMetadata(name=f"app-{number}", attempt=number % 3),
        image=cri_pb2.ImageSpec(image=f"registry.example/team/app-{number % 40}:1.{number}"),
        image_ref=f"sha256:{number % 40:064x}",
        state=cri_pb2.CONTAINER_RUNNING,
        created_at=NOW_NS - number * 10**9,
        labels={
            "io.kubernetes.container.name": f"app-{number}",
            "io.kubernetes.pod.name": f"web-{number // 2}",
            "io.kubernetes.pod.namespace": f"team-{number % 7}",
            "io.kubernetes.pod.uid": f"11111111-aaaa-bbbb-cccc-{number // 2:012d}",
        },
        annotations={
            "io.kubernetes.container.hash": f"{number:08x}",
            "io.kubernetes.container.restartCount": "0",
            "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
            "io.kubernetes.container.terminationMessagePolicy": "File",
            "io.kubernetes.pod.terminationGracePeriod": "30",
        },
    )


@contextmanager
def listing(count: int) -> Iterator[FakeServer]:
    """Serve a runtime with ``count`` containers."""
    listed = cri_pb2.ListContainersResponse(containers=map(container, range(count)))
    with serve() as server:
        server.offer("ListContainers", listed.SerializeToString())
        yield server


def _list(count: int, ours: list[str], bare: list[str]) -> Measured:
    with listing(count) as server:
        program = pycrictl("--runtime-endpoint", server.endpoint, "ps", *ours)
        least = yardstick("bare_containers", server.path, *bare)
        return interleave(lambda: run(program), lambda: run(least), rounds=ROUNDS, warm_up_rounds=2)


def _memory() -> Measured:
    with listing(500) as server:
        command = pycrictl("--runtime-endpoint", server.endpoint, "ps", "--all")
        peak = peak_bytes(command)
    return Measured(peak, MIB, peak / MIB)


BENCHMARKS = (
    Benchmark(
        name="ps",
        text="wall time of 'pycrictl ps -a' of 500 containers / of a bare program printing IDs",
        goal=Goal("<=", 1.15),
        show=milliseconds,
        measure=lambda: _list(500, ["--all"], []),
    ),
    Benchmark(
        name="ps-memory",
        text="peak memory of the same 'pycrictl ps -a', in MiB",
        goal=Goal("<=", 48.0),
        show=lambda size: f"{size / MIB:.1f} MiB",
        measure=_memory,
    ),
    Benchmark(
        name="ps-json",
        text="wall time of 'pycrictl ps -a -o json' of 5,000 / of a bare program with json.dumps",
        goal=Goal("<=", 3.0),
        show=milliseconds,
        measure=lambda: _list(5000, ["--all", "--output", "json"], ["json"]),
    ),
)
