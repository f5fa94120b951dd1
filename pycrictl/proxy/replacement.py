"""Start a new program that is to take over from this one."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pycrictl import ownprogram

ENVIRON: Final = "PYCRICTL_TAKE_OVER"
"""The variable that names the old program's admin socket to the new one."""

READY_S: Final = 60.0
"""How long a new program may take to serve."""


async def start_program(admin: str, environ: Mapping[str, str]) -> int:
    """Start a program by the command line of this one; return its process ID, or a ValueError."""
    # A standalone program is its own interpreter.
    words = sys.argv[1:] if getattr(sys, "frozen", False) else sys.orig_argv[1:]
    kept = {name: value for name, value in environ.items() if name != "WATCHDOG_PID"}
    try:
        return await asyncio.to_thread(_start_orphan, words, {**kept, ENVIRON: admin})
    except OSError as exc:
        raise ValueError(f"cannot start a new program: {exc.strerror}") from None


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in ("Z", "X")


def _start_orphan(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Start a program that is not a child of this one.

    systemd notices the end of the service's main process only if that is its own child. This
    program has threads and cannot fork itself, so another one does it.
    """
    command = [*ownprogram.command(f"{__name__}:fork"), sys.executable, *words]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environ, check=False
    )
    if done.returncode:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return int(done.stdout)


def fork(program: str, *words: str) -> None:
    pid = os.fork()
    if not pid:
        os.dup2(2, 1)
        os.execve(program, [program, *words], os.environ)
    os.write(1, b"%d" % pid)
