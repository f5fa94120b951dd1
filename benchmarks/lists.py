"""Listing and inspecting many containers, against the least programs that do as much."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import Benchmark, CannotRunError, Goal, Measured, interleave
from benchmarks.programs import ROOT, pycrictl, run, yardstick

ROUNDS = 15
INSPECTED = 100


@contextmanager
def _server(count: int) -> Iterator[Path]:
    """A server of containers in a process of its own; its socket."""
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder, "cri.sock")
        command = [sys.executable, "-m", "benchmarks.container_server", str(socket), str(count)]
        with subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as server:
            assert server.stdout is not None
            if server.stdout.readline() != b"ready\n":
                raise CannotRunError("the server of containers did not start")
            yield socket
            # Leaving the block closes its standard input, which ends it.


def _list(count: int, ours: list[str], bare: list[str]) -> Measured:
    with _server(count) as socket:
        program = pycrictl("--runtime-endpoint", f"unix://{socket}", "ps", *ours)
        least = yardstick("bare_containers", str(socket), *bare)
        return interleave(lambda: run(program), lambda: run(least), rounds=ROUNDS, warm_up_rounds=2)


def _inspect() -> Measured:
    with _server(INSPECTED) as socket:
        program = pycrictl("--runtime-endpoint", f"unix://{socket}", "inspect")
        ids = [f"{number:064x}" for number in range(INSPECTED)]
        return interleave(
            lambda: run([*program, *ids]),
            lambda: run([*program, ids[0]]),
            rounds=ROUNDS,
            warm_up_rounds=2,
        )


def _show(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


BENCHMARKS = (
    Benchmark(
        name="ps",
        what="wall time of 'pycrictl ps -a' of 500 containers / of a bare program printing IDs",
        goal=Goal("<=", 1.6),
        show=_show,
        measure=lambda: _list(500, ["--all"], []),
    ),
    Benchmark(
        name="ps-json",
        what="wall time of 'pycrictl ps -a -o json' of 5,000 / of a bare program with json.dumps",
        goal=Goal("<=", 3.0),
        show=_show,
        measure=lambda: _list(5000, ["--all", "--output", "json"], ["json"]),
    ),
    Benchmark(
        name="inspect",
        what="wall time of 'pycrictl inspect' of 100 containers / of one",
        goal=Goal("<=", 3.0),
        show=_show,
        measure=_inspect,
    ),
)
