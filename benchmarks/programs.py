"""Run the programs to measure, with or without a terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from benchmarks.harness import CannotRunError

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 120
ROWS = 40
_EXCERPT = 300
_PEAK = """\
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def pycrictl(*arguments: str) -> list[str]:
    """Return a command line of pycrictl: the program beside this interpreter, else the module."""
    installed = Path(sys.executable).with_name("pycrictl")
    program = [str(installed)] if installed.exists() else [sys.executable, "-m", "pycrictl"]
    return [*program, *arguments]


def yardstick(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-P", str(ROOT / "benchmarks" / f"{name}.py"), *arguments]


def run(
    command: list[str],
    *,
    stdin: Path | None = None,
    stdout: Path | None = None,
    timeout_s: float = 60,
) -> float:
    """Run a program and return its wall time in seconds."""
    with Path(stdin or os.devnull).open("rb") as source, _opened(stdout) as sink:
        start = time.perf_counter()
        done = subprocess.run(
            command,
            stdin=source,
            stdout=sink,
            stderr=subprocess.PIPE,
            timeout=timeout_s,
            check=False,
            env=_environ(),
        )
        wall_s = time.perf_counter() - start
    if done.returncode or not (stdout or done.stdout):
        raise CannotRunError(_failure(command, done.returncode, done.stderr))
    return wall_s


def peak_bytes(command: list[str]) -> int:
    """Run a program and return its peak memory; raises CannotRunError.

    Another interpreter starts it, since a new process's figure includes that of its parent.
    """
    words = [sys.executable, "-I", "-S", "-c", _PEAK, *command]
    done = subprocess.run(words, capture_output=True, check=False, env=_environ())
    if done.returncode:
        raise CannotRunError(_failure(command, done.returncode, done.stderr))
    return int(done.stdout) * 1024


@contextmanager
def _opened(path: Path | None) -> Iterator[BinaryIO | int]:
    if path is None:
        yield subprocess.PIPE
    else:
        with path.open("wb") as file:
            yield file


def run_in_terminal(command: list[str], *, timeout_s: float) -> float:
    """Run a program with all streams on a pseudo-terminal; return its wall time in seconds.

    Raises:
        CannotRunError: it failed or timed out.
    """
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (ROWS, COLUMNS))
    start = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        env=_environ(),
    )
    os.close(slave)
    output = bytearray()
    try:
        while data := _read(master, start + timeout_s - time.perf_counter()):
            output += data
    except TimeoutError:
        process.kill()
    finally:
        os.close(master)
    if status := process.wait():
        raise CannotRunError(_failure(command, status, bytes(output)))
    return time.perf_counter() - start


def cpu_clock(pid: int) -> int:
    """Return the clock of a process's CPU time, as clock_getcpuclockid(3) does on Linux."""
    return ~pid << 3 | 2


def _read(master: int, timeout_s: float) -> bytes:
    """Return the next output; empty when all descriptors of the other end are closed."""
    if not select.select([master], [], [], max(timeout_s, 0))[0]:
        raise TimeoutError
    try:
        return os.read(master, 65536)
    except OSError:  # EIO: all of them are closed
        return b""


def _environ() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}


def _failure(command: list[str], status: int, output: bytes) -> str:
    text = output[-_EXCERPT:].decode(errors="replace").strip()
    return f"'{' '.join(command)}' ended with {status}: {text!r}"
