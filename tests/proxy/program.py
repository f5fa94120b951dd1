"""The proxy as a process of its own, for tests that need a whole one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import grpc

from pycrictl.base.processes import is_running
from pycrictl.proxy import admin
from tests.e2e.node.kubelet import Kubelet
from tests.processes import peak_bytes

START_S = 60.0
OPTIONS = (
    ("grpc.default_authority", "localhost"),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 5000),  # the timeout for connecting, on a busy machine
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.max_receive_message_length", -1),
    # When a ping that measures bandwidth meets a closed connection, grpcio discards answers that
    # arrived before (one over-age connection in 400); kubelet's client in Go reads them.
    ("grpc.http2.bdp_probe", 0),
)


AGE_S = 1.0
"""Maximum age of connections in tests, where the default of a minute is too long."""

_AGED = """
from functools import partial
from pycrictl.__main__ import run
from pycrictl.proxy import app
app.run = partial(app.run, age_s={}, left_s=0.2)
{}
run()
"""


class Program:
    """A context manager that runs ``pycrictl proxy``; ``folder`` must have a short path.

    Args:
        age_s: the maximum age of clients' connections.
        code: Python that is run before the program.
    """

    def __init__(
        self,
        folder: Path,
        upstream: str,
        *flags: str,
        age_s: float = AGE_S,
        descriptors: int | None = None,
        prefix: tuple[str, ...] = (),
        code: str = "",
    ) -> None:
        self.socket_path = folder / "px" / "cri.sock"
        self.admin_path = folder / "px" / "admin.sock"
        self.log_path = folder / "proxy.log"
        self.state_path = folder / "state"
        self.endpoint = f"unix://{self.socket_path}"
        self.channel = grpc.insecure_channel(self.endpoint, options=OPTIONS)
        self.kubelet = Kubelet(self.channel, cgroup_parent=f"/{folder.name}")
        limit = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh"] if descriptors else []
        self._command = [
            *limit,
            *prefix,
            sys.executable, "-c", _AGED.format(age_s, code), "proxy", "--upstream", upstream,
            "--listen", self.endpoint, "--admin-socket", f"unix://{self.admin_path}",
            *("--config", os.devnull, "--state-dir", str(self.state_path), *flags),
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._process is not None:
            self._process.wait(START_S)
        before = self._starts()
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        give_up_at = time.monotonic() + START_S
        while self._is_starting(before):
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < give_up_at, self.log()
            time.sleep(0.01)

    def _starts(self) -> int:
        return len(re.findall(r'[ "]ready[ "]', self.log()))

    def _is_starting(self, before: int) -> bool:
        if "--log-level" in self._command:
            return not self.socket_path.exists()
        return self._starts() == before

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def successors(self) -> list[int]:
        """PIDs of the processes after each hand-over, in order."""
        return [int(pid) for pid in re.findall(r"handed_over\b.*?\bpid\W+(\d+)", self.log())]

    @property
    def main_pid(self) -> int:
        """PID of the process that serves now, also after reloads."""
        return [self.pid, *self.successors][-1]

    @property
    def streams(self) -> str:
        """Address of the stream server, after reloads that of the latest successor."""
        return str(re.findall(r" streams=(\S+)", self.log())[-1])

    def older(self) -> list[int]:
        """Return the PIDs of processes that have handed over and still run."""
        if self._process is not None:
            self._process.poll()
        *older, _ = self.pid, *self.successors
        return [pid for pid in older if is_running(pid)]

    def reload(self) -> int:
        """Hand over to a new process, which is also killed on exit; return its PID."""
        answer = admin.ask(str(self.admin_path), "reload", timeout_s=START_S)
        return int(answer["pid"])

    def run(self, *flags: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._command, *flags], capture_output=True, text=True, timeout=START_S, check=False
        )

    def terminate(self) -> None:
        """Send SIGTERM without waiting for the end."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float = 60.0) -> int:
        assert self._process is not None
        return self._process.wait(timeout_s)

    def kill9(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @property
    def copies(self) -> list[dict[str, Any]]:
        """Running copies, from the admin socket."""
        return list(admin.ask(str(self.admin_path), "status", timeout_s=10)["copies"])

    def log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    def peak_bytes(self) -> int:
        return peak_bytes(self.pid)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for pid in self.successors:
            with suppress(FileNotFoundError, ProcessLookupError):
                if self.endpoint in Path(f"/proc/{pid}/cmdline").read_text():
                    os.kill(pid, signal.SIGKILL)
