"""What `make dist` builds against the installed program: how long ``--help`` takes.

Packages of Debian and RPM, and images, have the folder's program.
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
def _built(pattern: str, folder: Path) -> Iterator[tuple[Path, Path]]:
    """The file of this name, and the program that pip installs from the wheel beside it."""
    machine = platform.machine()
    found = [sorted((ROOT / "dist").glob(each)) for each in (pattern.format(machine), "*.whl")]
    if not all(found):
        raise SkippedError("it is not there; 'make dist' builds it")
    if any(len(each) > 1 for each in found):
        raise CannotRunError("dist/ has several builds: remove the old ones")
    (file,), (wheel,) = found
    venv = folder / "venv"
    for command in (
        [sys.executable, "-m", "venv", str(venv)],
        [str(venv / "bin" / "pip"), *_INSTALL, str(wheel)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotRunError(f"pip: {done.stderr.strip()[-300:]}")
    yield file, venv / "bin" / "pycrictl"


def _measure(pattern: str) -> Measured:
    with tempfile.TemporaryDirectory() as scratch, _built(pattern, Path(scratch)) as built:
        program, installed = built
        if program.suffix == ".xz":
            subprocess.run(["tar", "-C", scratch, "-xf", program], check=True)
            program = Path(scratch, program.name.removesuffix(".tar.xz"), "pycrictl")
        # The one on the path may be a shim, which takes longer than all else.
        interpreter = [str(Path(sys.base_prefix, "bin", "python3"))] * (program.suffix == ".pyz")
        return interleave(
            lambda: run([*interpreter, str(program), "--help"]),
            lambda: run([str(installed), "--help"]),
            rounds=ROUNDS,
            warm_up_rounds=2,
        )


def _row(name: str, what: str, pattern: str, limit: float) -> Benchmark:
    return Benchmark(
        name=name,
        what=f"wall time of '--help' of {what} / of the installed program",
        goal=Goal("<=", limit),
        show=milliseconds,
        measure=lambda: _measure(pattern),
    )


BENCHMARKS = (
    _row("standalone-help", "the standalone folder", "*-linux-{}.tar.xz", 1.3),
    _row("single-help", "the standalone file, unpacked before", "*-linux-{}.bin", 1.8),
    _row("pyz-help", "the zipapp, unpacked before", "*.pyz", 1.8),
)
