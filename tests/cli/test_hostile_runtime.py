"""Runtimes that send what costs much: time, memory and Ctrl-C of the program as a whole."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.cli.run import PROGRAM
from tests.fakecri import hostile

Server = Callable[[], AbstractContextManager[str]]

TIMEOUT_S = 2.0
OVERRUN_S = 3.0
"""What the start of the program takes on a busy machine."""

MEMORY_BYTES = 200 * 1024 * 1024


class Ended:
    """A run that is over: its status, what it wrote to its standard error, and what it took."""

    def __init__(
        self, path: str, folder: Path, *words: str, interrupt_after_s: float | None = None
    ) -> None:
        told = folder / "stderr"
        with told.open("w") as stderr:
            process = subprocess.Popen(
                [*PROGRAM, "-r", f"unix://{path}", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )
        began = time.monotonic()
        if interrupt_after_s is not None:
            time.sleep(interrupt_after_s)
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
        try:
            process.wait(30)  # for good if it does not end
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        finally:
            self.duration_s = time.monotonic() - began
        self.code = process.returncode
        self.lines = told.read_text().splitlines()


def peak_of(path: str, folder: Path, *words: str) -> tuple[Ended, int]:
    """A run, and the most memory that it had."""
    peak = folder / "peak"
    script = (
        "import os, resource, sys\n"
        "pid = os.posix_spawn(sys.executable, sys.argv[2:], os.environ)\n"
        "_, status, usage = os.wait4(pid, 0)\n"
        "open(sys.argv[1], 'w').write(str(usage.ru_maxrss * 1024))\n"
        "sys.exit(os.waitstatus_to_exitcode(status))\n"
    )
    command = [PROGRAM[0], "-c", script, str(peak), *PROGRAM, "-r", f"unix://{path}", *words]
    began = time.monotonic()
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    ended = object.__new__(Ended)
    ended.duration_s = time.monotonic() - began
    ended.code, ended.lines = done.returncode, done.stderr.splitlines()
    return ended, int(peak.read_text())


@pytest.mark.parametrize(
    "server",
    [hostile.unending, hostile.flooding, hostile.deaf],
    ids=["unending", "flooding", "deaf"],
)
@pytest.mark.parametrize("command", ["ps", "version"])
def test_deadline_holds_whatever_comes(tmp_path: Path, server: Server, command: str) -> None:
    """In one line, on time, and without much memory."""
    with server() as path:
        ended, peak_bytes = peak_of(path, tmp_path, "-t", "2s", command)
    assert ended.code == 1
    assert ended.lines[0].startswith("pycrictl: ")
    assert "Traceback" not in "".join(ended.lines)
    assert len([line for line in ended.lines if not line.startswith("hint: ")]) == 1
    assert ended.duration_s < TIMEOUT_S + OVERRUN_S
    assert peak_bytes < MEMORY_BYTES


COMMANDS: tuple[tuple[str, ...], ...] = (
    ("events",),
    ("version",),
    ("stats",),
    ("stop", "c", "d"),
    ("rm", "-f", "c", "d", "e"),
    ("pull", "--progress", "none", "image"),
    ("exec", "c", "ls"),
    ("attach", "c"),
    ("port-forward", "a" * 64, "8080"),
    ("logs", "-f", "c"),
    ("ps", "--watch"),
    ("image-pull-progress", "p"),
    ("cp", "c:/x", "/tmp"),
)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_interrupt_ends_every_command_at_once(tmp_path: Path, words: tuple[str, ...]) -> None:
    """At the first press, although the runtime reads nothing and the time limit is far away."""
    with hostile.deaf() as path:
        ended = Ended(path, tmp_path, "-t", "100s", *words, interrupt_after_s=2.0)
    assert ended.duration_s < 2.0, ended.lines
    # What goes on until then ends well.
    assert ended.code == (0 if "--watch" in words or "port-forward" in words else 130)
    assert "Traceback" not in "".join(ended.lines)


def test_interrupt_ends_events_in_a_flood(tmp_path: Path) -> None:
    with hostile.flooding() as path:
        ended = Ended(path, tmp_path, "events", interrupt_after_s=2.0)
    assert ended.duration_s < 2.0
    assert ended.code in (1, 130), ended.lines  # gRPC's library may have given up by itself
