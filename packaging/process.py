"""Run the programs that do the building."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run(*command: str, cwd: Path | None = None, **variables: str) -> None:
    """Run a program; show what it writes only if it fails.

    Args:
        cwd: where, if not here.
        variables: of its environment, in addition to those of this process.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.stderr.write(done.stdout)
        done.check_returncode()


def output(*command: str) -> str:
    """Return what a program writes to its standard output.

    Raises:
        subprocess.CalledProcessError: it failed; it has said why on standard error.
    """
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
