"""The layers of running pulls, as containerd or CRI-O show them: one poller for all watchers.

It polls in a thread, since it waits for containerd and for files, and only while somebody watches
and a pull is running. With another runtime it gives up after the first try.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from pycrictl.cri.calls.client import CriClient
from pycrictl.errors import PycrictlError, Unimplemented
from pycrictl.progress.sources import open_watcher
from pycrictl.pulls.speed import Speed
from pycrictl.pulls.tracker import Item, Phase, Tracker
from pycrictl.servicelog import Log

if TYPE_CHECKING:
    from pycrictl.progress.content import ContentWatcher, PollResult
    from pycrictl.progress.crio.watcher import CrioWatcher
    from pycrictl.progress.names import Expected
    from pycrictl.progress.registry.question import Credentials
    from pycrictl.progress.weight import Weight

POLL_INTERVAL_S: Final = 0.3
RETRY_PAUSE_S: Final = 2.0
STRANGER_S: Final = 3.0
"""How long after its end a pull that did not pass through the proxy is still reported."""

MAX_ENDED: Final = 200
"""How many images nobody pulls any more have their layers remembered."""

_TIMEOUT_S: Final = 2.0

_RATE_WINDOW_S: Final = 8.0

T = TypeVar("T")


class Progress(NamedTuple):
    """How far a running pull is.

    Attributes:
        done_bytes: of all layers, those that were there included.
        total_bytes: of the same; 0 while that is unknown of some.
        rate: bytes a second; None while it is not known.
        is_unpacking: everything is there and not yet unpacked.
    """

    done_bytes: int
    total_bytes: int
    rate: float | None = None
    is_unpacking: bool = False

    @property
    def percent(self) -> float | None:
        """Return what share is there; None while no total is known."""
        return 100.0 * self.done_bytes / self.total_bytes if self.total_bytes else None

    @property
    def left_s(self) -> float | None:
        """Return how long the rest takes at this rate; None if that cannot be told."""
        if not self.rate or self.is_unpacking or not self.total_bytes:
            return None
        return (self.total_bytes - self.done_bytes) / self.rate


@dataclass(slots=True, eq=False)
class _Known:
    reference: str
    since_s: float
    credentials: Credentials | None
    speed: Speed
    got_bytes: int = 0
    expected: Expected | None = None


@dataclass(slots=True, eq=False)
class _Connection:
    client: CriClient
    watcher: ContentWatcher | CrioWatcher
    tracker: Tracker

    def poll(self, forgotten: set[str]) -> tuple[PollResult, dict[str, list[Item]]]:
        """Look once; return the layers by the name of their image, too.

        Args:
            forgotten: images of which only the pulls that run now count.
        """
        for name in forgotten:
            self.tracker.forget(name)
        now = time.monotonic()
        result = self.watcher.poll(self.tracker, now)
        for name in forgotten - {pull.image for pull in result.active}:
            self.tracker.forget(name)  # an earlier pull had ended since the last look
        items: dict[str, list[Item]] = {}
        for item in self.tracker.view(now).items:
            items.setdefault(item.image, []).append(item)
        return result, items


class LayerPoller:
    """What is known of the layers of all pulls.

    Args:
        path: of the runtime's socket.
        log: gets a line when the runtime cannot be asked.
        on_look: called after every look.
        wants_manifests: whether registries may be asked for what CRI-O does not show.
    """

    def __init__(
        self, path: str, *, log: Log, on_look: Callable[[], None], wants_manifests: bool = True
    ) -> None:
        self._path = path
        self._log = log
        self._on_look = on_look
        self._wants_manifests = wants_manifests
        self._pulls: dict[int, _Known] = {}
        self._items: dict[str, list[Item]] = {}
        self._forgotten: set[str] = set()
        self._strangers: dict[str, float] = {}
        self._met_at = 0.0
        self._watchers = self._node_watchers = 0
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._looked = asyncio.Event()
        self._connection: _Connection | None = None
        self._can_see = True
        self._executor: ThreadPoolExecutor | None = None
        self._lock = asyncio.Lock()
        self._has_complained = False

    # Which pulls run

    def begin(
        self,
        pull: int,
        reference: str,
        since_s: float,
        credentials: Credentials | None = None,
        *,
        is_joined: bool = False,
    ) -> None:
        """Follow a pull that is about to be asked of the runtime.

        Args:
            pull: its number.
            reference: the image, as the request spells it.
            since_s: wall time.
            credentials: those of the request.
            is_joined: an equal pull has just succeeded, and its layers are shown until those of
                this one are known.
        """
        if not is_joined and not any(
            known.reference == reference for known in self._pulls.values()
        ):
            self._items.pop(reference, None)
            self._forgotten.add(reference)
        known = self._pulls[pull] = _Known(reference, since_s, credentials, Speed(_RATE_WINDOW_S))
        known.speed.start(time.monotonic())
        if self._connection is not None:
            known.expected = self._connection.watcher.expect(reference, since_s, credentials)
        self._looked.clear()
        self._wanted.set()

    def end(self, pull: int) -> None:
        """Stop following a pull."""
        known = self._pulls.pop(pull, None)
        if known is not None and known.expected is not None and self._connection is not None:
            self._connection.watcher.forget(known.expected)

    # What is seen of them

    def items(self, reference: str) -> list[Item]:
        """Return the layers of an image as a pull, running or just ended, names it."""
        return self._items.get(reference, [])

    def progress(self, pull: int) -> Progress | None:
        """Return how far a running pull is; None while nothing is known of its layers."""
        known = self._pulls.get(pull)
        items = self.items(known.reference) if known is not None else []
        if known is None or not items:
            return None
        done_bytes = sum(item.progress for item in items)
        has_total = all(item.total or not item.progress for item in items)
        total_bytes = sum(item.total for item in items) if has_total else 0
        rate = known.speed.rate(time.monotonic())
        return Progress(done_bytes, total_bytes, rate, 0 < total_bytes == done_bytes)

    def strangers(self) -> dict[str, tuple[list[Item], bool]]:
        """Return the pulls of others by image: their layers, and whether they are running.

        They are known while somebody watches the whole node, and a moment longer than they run.
        """
        met = self._strangers.items()
        return {image: (self.items(image), at == self._met_at) for image, at in met}

    @contextlib.asynccontextmanager
    async def watching(self, *, whole_node: bool = False) -> AsyncIterator[None]:
        """Have the layers followed while the block runs; it begins after a first look.

        Args:
            whole_node: look also while no pull passes through the proxy.
        """
        self._watchers += 1
        self._node_watchers += whole_node
        try:
            if self._task is None:
                self._looked = asyncio.Event()  # a task that is ending may set its own
                self._task = asyncio.create_task(self._run(self._looked))
            self._wanted.set()
            if (self._pulls or whole_node) and self._can_see:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_TIMEOUT_S):
                        await self._looked.wait()
            yield
        finally:
            self._watchers -= 1
            self._node_watchers -= whole_node
            if not self._watchers and self._task is not None:
                self._task.cancel()
                self._task = None

    async def running(self) -> list[str] | None:
        """Return the leases of all pulls running at the runtime, the proxy's or not.

        Returns:
            None if the runtime does not show them or cannot be asked.
        """
        result = await self._look()
        return None if result is None else [pull.lease_id for pull in result.active]

    async def gone(self, lease_id: str) -> None:
        """Return when a pull of ``running`` has ended, or the runtime cannot be asked."""
        while True:
            if lease_id not in (await self.running() or ()):
                return
            await asyncio.sleep(POLL_INTERVAL_S)

    async def refresh(self) -> None:
        """Look once if nobody watches."""
        if self._task is None and self._pulls:
            await self._look()

    async def weigh(self, name: str, since_s: float) -> Weight | None:
        """Return what a pull took that has just ended; see ``progress.weight``.

        Returns:
            None if the runtime is not containerd, cannot be asked or has no such image.
        """
        return await self._ask(lambda connection: connection.watcher.weigh(name, since_s))

    async def close(self) -> None:
        """End polling for good."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        async with self._lock:
            self._disconnect()
        if self._executor is not None:
            self._executor.shutdown(wait=False)

    async def _run(self, looked: asyncio.Event) -> None:
        try:
            while self._can_see:
                if not self._pulls and not self._node_watchers:
                    self._wanted.clear()
                    await self._wanted.wait()
                is_well = await self._look() is not None
                looked.set()
                self._on_look()
                await asyncio.sleep(POLL_INTERVAL_S if is_well else RETRY_PAUSE_S)
        finally:
            looked.set()

    async def _look(self) -> PollResult | None:
        forgotten, self._forgotten = self._forgotten, set()
        looked = await self._ask(lambda connection: connection.poll(forgotten))
        if looked is None:
            return None
        result, items = looked
        mine = {known.reference for known in self._pulls.values()}
        self._items = {name: found for name, found in items.items() if name not in self._forgotten}
        self._meet({pull.image for pull in result.active if pull.image} - mine)
        others = items.keys() - mine - {pull.image for pull in result.active}
        if len(others) > MAX_ENDED:
            self._forgotten |= others
        now = time.monotonic()
        for known in self._pulls.values():
            layers = self.items(known.reference)
            got = sum(item.progress for item in layers if item.phase is not Phase.PRESENT)
            known.speed.record(max(got - known.got_bytes, 0), now)
            known.got_bytes = got
        return result

    def _meet(self, images: set[str]) -> None:
        """Note whose pulls are running that did not pass through the proxy."""
        now = self._met_at = asyncio.get_running_loop().time()
        self._strangers |= dict.fromkeys(images, now)
        kept = {image: at for image, at in self._strangers.items() if now - at < STRANGER_S}
        self._strangers = kept if self._node_watchers else {}

    async def _ask(self, work: Callable[[_Connection], T]) -> T | None:
        """Ask containerd in a thread; None if the runtime is another or does not answer."""
        if not self._can_see:
            return None
        async with self._lock:
            try:
                if self._connection is None:
                    self._connect(await self._in_thread(self._open))
                connection = self._connection
                assert connection is not None
                result = await self._in_thread(lambda: work(connection))
            except Unimplemented:
                self._can_see = False
                self._disconnect()
                return None
            except PycrictlError as exc:
                # gRPC would try again ever more seldom; a new connection is tried at once.
                self._disconnect()
                if not self._has_complained:
                    self._log.warning("layers_unknown", error=exc.message)
                self._has_complained = True
                return None
        self._has_complained = False
        return result

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="layers")
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _open(self) -> _Connection:
        client = CriClient(self._path, timeout_s=_TIMEOUT_S)
        try:
            watcher, _ = open_watcher(client, wants_manifests=self._wants_manifests)
        except BaseException:
            client.close()
            raise
        return _Connection(client, watcher, Tracker())

    def _connect(self, connection: _Connection) -> None:
        self._connection = connection
        for known in self._pulls.values():
            known.expected = connection.watcher.expect(
                known.reference, known.since_s, known.credentials
            )

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.client.close()
            self._connection = None
