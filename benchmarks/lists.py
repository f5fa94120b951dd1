"""Listing and inspecting many containers, against the least programs that do as much."""

from __future__ import annotations

from benchmarks.harness import Benchmark, Goal, Measured, interleave, milliseconds
from benchmarks.programs import pycrictl, run, server, yardstick

ROUNDS = 15
INSPECTED = 100
TEMPLATE = '{range .items[*]}{.id}{"\\n"}{end}'


def _list(count: int, ours: list[str], bare: list[str]) -> Measured:
    with server("container_server", str(count)) as socket:
        program = pycrictl("--runtime-endpoint", f"unix://{socket}", "ps", *ours)
        least = yardstick("bare_containers", str(socket), *bare)
        return interleave(lambda: run(program), lambda: run(least), rounds=ROUNDS, warm_up_rounds=2)


def _complete() -> Measured:
    with server("container_server", "500") as socket:
        words = ("__complete", "--runtime-endpoint", f"unix://{socket}", "inspect", "")
        # On a busy machine it may take longer than its limit, and would then print nothing.
        program = ["env", "PYCRICTL_COMPLETION_TIMEOUT=10s", *pycrictl(*words)]
        least = yardstick("bare_containers", str(socket))
        return interleave(lambda: run(program), lambda: run(least), rounds=ROUNDS, warm_up_rounds=2)


def _inspect() -> Measured:
    with server("container_server", str(INSPECTED)) as socket:
        program = pycrictl("--runtime-endpoint", f"unix://{socket}", "inspect")
        ids = [f"{number:064x}" for number in range(INSPECTED)]
        return interleave(
            lambda: run([*program, *ids]),
            lambda: run([*program, ids[0]]),
            rounds=ROUNDS,
            warm_up_rounds=2,
        )


BENCHMARKS = (
    Benchmark(
        name="ps",
        what="wall time of 'pycrictl ps -a' of 500 containers / of a bare program printing IDs",
        goal=Goal("<=", 1.15),
        show=milliseconds,
        measure=lambda: _list(500, ["--all"], []),
    ),
    Benchmark(
        name="complete-id",
        what="wall time of the completion of a container's ID, of 500 / of the same bare program",
        goal=Goal("<=", 1.15),
        show=milliseconds,
        measure=_complete,
    ),
    Benchmark(
        name="ps-jsonpath",
        what="wall time of 'pycrictl ps -a -o jsonpath=…' of 500 / of a bare program printing IDs",
        goal=Goal("<=", 1.6),
        show=milliseconds,
        measure=lambda: _list(500, ["--all", "--output", f"jsonpath={TEMPLATE}"], []),
    ),
    Benchmark(
        name="ps-json",
        what="wall time of 'pycrictl ps -a -o json' of 5,000 / of a bare program with json.dumps",
        goal=Goal("<=", 3.0),
        show=milliseconds,
        measure=lambda: _list(5000, ["--all", "--output", "json"], ["json"]),
    ),
    Benchmark(
        name="inspect",
        what="wall time of 'pycrictl inspect' of 100 containers / of one",
        goal=Goal("<=", 3.3),
        show=milliseconds,
        measure=_inspect,
    ),
)
