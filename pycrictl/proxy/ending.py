"""What delays the end of a proxy, and for how long.

Before it stops, everything is served as before and only new pulls are refused: a program that
closed its socket at once would fail every call of kubelet for as long as a pull takes. After a
hand-over, what the new program does not have is waited for, and then that all connections are older
than gRPC lets them get: who was connected is connected to the new program by then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from pycrictl.proxy import server as clients
from pycrictl.proxy.copies.copy_service import CopyService
from pycrictl.proxy.pulls.book import Book
from pycrictl.proxy.pulls.limiter import PULL_PATHS
from pycrictl.proxy.pulls.reports import LINGER_S
from pycrictl.proxy.serve.stream_server import StreamServer
from pycrictl.proxy.serve.tokens import Tokens
from pycrictl.proxy.server import CriServer
from pycrictl.proxy.succession import Succession
from pycrictl.servicelog import Log

CALLS_S: Final = 10.0
"""How long other calls than pulls may delay the end, which comes in a moment without calls: none is
refused."""

WATCHED_S: Final = LINGER_S + 1.0
"""How long after the last pull its watchers may hold up the end."""

LEFT_S: Final = 1.0
"""How long clients may take to leave once their connection is too old."""

_LOOK_S: Final = 0.05


def ends(path: str) -> bool:
    """Return whether a call ends of its own accord; a stream lasts as long as its client."""
    name = path.rpartition("/")[2]
    return name != "GetContainerEvents" and not name.startswith("Stream")


def ends_soon(path: str) -> bool:
    return ends(path) and path not in PULL_PATHS


@dataclass(frozen=True)
class Ending:
    """Waits for what is under way, up to ``limit_s``, until ``at_once`` is set."""

    server: CriServer
    succession: Succession
    copies: CopyService
    streams: StreamServer[Any]
    tokens: Tokens[Any]
    book: Book
    limit_s: float | None
    log: Log
    at_once: asyncio.Event = field(default_factory=asyncio.Event)

    async def drain(self) -> None:
        limit_s = self.limit_s
        self.log.info("stopping", drain="no limit" if limit_s is None else limit_s)
        await self._while(lambda: bool(self._pulls() or self.copies.snapshot()), limit_s)
        if limit_s == 0:
            return
        # Watchers of a pull get its end.
        if self.book.ended:
            left_s = self.book.ended[-1].ended + WATCHED_S - asyncio.get_running_loop().time()
            await self._while(lambda: bool(self.streams.open_count), max(left_s, 0.0))
        await self._while(lambda: any(map(ends_soon, self.server.open_paths())), CALLS_S)

    async def finish(self) -> None:
        """Return when only the successor has work and clients."""
        await self._while(
            lambda: bool(
                self.book.running
                or self.copies.snapshot()
                or self.streams.open_count
                or self.tokens.outstanding(asyncio.get_running_loop().time())
                or any(map(ends, self.server.open_paths()))
            ),
            self.limit_s,
        )
        until = self.succession.handed_over_at + clients.AGE_S * (1 + clients.JITTER) + LEFT_S
        await self._while(lambda: asyncio.get_running_loop().time() < until, None)

    async def _while(self, is_busy: Callable[[], bool], limit_s: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while is_busy() and not self.at_once.is_set():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self.at_once.wait(), _LOOK_S)

    def _pulls(self) -> int:
        calls = sum(path in PULL_PATHS for path in self.server.open_paths())
        return calls + self.succession.adopted_count
