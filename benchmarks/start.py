"""Starts: `ps` beside the imports of its libraries, and the standalone program of `make dist`.

The Debian and RPM packages and the images contain the same program.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import (
    Benchmark,
    CannotRunError,
    Goal,
    Measured,
    SkippedError,
    interleave,
    milliseconds,
)
from benchmarks.lists import listing
from benchmarks.programs import ROOT, pycrictl, run

ROUNDS = 21
CONTAINERS = 5
LIBRARIES = "import typer, grpc, google.protobuf.message; print()"
"""What any program with the same libraries has to load."""

_INSTALL = ("install", "--quiet", "--disable-pip-version-check")


@contextmanager
def _built() -> Iterator[tuple[Path, Path]]:
    """Yield the standalone program, and the one that pip installs from the wheel beside it."""
    pattern = f"*-linux-{platform.machine()}.tar.xz"
    builds = [sorted((ROOT / "dist").glob(name)) for name in (pattern, "*.whl")]
    if not all(builds):
        raise SkippedError("it is not there; 'make dist' builds it")
    if any(len(paths) > 1 for paths in builds):
        raise CannotRunError("dist/ has several builds: remove the old ones")
    (archive,), (wheel,) = builds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv = folder / "venv"
        for command in (
            ["tar", "-C", name, "-xf", str(archive)],
            [sys.executable, "-m", "venv", str(venv)],
            [str(venv / "bin" / "pip"), *_INSTALL, str(wheel)],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise CannotRunError(f"{command[0]}: {done.stderr.strip()[-300:]}")
        yield folder / archive.name.removesuffix(".tar.xz") / "pycrictl", venv / "bin" / "pycrictl"


def _compare(ours: list[str], other: list[str]) -> Measured:
    return interleave(lambda: run(ours), lambda: run(other), rounds=ROUNDS, warm_up_rounds=2)


def _standalone(*words: str) -> Measured:
    with _built() as (program, installed), listing(CONTAINERS) as server:
        more = ("-r", server.endpoint, *words)
        return _compare([str(program), *more], [str(installed), *more])


def _ps() -> Measured:
    with listing(CONTAINERS) as server:
        imports = [sys.executable, "-P", "-c", LIBRARIES]
        return _compare(pycrictl("-r", server.endpoint, "ps"), imports)


BENCHMARKS = (
    Benchmark(
        name="start-ps",
        text="wall time of 'pycrictl ps' of 5 containers / of the imports of its libraries alone",
        goal=Goal("<=", 1.35),
        show=milliseconds,
        measure=_ps,
    ),
    Benchmark(
        name="standalone-ps",
        text="wall time of the same 'ps' of the standalone folder / of the installed program",
        goal=Goal("<=", 1.0),
        show=milliseconds,
        measure=lambda: _standalone("ps"),
    ),
    Benchmark(
        name="standalone-help",
        text="wall time of '--help' of the standalone folder / of the installed program",
        goal=Goal("<=", 1.3),
        show=milliseconds,
        measure=lambda: _standalone("--help"),
    ),
)
