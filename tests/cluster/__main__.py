"""A real cluster to look at by hand: ``tests/cluster/enclosed.sh python -m tests.cluster BIN``.

It runs until it gets a signal. ``nsenter --net --mount --target PID`` gets into it; the printed
lines say what to export there.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.cluster.cluster import Cluster


def main() -> None:
    with Cluster(Path(sys.argv[1])) as cluster:
        print(f"ENTER='nsenter --net --mount --target {os.getpid()}'")
        print(f"CLUSTER={cluster.folder}")
        print(f"KUBECONFIG={cluster.kubeconfig('admin')}")
        print(f"ENDPOINT={cluster.lab.node.endpoint}", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


main()
