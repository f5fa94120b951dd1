"""Runs functions of this program in separate processes, however the program was started."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Final

ENTRY: Final = "--call"
"""The option that makes a frozen program, which is not an interpreter, call a function."""

_PROGRAM: Final = """\
import os, sys
sys.path[:] = sys.argv[1].split(os.pathsep)
from pycrictl.base.ownprogram import call
call(*sys.argv[2:])
"""


def command(target: str) -> list[str]:
    """Return the command that calls ``MODULE:NAME`` with the arguments that are appended to it."""
    if getattr(sys, "frozen", False):
        return [sys.executable, ENTRY, target]
    package = os.path.abspath(__file__)  # noqa: PTH100 (in an archive of modules it is not a file)
    for _ in __name__.split("."):
        package = os.path.dirname(package)  # noqa: PTH120 (the same)
    # Relative paths would mean something else in the new process.
    folders = [package, *filter(os.path.isabs, sys.path)]
    return [sys.executable, "-I", "-S", "-c", _PROGRAM, os.pathsep.join(folders), target]


def call(target: str, *words: str) -> None:
    module, _, name = target.partition(":")
    getattr(import_module(module), name)(*words)


def start_orphan(environ: Mapping[str, str]) -> int:
    """Start this command line again, but not as a child process; return the process ID.

    systemd notices the end of a service's main process only if it is systemd's own child. A program
    with threads cannot fork itself, so another one forks.
    """
    # A standalone program is its own interpreter.
    words = sys.argv[1:] if getattr(sys, "frozen", False) else sys.orig_argv[1:]
    forking = [*command(f"{__name__}:fork"), sys.executable, *words]
    done = subprocess.run(
        forking, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environ, check=False
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


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in ("Z", "X")
