"""First come, first served: a question to the runtime must not change who came first."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


class Turns:
    """Lets those who ask at the same time go on in the order in which they came."""

    def __init__(self) -> None:
        self._last: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last.set_result(None)

    async def take(self, work: Coroutine[object, object, T]) -> T:
        """Return the result of ``work``, not before those who came before have theirs.

        Who gives up or fails keeps nobody waiting who comes later.
        """
        before, mine = self._last, asyncio.get_running_loop().create_future()
        self._last = mine

        def pass_on(_: asyncio.Future[None] | None = None) -> None:
            mine.set_result(None)

        try:
            result = await work
            await asyncio.shield(before)
            return result
        finally:
            if before.done():
                pass_on()
            else:
                before.add_done_callback(pass_on)
