"""Runtimes that flood the program: it keeps its time and memory limits, and obeys Ctrl-C."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.run import PROGRAM, Run, start
from tests.fakecri import hostile
from tests.waiting import wait_until

Server = Callable[[], AbstractContextManager[str]]

TIMEOUT_S = 1.0
OVERRUN_S = 20.0
"""Time to start the program on a busy machine."""

MEMORY_BYTES = 200 * 1024 * 1024


class Ended(NamedTuple):
    """A finished run: its exit status, the lines of its standard error, and its duration."""

    code: int
    lines: list[str]
    duration_s: float


def interrupted(path: str, *words: str) -> Ended:
    """Interrupt a run that has connected and is waiting."""
    process = start("-r", f"unix://{path}", *words, stdout=subprocess.DEVNULL)
    connected = re.compile(rf" 03 +\d+ {re.escape(path)}$", re.MULTILINE)
    wait_until(lambda: connected.search(Path("/proc/net/unix").read_text()))
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    try:
        _, stderr = process.communicate(timeout=30)
    finally:
        process.kill()
    return Ended(process.returncode, stderr.splitlines(), time.monotonic() - began)


def peak_of(path: str, folder: Path, *words: str) -> tuple[Ended, int]:
    """Run the program; return how it ended, and its peak memory in bytes."""
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
    ended = Ended(done.returncode, done.stderr.splitlines(), time.monotonic() - began)
    return ended, int(peak.read_text())


@pytest.mark.parametrize(
    "server",
    [hostile.unending, hostile.flooding, hostile.deaf],
    ids=["unending", "flooding", "deaf"],
)
@pytest.mark.parametrize("command", ["ps", "version"])
def test_deadline_holds_whatever_comes(tmp_path: Path, server: Server, command: str) -> None:
    """Whatever the runtime sends, there is one error line, on time and with bounded memory."""
    with server() as path:
        ended, peak_bytes = peak_of(path, tmp_path, "-t", "1s", command)
    assert ended.code == 1
    assert ended.lines[0].startswith("pycrictl: ")
    assert "Traceback" not in "".join(ended.lines)
    assert len([line for line in ended.lines if not line.startswith("hint: ")]) == 1
    assert ended.duration_s < TIMEOUT_S + OVERRUN_S
    assert peak_bytes < MEMORY_BYTES


COMMANDS = (
    "events", "version", "stats", "stop c d", "rm -f c d e", "pull --progress none image",
    "exec c ls", "attach c", f"port-forward {'a' * 64} 8080", "logs -f c", "ps --watch",
    "image-pull-progress p", "cp c:/x /tmp",
)  # fmt: skip


@pytest.mark.parametrize("line", COMMANDS)
def test_interrupt_ends_every_command_at_once(line: str) -> None:
    """One Ctrl-C is enough, although the runtime reads nothing and the time limit is far away."""
    with hostile.deaf() as path:
        ended = interrupted(path, "-t", "100s", *line.split())
    assert ended.duration_s < OVERRUN_S, ended.lines
    # Commands that run until Ctrl-C succeed, once they do.
    is_endless = "--watch" in line or "port-forward" in line
    assert ended.code in ((0, 130) if is_endless else (130,))
    assert "Traceback" not in "".join(ended.lines)


@pytest.mark.parametrize(
    "line",
    [
        *("why web", "image-pull-progress web", "pull --progress none image"),
        *("exec -s --timeout 5 c true", "runp POD"),
        *(f"inspect {'a' * 64} {'b' * 64}", f"start {'a' * 64} b"),
    ],
)
def test_a_runtime_that_hangs_takes_no_longer_than_the_limit(line: str, tmp_path: Path) -> None:
    pod = tmp_path / "pod.yaml"
    pod.write_text("metadata: {name: a, namespace: b}\nlinux: {cgroup_parent: /x}\n")
    with hostile.hung() as path:
        Run("-r", f"unix://{path}", "-t", "100ms", "ps")  # loads the modules
        began = time.monotonic()
        done = Run("-r", f"unix://{path}", "-t", "5s", *line.replace("POD", str(pod)).split())
        took_s = time.monotonic() - began
    error, hint = done.stderr.splitlines()
    assert (done.code, done.stdout) == (1, "")
    assert "it accepts connections but does not answer" in error
    assert "the runtime hangs" in hint
    assert 5.0 <= took_s < 9.9, "not a limit for each of several steps"
