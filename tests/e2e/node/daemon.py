"""Start and end of one background program with a log file."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path


class DaemonFailed(Exception):
    """A daemon did not start; the message ends with the last lines of its log."""


class Daemon:
    """One background program; its output goes to `log_path`, which is kept across restarts."""

    def __init__(self, command: Sequence[str | Path], log_path: Path) -> None:
        self.log_path = log_path
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise DaemonFailed(f"{self._command[0]} was not started")
        return self._process.pid

    def start(self, ready: Callable[[], bool], *, timeout_s: float = 30.0) -> None:
        """Start the program and wait until `ready()` returns true."""
        with self.log_path.open("ab") as log:
            # In its own session: Ctrl-C in the terminal must not reach the daemon.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        give_up_at = time.monotonic() + timeout_s
        while not ready():
            if not self.running or time.monotonic() > give_up_at:
                self.kill()
                tail = "\n".join(self.log_path.read_text().splitlines()[-10:])
                raise DaemonFailed(f"{self._command[0]} did not start:\n{tail}")
            time.sleep(0.01)

    def terminate(self, *, timeout_s: float = 10.0) -> None:
        """Send SIGTERM, then SIGKILL after the timeout; do nothing if it is not running."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
