"""Process starts: ``pycrictl images`` against the least program with that call."""

from __future__ import annotations

from benchmarks.harness import Benchmark, Goal, Measured, interleave, milliseconds
from benchmarks.programs import pycrictl, run, server, yardstick

ROUNDS = 21


def _compare(*arguments: str) -> Measured:
    with server("image_server") as socket:
        ours = pycrictl("--runtime-endpoint", f"unix://{socket}", *arguments)
        bare = yardstick("bare_images", str(socket))
        return interleave(lambda: run(ours), lambda: run(bare), rounds=ROUNDS, warm_up_rounds=2)


BENCHMARKS = (
    Benchmark(
        name="images",
        what="wall time of 'pycrictl images' / of a bare program that makes the same call",
        goal=Goal("<=", 1.15),
        show=milliseconds,
        measure=lambda: _compare("images"),
    ),
)
