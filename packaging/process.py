"""Run the tools of a build."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run(*command: str, cwd: Path | None = None, **variables: str) -> None:
    """Run a program; show its output only if it fails.

    Args:
        cwd: the working directory, if not the current one.
        variables: environment variables, in addition to those of this process.

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
    """Run a program and return its standard output.

    Raises:
        subprocess.CalledProcessError: it failed; its standard error has the reason.
    """
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
