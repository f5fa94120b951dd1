"""A node as operators run it: agents in pods by the manifests, the proxy at its default paths."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from pycrictl.proxy import admin
from tests.e2e.node.daemon import Daemon

from .agents import NAME, NAMESPACE
from .cluster import SOCKET, Cluster

ENDPOINT: Final = "unix:///run/pycrictl/cri.sock"
ADMIN: Final = "/run/pycrictl/admin.sock"
METRICS: Final = "127.0.0.1:9799"
LIMIT: Final = 8


class Node:
    """The cluster's node.

    Attributes:
        cluster: the cluster.
        proxy: the proxy between kubelet and runtime; None without one.
        seed: the first seed for images that the node has not had before.
    """

    def __init__(self, cluster: Cluster, proxy: Daemon | None) -> None:
        self.cluster = cluster
        self.proxy = proxy
        self.seed = 5500 if proxy else 5000

    @property
    def endpoint(self) -> str:
        return ENDPOINT if self.proxy else f"unix://{SOCKET}"

    @property
    def status(self) -> dict[str, Any]:
        return dict(admin.ask(ADMIN, "status", timeout_s=10))

    def log(self) -> str:
        return self.cluster.kubectl.good("logs", f"{NAME}-x", "-n", NAMESPACE)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run pycrictl on the node, as its administrator does."""
        return subprocess.run(
            [sys.executable, "-m", "pycrictl", "-r", self.endpoint, *words],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )


def agent_pid(cluster: Cluster) -> int:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            is_ours = cluster.lab.folder.name in (folder / "cgroup").read_text()
            if is_ours and b"agent" in words:
                return int(folder.name)
    raise AssertionError("there is no agent")


@contextmanager
def node_of(cluster: Cluster, *, is_proxied: bool) -> Iterator[Node]:
    """Run the proxy as both of the kubelet's endpoints while the block runs, or no proxy."""
    if not is_proxied:
        yield Node(cluster, None)
        return
    flags = ["--max-parallel-image-pulls", str(LIMIT), "--state-dir", str(cluster.folder / "px")]
    command = [
        sys.executable, "-m", "pycrictl", "proxy", "--upstream", f"unix://{SOCKET}",
        *("--metrics-listen", METRICS, *flags),
    ]  # fmt: skip
    proxy = Daemon(command, cluster.folder / "proxy.log")
    proxy.start(lambda: Path(ADMIN).exists() and Path(ENDPOINT.removeprefix("unix://")).exists())
    try:
        cluster.restart_kubelet(ENDPOINT)
        yield Node(cluster, proxy)
        cluster.restart_kubelet(cluster.lab.node.endpoint)
    finally:
        proxy.terminate()
