"""Pulls in a real cluster."""

from __future__ import annotations

import signal
import subprocess
import sys

from tests.e2e.cluster.cluster import Cluster
from tests.waiting import wait_until


def pull_slowly(cluster: Cluster, name: str, seed: int, seconds: float) -> str:
    """Start a pull that takes ``seconds``; return the reference once bytes arrive."""
    image = cluster.image(f"{name}{seed}:1", seed, 5, 18, 9, 12)  # no node has it yet
    cluster.lab.registry.limit(image.layers_bytes / seconds)
    cluster.run_pod(name, cluster.lab.reference(image))
    wait_until(cluster.lab.node.store.ingests)
    return cluster.lab.reference(image)


def run(cluster: Cluster, *words: str, seconds: float = 60.0) -> str:
    """Run pycrictl on the node, and interrupt it if it takes longer than ``seconds``."""
    command = [sys.executable, "-m", "pycrictl", "-r", cluster.lab.node.endpoint, *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            return process.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            return process.communicate()[0]
