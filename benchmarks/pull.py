"""``pycrictl pull`` with bars, start-up included, against the bare call."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.harness import (
    Benchmark,
    CannotRunError,
    Goal,
    Measured,
    interleave,
    wall_s,
)
from benchmarks.programs import pycrictl, run_in_terminal
from tests.e2e.node.lab import MIB, Lab

LAYER_SIZES_BYTES = tuple(size * MIB for size in (16, 12, 10, 10, 8, 8))
BYTES_PER_S = 2.5 * MIB
ROUNDS = 3
TIMEOUT_S = 120


def _pull() -> Measured:
    with Lab() as lab:
        image = lab.layout.image("six:1", lab.layout.random_layers(LAYER_SIZES_BYTES, seed=1))
        reference = lab.push(image)
        lab.registry.limit(BYTES_PER_S)
        command = pycrictl(
            "--runtime-endpoint", lab.node.endpoint, "pull", "--progress", "bar", reference
        )

        def from_scratch(pull: Callable[[], float]) -> float:
            lab.node.kubelet.remove_image(reference)
            lab.node.store.collect_garbage()
            sent_bytes = lab.registry.sent_bytes
            figure = pull()
            if lab.registry.sent_bytes - sent_bytes < image.layers_bytes:
                raise CannotRunError("the image was not pulled as a whole")
            return figure

        def ours() -> float:
            return run_in_terminal(command, timeout_s=TIMEOUT_S)

        def bare() -> float:
            return wall_s(lambda: lab.node.kubelet.pull(reference, timeout_s=TIMEOUT_S))

        return interleave(
            lambda: from_scratch(ours),
            lambda: from_scratch(bare),
            rounds=ROUNDS,
            warm_up_rounds=0,
        )


BENCHMARKS = (
    Benchmark(
        name="pull",
        text="wall time of 'pycrictl pull' with bars / of the bare call",
        goal=Goal("<=", 1.03),
        show=lambda seconds: f"{seconds:.2f} s",
        measure=_pull,
    ),
)
