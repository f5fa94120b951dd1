"""The agent as a separate process, behind a stand-in for the API server."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.agent.standing import Cluster
from tests.kube.apiserver import agent_flags
from tests.processes import peak_bytes, resident_bytes
from tests.waiting import wait_until


class Program:
    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self.log = log
        self.is_killed = False

    def kill(self) -> None:
        self.is_killed = True
        self.process.kill()
        self.process.wait()

    @property
    def port(self) -> int:
        said = re.search(r"serving address=127\.0\.0\.1:(\d+)", self.log.read_text())
        return int(said[1]) if said else 0

    @property
    def rss(self) -> int:
        return resident_bytes(self.process.pid)

    @property
    def peak_bytes(self) -> int:
        return peak_bytes(self.process.pid)


@contextmanager
def running(
    cluster: Cluster, endpoint: str, *flags: str, module: str = "pycrictl"
) -> Iterator[Program]:
    log = cluster.folder / "agent.log"
    words = [
        sys.executable, "-m", module, "-r", endpoint, "agent", "--node-name", "n1",
        "--listen", "127.0.0.1:0", "--kubeconfig", str(cluster.folder / "kubeconfig"),
        *("--peer-token", str(cluster.folder / "token")), *agent_flags(cluster.api.agents), *flags,
    ]  # fmt: skip
    with log.open("w") as stderr, subprocess.Popen(words, stderr=stderr, text=True) as process:
        program = Program(process, log)
        try:
            wait_until(lambda: "trust proxy=True" in log.read_text())
            cluster.stand_behind(program.port)
            yield program
        finally:
            process.terminate()
            ending = -signal.SIGKILL if program.is_killed else 0
            assert process.wait(30) == ending, log.read_text()
