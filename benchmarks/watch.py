"""What watching costs: CPU time of ``image-pull-progress`` during a pull of many layers."""

from __future__ import annotations

from benchmarks.harness import Benchmark, CannotRunError, Goal, Measured
from benchmarks.programs import pycrictl, run_in_terminal
from tests.node.lab import MIB, Lab

LAYERS = 40
PULL_S = 24
TIMEOUT_S = 120


def _watch() -> Measured:
    """CPU seconds and wall seconds of the watcher, both without its start."""
    with Lab() as lab:
        layers = lab.layout.random_layers([MIB] * LAYERS, seed=1)
        image = lab.layout.image("forty:1", layers)
        reference = lab.push(image)
        lab.throttle.limit(image.layers_bytes / PULL_S)
        pull = lab.node.kubelet.start_pull(reference)
        try:
            command = ("image-pull-progress", "--progress", "bar")
            watcher = run_in_terminal(
                pycrictl("--runtime-endpoint", lab.node.endpoint, *command), timeout_s=TIMEOUT_S
            )
            pull.result(timeout=TIMEOUT_S)
        finally:
            pull.cancel()
    if watcher.wall_s < PULL_S / 2:
        raise CannotRunError("the watcher ended long before the pull")
    cpu_s = watcher.cpu_s - watcher.start_cpu_s
    wall_s = watcher.wall_s - watcher.start_wall_s
    return Measured(cpu_s, wall_s, cpu_s / wall_s)


BENCHMARKS = (
    Benchmark(
        name="watch",
        what=f"CPU time of watching a pull of {LAYERS} layers in a terminal / its wall time",
        goal=Goal("<=", 0.04),
        show=lambda seconds: f"{seconds:.2f} s",
        measure=_watch,
    ),
)
