"""Listing many containers, start included, against the least program that does as much."""

from __future__ import annotations

from benchmarks.harness import Benchmark, Goal, Measured, interleave, milliseconds
from benchmarks.programs import peak_bytes, pycrictl, run, server, yardstick

ROUNDS = 15
MIB = 1024 * 1024


def _list(count: int, ours: list[str], bare: list[str]) -> Measured:
    with server("container_server", str(count)) as socket:
        program = pycrictl("--runtime-endpoint", f"unix://{socket}", "ps", *ours)
        least = yardstick("bare_containers", str(socket), *bare)
        return interleave(lambda: run(program), lambda: run(least), rounds=ROUNDS, warm_up_rounds=2)


def _memory() -> Measured:
    with server("container_server", "500") as socket:
        command = pycrictl("--runtime-endpoint", f"unix://{socket}", "ps", "--all")
        peak = peak_bytes(command)
    return Measured(peak, MIB, peak / MIB)


BENCHMARKS = (
    Benchmark(
        name="ps",
        what="wall time of 'pycrictl ps -a' of 500 containers / of a bare program printing IDs",
        goal=Goal("<=", 1.15),
        show=milliseconds,
        measure=lambda: _list(500, ["--all"], []),
    ),
    Benchmark(
        name="ps-memory",
        what="peak memory of the same 'pycrictl ps -a', in MiB",
        goal=Goal("<=", 48.0),
        show=lambda size: f"{size / MIB:.1f} MiB",
        measure=_memory,
    ),
    Benchmark(
        name="ps-json",
        what="wall time of 'pycrictl ps -a -o json' of 5,000 / of a bare program with json.dumps",
        goal=Goal("<=", 3.0),
        show=milliseconds,
        measure=lambda: _list(5000, ["--all", "--output", "json"], ["json"]),
    ),
)
