"""The terminal of a session that a shell stops and continues."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = r"""
import asyncio, os
from pycrictl.streaming.terminal import Terminal

async def session(terminal):
    over = asyncio.Event()
    tell = lambda: print("size %dx%d." % terminal.size(), flush=True)
    with terminal.following(tell):
        terminal.make_raw()
        os.write(1, b"\x1b[?1049h")
        terminal.showed(b"\x1b[?1049h")
        print(f"pid {os.getpid()}.", flush=True)
        asyncio.get_running_loop().add_reader(0, over.set)
        await over.wait()
        print("got", os.read(0, 9), flush=True)

with Terminal(0, screen=1) as terminal:
    asyncio.run(session(terminal))
print("left", flush=True)
"""
"""It has switched to the other screen, and leaves at the first key."""


class Shell:
    """An interactive shell on a terminal of its own, which leaves that cooked at its prompt."""

    def __init__(self) -> None:
        self.terminal, self._own = os.openpty()
        self.resize(80, 24)
        self._shown = b""
        self._process = subprocess.Popen(
            ["setsid", "--ctty", "bash", "--norc", "--noprofile", "--noediting", "-i"],
            stdin=self._own,
            stdout=self._own,
            stderr=self._own,
            env={**os.environ, "PS1": "prompt> "},
        )
        self.wait_for("prompt> ")

    def resize(self, columns: int, rows: int) -> None:
        termios.tcsetwinsize(self.terminal, (rows, columns))

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def wait_for(self, text: str) -> str:
        """Wait until it is shown; return what was shown before it."""
        wanted, deadline = text.encode(), time.monotonic() + 60
        while wanted not in self._shown:
            ready, _, _ = select.select([self.terminal], [], [], deadline - time.monotonic())
            assert ready, self._shown
            self._shown += os.read(self.terminal, 65536)
        before, _, self._shown = self._shown.partition(wanted)
        return before.decode()

    @property
    def is_raw(self) -> bool:
        return not termios.tcgetattr(self._own)[3] & (termios.ECHO | termios.ICANON | termios.ISIG)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._own)
        os.close(self.terminal)


@pytest.fixture
def shell() -> Iterator[Shell]:
    shell = Shell()
    yield shell
    shell.close()


def start(shell: Shell, folder: Path) -> int:
    """Start the program in the foreground; return its process ID."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    shell.type(f"{sys.executable} {program}\n")
    shell.wait_for("pid ")
    return int(shell.wait_for("."))


@pytest.mark.parametrize("number", [signal.SIGTSTP, signal.SIGSTOP], ids=["tstp", "stop"])
def test_a_stopped_session_leaves_the_terminal_and_takes_it_back(
    shell: Shell, tmp_path: Path, number: signal.Signals
) -> None:
    pid = start(shell, tmp_path)
    for columns in (90, 100):
        assert shell.is_raw
        os.kill(pid, number)
        before = shell.wait_for("prompt> ")
        assert ("\x1b[?1049l" in before) == (number == signal.SIGTSTP)
        assert not shell.is_raw
        shell.resize(columns, 30)
        shell.type("fg\n")
        assert shell.wait_for(f"size {columns}x30.").endswith("\x1b[?1049h")
    assert shell.is_raw
    shell.type("\x03")
    shell.wait_for("got b'\\x03'")
    shell.wait_for("\x1b[?1049l")
    shell.wait_for("left")
    shell.wait_for("prompt> ")
    assert not shell.is_raw


def test_in_the_background_it_waits_for_the_terminal(shell: Shell, tmp_path: Path) -> None:
    os.kill(start(shell, tmp_path), signal.SIGTSTP)
    shell.wait_for("prompt> ")
    shell.type("bg\n")
    shell.wait_for("prompt> ")
    shell.type("until jobs -s | grep -q Stopped; do sleep 0.05; done; echo is$((1+1))\n")
    shell.wait_for("is2")
    shell.wait_for("prompt> ")
    assert not shell.is_raw
    shell.type("fg\n")
    shell.wait_for("size 80x24.")
    assert shell.is_raw


def test_the_terminal_of_a_shell_without_job_control(shell: Shell, tmp_path: Path) -> None:
    """Nobody could continue it, so it is not stopped, and the terminal stays raw."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    shell.type(f"exec {sys.executable} {program}\n")
    shell.wait_for("pid ")
    os.kill(int(shell.wait_for(".")), signal.SIGTSTP)
    shell.wait_for("\x1b[?1049l")
    shell.wait_for("\x1b[?1049h")
    shell.wait_for("size 80x24.")
    assert shell.is_raw
    shell.type("\x03")
    shell.wait_for("got b'\\x03'")
