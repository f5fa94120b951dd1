"""Starts this program again, for a service that hands over to a newer version."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_SCRIPT: Final = '"$@" >&2 & echo $!'


def start_orphan(environ: Mapping[str, str]) -> int:
    """Start this command line again, but not as a child process; return the process ID.

    systemd notices the end of a service's main process only if it is systemd's own child. A program
    with threads cannot fork itself, so a shell does.

    Raises:
        OSError: no process could be started.
    """
    # A standalone program is its own interpreter.
    words = sys.argv[1:] if getattr(sys, "frozen", False) else sys.orig_argv[1:]
    shell = ["sh", "-c", _SCRIPT, "sh", sys.executable, *words]
    done = subprocess.run(
        shell, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environ, check=False
    )
    if done.returncode:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return int(done.stdout)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in ("Z", "X")
