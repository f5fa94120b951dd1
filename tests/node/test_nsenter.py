"""Which programs may run beside a container, and which containers they can run beside."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

import pytest

from pycrictl.base.errors import PycrictlError
from pycrictl.node.namespaces import check_static, run
from tests.cli.run import Run
from tests.fakecri import FakeServer


@pytest.mark.debian
def test_a_static_program() -> None:
    program = shutil.which("busybox")
    assert program is not None
    check_static(Path(program))


@pytest.mark.parametrize("kind", ["dynamic", "no gap", "text", "missing", "pipe", "folder"])
def test_what_is_none(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    if kind == "dynamic":
        path = Path(sys.executable).resolve()
    elif kind == "no gap":  # before the loader's name, as newer linkers write it
        path.write_bytes(b"\x7fELF\x02...\x13/lib64/ld-linux-x86-64.so.2\0")
    elif kind == "text":
        path.write_text("#!/bin/sh\n")
    elif kind == "pipe":
        path.symlink_to("/dev/null")
    elif kind == "folder":
        path.mkdir()
    with pytest.raises(PycrictlError) as caught:
        check_static(path)
    assert (caught.value.hint is not None) == (kind in ("dynamic", "no gap"))


def test_a_process_that_has_ended() -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(PycrictlError, match="the container has ended"):
        run(child, "/bin/busybox", ["sh"])


@pytest.mark.parametrize(
    "words",
    [
        ("debug", ""),
        ("debug",),
        ("debug", "--busybox", "/no/such", "web"),
    ],
)
def test_nothing_is_asked_for_what_cannot_be_meant(
    fake: FakeServer, words: tuple[str, ...]
) -> None:
    done = Run("-r", fake.endpoint, *words)
    assert (done.code, done.stdout, fake.calls) == (1, "", [])


BUSYBOX = "/bin/busybox"

HELPER = f"""
import os, sys
from pycrictl.node.namespaces import run

sys.exit(run(os.getpid(), "{BUSYBOX}", ["sh", "-c", sys.argv[1]]))
"""
"""A program beside this process, given as a script, instead of a container's."""

GROUPS = "read -r pid name state parent group session tty front rest < /proc/$$/stat"
"""Reads the shell's process group and the one in front at its terminal (proc(5))."""


def on_terminal(script: str, *words: str) -> tuple[int, list[str]]:
    """Run a script that leads a session at a terminal; return its PID and output."""
    terminal, theirs = os.openpty()
    with subprocess.Popen(
        ["setsid", "--ctty", "sh", "-c", script, "sh", *words],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    ) as process:
        stdout, _ = process.communicate(timeout=60)
    os.close(theirs)
    os.close(terminal)
    return process.pid, stdout.split()


@pytest.mark.root
def test_in_the_background_no_terminal_is_taken() -> None:
    script = f'set -m; "$@" & echo $!; wait; {GROUPS}; echo $front'
    inner = f"{GROUPS}; echo $group $front"
    leader, output = on_terminal(script, sys.executable, "-c", HELPER, inner)
    job = output[0]
    assert output == [job, job, str(leader), str(leader)]
    assert job != str(leader)


@pytest.mark.root
def test_nothing_stops_a_shell_in_front() -> None:
    inner = f"{GROUPS}; echo $group $front; grep SigIgn /proc/$$/status"
    leader, output = on_terminal('exec "$@"', sys.executable, "-c", HELPER, inner)
    group, front, _, ignored = output
    assert group == front != str(leader)
    assert int(ignored, 16) >> (signal.SIGTSTP - 1) & 1


@pytest.mark.root
def test_a_signal_ends_the_shell() -> None:
    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGALRM, end)
    began_s = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(os.getpid(), BUSYBOX, ["sleep", "20"])
    finally:
        signal.signal(signal.SIGALRM, former)
    assert time.monotonic() - began_s < 10
