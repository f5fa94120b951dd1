"""The layers of running pulls on containerd or CRI-O: one poller for all watchers.

It polls in a thread, since it waits for the runtime and for files, and only while a running pull or
the whole node is watched, and for a moment longer. With another runtime it stops after one try.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

from pycrictl.base.errors import PycrictlError, Unimplemented
from pycrictl.base.servicelog import Log
from pycrictl.pulls.sources.content_watcher import ContentWatcher
from pycrictl.pulls.sources.crio.watcher import CrioWatcher
from pycrictl.pulls.sources.endings import PollResult
from pycrictl.pulls.sources.node_watch import open_watcher
from pycrictl.pulls.sources.pull_names import Expected
from pycrictl.pulls.state import PullState
from pycrictl.pulls.tracker import Tracker
from pycrictl.runtime.cri.calls.client import CriClient

MAX_ENDED: Final = 200
"""The number of images whose layers are kept after their pulls."""

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _RuntimeWatch:
    client: CriClient
    watcher: ContentWatcher | CrioWatcher
    tracker: Tracker

    def poll(self, forgotten: set[str]) -> tuple[PollResult, dict[str, PullState]]:
        """Poll once; forget earlier pulls of the images in ``forgotten``."""
        for name in forgotten:
            self.tracker.forget(name)
        now = time.monotonic()
        result = self.watcher.poll(now)
        result.apply_to(self.tracker, now)
        for name in forgotten - {pull.image for pull in result.active}:
            self.tracker.forget(name)  # an earlier pull had ended since the last poll
        return result, dict(self.tracker.view(now, time.time()).pulls)


@dataclass(eq=False)
class LayerPoller:
    """Polls a runtime while anybody watches."""

    path: str  # The runtime's socket
    log: Log
    on_poll: Callable[[], None]  # Called after each poll
    interval_s: float = 0.3  # The pause after a poll
    retry_s: float = 2.0  # The pause after one that failed
    linger_s: float = 5.0  # How long it polls on without watchers, so that repeated calls get rates
    others_s: float = 3.0  # How long a pull not made by the proxy is reported after its end
    timeout_s: float = 2.0  # How long a call, and a first poll, may take

    def __post_init__(self) -> None:
        self._pulls: dict[int, Expected] = {}
        self._seen: dict[str, PullState] = {}
        self._forgotten: set[str] = set()
        self._others: dict[str, float] = {}
        self._polled_at = self._left_at = 0.0
        self._watchers = self._node_watchers = 0
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._polled = asyncio.Event()
        self._connection: _RuntimeWatch | None = None
        self._can_see = True
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="layers")
        self._lock = asyncio.Lock()
        self._has_complained = False

    # Running pulls

    def begin(self, ticket: int, expected: Expected, *, is_joined: bool = False) -> None:
        """Follow a call that is about to go to the runtime.

        If it ``is_joined``, an equal call has just succeeded, whose layers are shown until those of
        this call are known.
        """
        reference = expected.reference
        if not is_joined and all(pull.reference != reference for pull in self._pulls.values()):
            self._seen.pop(reference, None)
            self._forgotten.add(reference)
        self._pulls[ticket] = expected
        if self._connection is not None:
            self._connection.watcher.expect(expected)
        self._polled.clear()
        self._wanted.set()

    def end(self, ticket: int) -> None:
        expected = self._pulls.pop(ticket, None)
        if expected is not None and self._connection is not None:
            self._connection.watcher.forget(expected)

    # Results

    def seen(self, reference: str) -> PullState:
        """Return the last pull of an image as far as it is known."""
        return self._seen.get(reference) or PullState()

    def others(self) -> dict[str, PullState]:
        """Return pulls not made through the proxy; none unless the whole node is watched."""
        return {
            image: replace(self.seen(image), image=image, is_running=at == self._polled_at)
            for image, at in self._others.items()
        }

    @contextlib.asynccontextmanager
    async def watching(self, *, whole_node: bool = False) -> AsyncIterator[None]:
        """Poll layers while the block runs, which begins after a first poll or a timeout."""
        self._watchers += 1
        self._node_watchers += whole_node
        try:
            if self._task is None or self._task.done():
                self._polled = asyncio.Event()  # a task that is ending may still set its own
                self._task = asyncio.create_task(self._run(self._polled))
            self._wanted.set()
            if (self._pulls or whole_node) and self._can_see:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.timeout_s):
                        await self._polled.wait()
            yield
        finally:
            self._watchers -= 1
            self._node_watchers -= whole_node
            self._left_at = asyncio.get_running_loop().time()

    async def refresh(self) -> None:
        """Wait until the state of running pulls is at most one poll old."""
        if self._pulls:
            async with self.watching():
                pass

    async def ended(self, image: str, began_s: float) -> PullState | None:
        """Return a pull that has just ended; None if the runtime has no data on it."""
        return await self._ask(lambda runtime: runtime.watcher.ended(image, began_s))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        async with self._lock:
            self._disconnect()
        self._executor.shutdown(wait=False)

    async def _run(self, polled: asyncio.Event) -> None:
        now = asyncio.get_running_loop().time
        try:
            while self._can_see and (self._watchers or now() < self._left_at + self.linger_s):
                if not self._pulls and not self._node_watchers:
                    self._wanted.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self.linger_s):
                            await self._wanted.wait()
                    continue
                is_well = await self._poll() is not None
                polled.set()
                self.on_poll()
                await asyncio.sleep(self.interval_s if is_well else self.retry_s)
        finally:
            polled.set()

    async def _poll(self) -> PollResult | None:
        forgotten, self._forgotten = self._forgotten, set()
        polled = await self._ask(lambda connection: connection.poll(forgotten))
        if polled is None:
            return None
        result, seen = polled
        mine = {pull.reference for pull in self._pulls.values()}
        self._seen = {name: pulls for name, pulls in seen.items() if name not in self._forgotten}
        active = {pull.image for pull in result.active}
        now = self._polled_at = asyncio.get_running_loop().time()
        self._others |= dict.fromkeys(filter(None, active - mine), now)
        kept = {image: at for image, at in self._others.items() if now - at < self.others_s}
        self._others = kept if self._node_watchers else {}
        ended = seen.keys() - mine - active
        if len(ended) > MAX_ENDED:
            self._forgotten |= ended
        return result

    async def _ask(self, work: Callable[[_RuntimeWatch], T]) -> T | None:
        """Run ``work`` in the thread; None if the runtime is unsupported or does not answer."""
        if not self._can_see:
            return None
        in_thread = partial(asyncio.get_running_loop().run_in_executor, self._executor)
        async with self._lock:
            try:
                if (connection := self._connection) is None:
                    connection = self._connection = await in_thread(self._open)
                    for expected in self._pulls.values():
                        expected.lease_id = None
                        connection.watcher.expect(expected)
                result = await in_thread(work, connection)
            except Unimplemented:
                self._can_see = False
                self._disconnect()
                return None
            except PycrictlError as exc:
                # gRPC would retry at growing intervals; a new connection is tried at once.
                self._disconnect()
                if not self._has_complained:
                    self.log.warning("layers_unknown", error=exc.message)
                self._has_complained = True
                return None
        self._has_complained = False
        return result

    def _open(self) -> _RuntimeWatch:
        client = CriClient(self.path, timeout_s=self.timeout_s)
        try:
            watcher = open_watcher(client)
        except BaseException:
            client.close()
            raise
        return _RuntimeWatch(client, watcher, Tracker())

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.client.close()
            self._connection = None
