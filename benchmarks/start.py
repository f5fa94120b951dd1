"""``--help`` of the standalone program that `make dist` builds, against the installed one.

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
from benchmarks.programs import ROOT, run

ROUNDS = 21
_INSTALL = ("install", "--quiet", "--disable-pip-version-check")


@contextmanager
def _built() -> Iterator[tuple[Path, Path]]:
    """Yield the standalone program, and the one that pip installs from the wheel beside it."""
    pattern = f"*-linux-{platform.machine()}.tar.xz"
    found = [sorted((ROOT / "dist").glob(each)) for each in (pattern, "*.whl")]
    if not all(found):
        raise SkippedError("it is not there; 'make dist' builds it")
    if any(len(each) > 1 for each in found):
        raise CannotRunError("dist/ has several builds: remove the old ones")
    (archive,), (wheel,) = found
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


def _standalone() -> Measured:
    with _built() as (program, installed):
        return interleave(
            lambda: run([str(program), "--help"]),
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
        measure=_standalone,
    ),
)
