"""Run the programs that do the building."""

from __future__ import annotations

import os
import subprocess
import sys


def run(*command: str, **variables: str) -> None:
    """Run a program; show what it writes only if it fails.

    Args:
        variables: of its environment, in addition to those of this process.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    done = subprocess.run(
        command,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.stderr.write(done.stdout)
        done.check_returncode()
