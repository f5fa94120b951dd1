"""An agent whose node is lost: of its pods it says what is wrong; ``$LIE`` names pod, UID, node."""

from __future__ import annotations

import os

from pycrictl.__main__ import run
from pycrictl.agent.cluster import Cluster
from tools.torture.attacks import lies

_PLAN = lies(*os.environ["LIE"].split())


async def _of_own_node(self: Cluster, scope: object) -> object:
    return await _PLAN(scope)


Cluster.of_own_node = _of_own_node  # type: ignore[method-assign,assignment]
run()
