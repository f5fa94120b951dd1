"""A real cluster to explore: ``tests/e2e/cluster/enclosed.sh python -m tests.e2e.cluster BIN``.

It runs until it gets a signal. Enter it with ``nsenter --net --mount --target PID``, and export
the variables that it has printed.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.e2e.cluster.cluster import Cluster


def main() -> None:
    with Cluster(Path(sys.argv[1])) as cluster:
        print(f"ENTER='nsenter --net --mount --target {os.getpid()}'")
        print(f"CLUSTER={cluster.folder}")
        print(f"KUBECONFIG={cluster.kubeconfig('admin')}")
        print(f"ENDPOINT={cluster.lab.node.endpoint}", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


main()
