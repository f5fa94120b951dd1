"""Run the program in the test's own process or in another one."""

from __future__ import annotations

import io
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, TextIO

from pycrictl.base import noderoot
from pycrictl.base.environ import Environment
from pycrictl.base.signals import ENDING, raised
from pycrictl.cli.main import main

PROGRAM = (sys.executable, "-m", "pycrictl")
"""The command that starts the program from this tree."""


@contextmanager
def kept_handlers() -> Iterator[None]:
    """Restore the signal handlers and the hook that the program replaces for good."""
    handlers = [(number, signal.getsignal(number)) for number in ENDING]
    hook = sys.unraisablehook
    try:
        yield
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)
        sys.unraisablehook = hook
        raised.clear()


class Run:
    """One run: its exit status and what it wrote.

    Args:
        told: used as standard error, for tests that read it while the program runs.
    """

    def __init__(
        self,
        *words: str,
        environ: Mapping[str, str] | None = None,
        stdin: str | TextIO = "",
        wall_clock: Callable[[], float] = time.time,
        told: io.StringIO | None = None,
    ) -> None:
        stdout, stderr = io.StringIO(), told or io.StringIO()
        env = Environment(
            stdin=io.StringIO(stdin) if isinstance(stdin, str) else stdin,
            stdout=stdout,
            stderr=stderr,
            environ=environ or {},
            wall_clock=wall_clock,
        )
        logger = logging.getLogger("pycrictl")
        handlers, level, propagate = logger.handlers, logger.level, logger.propagate
        try:
            with kept_handlers():
                self.code = main(words, env=env)
        finally:
            noderoot.use("/")
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)
        self.stdout = stdout.getvalue()
        self.stderr = stderr.getvalue()


def start(
    *words: str,
    stdout: IO[str] | int = subprocess.PIPE,
    environ: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Start the program in a process of its own.

    Args:
        stdout: its standard output; by default a pipe, like its standard error.
        environ: variables in addition to those of this process.
    """
    return subprocess.Popen(
        [*PROGRAM, *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environ or {})},
    )
