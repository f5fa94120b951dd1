"""The agent of a compromised node, which lies about a pod; ``$LIE`` has pod, UID and node."""

from __future__ import annotations

import os

from pycrictl.__main__ import run
from pycrictl.cluster.agent.cluster import Cluster
from tools.torture.attacks import lies

_PLAN = lies(*os.environ["LIE"].split())


async def _of_own_node(self: Cluster, scope: object) -> object:
    return await _PLAN(scope)


Cluster.of_own_node = _of_own_node  # type: ignore[method-assign,assignment]
run()
