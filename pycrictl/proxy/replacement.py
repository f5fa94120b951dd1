"""Start a new program that is to take over from this one."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from pycrictl import ownprogram

ENVIRON: Final = "PYCRICTL_TAKE_OVER"
"""The variable that names the old program's admin socket to the new one."""

READY_S: Final = 60.0
"""How long a new program may take to serve."""

_LOOK_S: Final = 0.05


async def replace(admin: str, environ: Mapping[str, str], is_replaced: Callable[[], bool]) -> None:
    """Start a program by the command line of this one; a ValueError if it does not take over."""
    # A standalone program is its own interpreter.
    words = sys.argv[1:] if getattr(sys, "frozen", False) else sys.orig_argv[1:]
    kept = {name: value for name, value in environ.items() if name != "WATCHDOG_PID"}
    try:
        environ = {**kept, ENVIRON: admin}
        pid = await asyncio.to_thread(_start_orphan, sys.executable, words, environ)
    except OSError as exc:
        raise ValueError(f"cannot start a new program: {exc.strerror}") from None
    try:
        async with asyncio.timeout(READY_S):
            while not is_replaced():
                if not _is_running(pid):
                    raise ValueError("the new program ended before it served; the log says why")
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        raise ValueError(f"the new program did not serve within {READY_S:g} s") from None


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in ("Z", "X")


def _start_orphan(program: str, words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Start a program that is not a child of this one; return its process ID.

    systemd notices the end of the service's main process only if that is its own child. This
    program has threads and cannot fork itself, so another one does it.
    """
    reading, writing = os.pipe()
    try:
        command = [*ownprogram.command(f"{__name__}:fork"), str(writing), program, *words]
        subprocess.run(
            command, stdin=subprocess.DEVNULL, env=environ, pass_fds=[writing], check=False
        )
    finally:
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            text = pipe.read()
    if not text:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return int(text)


def fork(fd: str, program: str, *words: str) -> None:
    os.set_inheritable(int(fd), False)
    pid = os.fork()
    if not pid:
        os.execve(program, [program, *words], os.environ)
    os.write(int(fd), b"%d" % pid)
