"""An agent under attack."""

from __future__ import annotations

import time

from tests.cluster.agent.attackers import FORGED, ask
from tests.cluster.agent.program import Program
from tests.cluster.agent.standing import Cluster

MIB = 1 << 20
KEPT_BYTES = 32 * MIB
MOST_BYTES = 128 * MIB


def samples(cluster: Cluster, program: Program, seconds: float) -> list[float]:
    """Return how long the front proxy waits for each answer, on a new connection each time."""
    faults = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        assert ask(("127.0.0.1", program.port), "/apis", cluster.front_proxy, FORGED)[0] == 200
        faults.append(time.monotonic() - began)
        time.sleep(0.01)
    return faults
