"""The standalone program against the installed one: how long ``--help`` takes."""

from __future__ import annotations

import platform
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import Benchmark, CannotRunError, Goal, Measured, interleave, milliseconds
from benchmarks.programs import ROOT, run

ROUNDS = 21
_INSTALL = ("install", "--quiet", "--disable-pip-version-check")


@contextmanager
def _programs() -> Iterator[tuple[Path, Path]]:
    """The program of the standalone folder, and one that pip has installed from the wheel."""
    archives = sorted((ROOT / "dist").glob(f"*-linux-{platform.machine()}.tar.gz"))
    wheels = sorted((ROOT / "dist").glob("*.whl"))
    if len(archives) != 1 or len(wheels) != 1:
        raise CannotRunError("the standalone program is missing: run 'make dist'")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with tarfile.open(archives[0]) as archive:
            archive.extractall(folder, filter="data")
        venv = folder / "venv"
        for command in (
            [sys.executable, "-m", "venv", str(venv)],
            [str(venv / "bin" / "pip"), *_INSTALL, str(wheels[0])],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise CannotRunError(f"pip: {done.stderr.strip()[-300:]}")
        name = archives[0].name.removesuffix(".tar.gz")
        yield folder / name / "pycrictl", venv / "bin" / "pycrictl"


def _measure() -> Measured:
    with _programs() as (standalone, installed):
        return interleave(
            lambda: run([str(standalone), "--help"]),
            lambda: run([str(installed), "--help"]),
            rounds=ROUNDS,
            warm_up_rounds=2,
        )


BENCHMARKS = (
    Benchmark(
        name="standalone-help",
        what="wall time of '--help' of the standalone folder / of the installed program",
        goal=Goal("<=", 1.3),
        show=milliseconds,
        measure=_measure,
    ),
)
