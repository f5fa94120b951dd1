"""Process starts: ``pycrictl images`` and ``--help`` against the least program with that call."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import Benchmark, CannotRunError, Goal, Measured, interleave
from benchmarks.programs import ROOT, pycrictl, run, yardstick

ROUNDS = 21


@contextmanager
def _image_server() -> Iterator[Path]:
    """A server of images in a process of its own; its socket."""
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder, "cri.sock")
        command = [sys.executable, "-m", "benchmarks.image_server", str(socket)]
        with subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as server:
            assert server.stdout is not None
            if server.stdout.readline() != b"ready\n":
                raise CannotRunError("the server of images did not start")
            yield socket
            # Leaving the block closes its standard input, which ends it.


def _compare(*arguments: str) -> Measured:
    with _image_server() as socket:
        ours = pycrictl("--runtime-endpoint", f"unix://{socket}", *arguments)
        bare = yardstick("bare_images", str(socket))
        return interleave(lambda: run(ours), lambda: run(bare), rounds=ROUNDS, warm_up_rounds=2)


def _show(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


BENCHMARKS = (
    Benchmark(
        name="images",
        what="wall time of 'pycrictl images' / of a bare program that makes the same call",
        goal=Goal("<=", 1.4),
        show=_show,
        measure=lambda: _compare("images"),
    ),
    Benchmark(
        name="help",
        what="wall time of 'pycrictl --help' / of a bare program that lists images",
        goal=Goal("<=", 0.9),
        show=_show,
        measure=lambda: _compare("--help"),
    ),
)
