"""Whether the runtime behind the proxy answers."""

from __future__ import annotations

import asyncio
from typing import Final

from pycrictl.proxy.lookup import version
from pycrictl.proxy.upstream import Upstream
from pycrictl.wire.codes import DEADLINE_EXCEEDED, UNAVAILABLE

TIMEOUT_S: Final = 2.0
FRESH_S: Final = 1.0
"""How long an answer counts for all who ask."""


class Health:
    """Asks the runtime for its version; any answer of its own will do."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._asked_at = -FRESH_S
        self._problem = ""
        self._lock = asyncio.Lock()

    async def problem(self) -> str:
        """Return why the runtime does not answer; empty if it does."""
        loop = asyncio.get_running_loop()
        async with self._lock:
            if loop.time() - self._asked_at >= FRESH_S:
                answer = await version(self._upstream, TIMEOUT_S)
                is_down = answer.code in (UNAVAILABLE, DEADLINE_EXCEEDED)
                self._problem = answer.message if is_down else ""
                self._asked_at = loop.time()
        return self._problem
