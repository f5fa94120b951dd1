"""Runs of the program in the test's own process."""

from __future__ import annotations

import io
import logging
import signal
import time
from collections.abc import Callable, Mapping

from pycrictl.cli.main import main
from pycrictl.environ import Environment


class Run:
    """One run: its exit status and what it wrote.

    Args:
        told: what stands for standard error, if a test wants to know at once what is told.
    """

    def __init__(
        self,
        *words: str,
        environ: Mapping[str, str] | None = None,
        stdin: str = "",
        wall_clock: Callable[[], float] = time.time,
        told: io.StringIO | None = None,
    ) -> None:
        stdout, stderr = io.StringIO(), told or io.StringIO()
        env = Environment(
            stdin=io.StringIO(stdin),
            stdout=stdout,
            stderr=stderr,
            environ=environ or {},
            wall_clock=wall_clock,
        )
        handler = signal.getsignal(signal.SIGTERM)
        logger = logging.getLogger("pycrictl")
        handlers, level, propagate = logger.handlers, logger.level, logger.propagate
        try:
            self.code = main(words, env=env)
        finally:
            signal.signal(signal.SIGTERM, handler)
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)
        self.stdout = stdout.getvalue()
        self.stderr = stderr.getvalue()
