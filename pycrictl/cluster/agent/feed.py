"""Lists and watches of one scope: all clients share its rounds; without clients there are none."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Final

from pycrictl.base.errors import PycrictlError
from pycrictl.base.servicelog import Log
from pycrictl.cluster.agent.api.discovery import MAX_TEXT
from pycrictl.cluster.agent.api.names import Document
from pycrictl.cluster.agent.cluster import Cluster, Round, Scope
from pycrictl.cluster.agent.object_store import Key, ObjectStore, VersionGone, key_of, tag_of
from pycrictl.cluster.agent.objects import PullPhase
from pycrictl.cluster.agent.reflector import Reflector
from pycrictl.kube.pods import Pod
from pycrictl.streams.loop import end_tasks

PACE_S: Final = 1.0
"""The time between two rounds of a watch; longer if a round takes much CPU time."""

MAX_SHARE: Final = 0.1
"""The largest share of one CPU that rounds may take."""

FRESH_S: Final = 0.5
DONE_S: Final = 30.0
"""How long an object stays listed after its node last reported it, if its pull succeeded or the
node does not answer. Pods that wait on such a node have objects anyway."""

IDLE_S: Final = 120.0
"""How long the last list is remembered, for watches that resume from it."""

MAX_FEEDS: Final = 256
POD_LIST_S: Final = 10.0


class Feed:
    def __init__(self, cluster: Cluster, scope: Scope, tag: int) -> None:
        self.store = ObjectStore(tag, time.time())
        self.warnings: list[str] = []
        self.used_at = time.monotonic()
        self.rounds = 0
        self._cluster = cluster
        self._scope = scope
        self.watchers = 0
        self._task: asyncio.Task[None] | None = None
        self._reflector: Reflector[Pod] | None = None
        self._lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self._round_at = -FRESH_S
        self._addresses: dict[str, str] = {}
        self._left: dict[Key, float] = {}  # when objects that are now missing were last reported
        self._log = Log(__name__)

    @property
    def is_idle(self) -> bool:
        return not self.watchers and time.monotonic() - self.used_at > IDLE_S

    async def refresh(self, version: int = 0) -> None:
        """Make a round if the last one is old, or older than another agent's ``version``."""
        self.used_at = time.monotonic()
        asked_at = self.used_at
        async with self._lock:
            if self._round_at < asked_at - FRESH_S or self.store.version < version:
                await self._round()

    async def listed(self, version: int) -> list[Document] | None:
        if self.store.is_own(version):
            return None
        return await self._cluster.listed(self._scope, version)

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Make rounds while the block runs."""
        self.watchers += 1
        if self._task is None:
            self._reflector = self._cluster.reflector(self._scope)
            self._reflector.start()
            self._task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            self.watchers -= 1
            self.used_at = time.monotonic()
            if not self.watchers:
                await self.stop()

    async def changed(self, timeout_s: float) -> None:
        """Return when objects have changed, or after a time limit in seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    async def stop(self) -> None:
        # Clear both fields first: another watch may begin while they end.
        task, self._task = self._task, None
        reflector, self._reflector = self._reflector, None
        if task is not None:
            await end_tasks([task])
        if reflector is not None:
            await reflector.stop()

    async def _run(self) -> None:
        while True:
            begun_s = time.thread_time()
            try:
                async with self._lock:
                    await self._round()
            except PycrictlError as exc:
                self._log.info("no_round", error=exc.message)
            took_s = time.thread_time() - begun_s
            await asyncio.sleep(max(PACE_S, took_s / MAX_SHARE))

    async def _round(self) -> None:
        pods = await self._pods()
        for pod in pods:
            if pod.node and pod.host_ip:
                self._addresses[pod.node] = pod.host_ip
        found = await self._cluster.collect(self._scope, pods, self._unfinished())
        self._put(found)

    async def _pods(self) -> list[Pod]:
        if self._reflector is not None:
            await self._reflector.ready(POD_LIST_S)
            return list(self._reflector.items.values())
        return await self._cluster.pods(self._scope)

    def _unfinished(self) -> dict[str, str]:
        nodes: dict[str, str] = {}
        for one in self.store.objects():
            node = one["spec"].get("nodeName", "")
            if node and one["status"]["phase"] != PullPhase.SUCCEEDED:
                nodes[node] = self._addresses.get(node, "")
        return nodes

    def _put(self, found: Round) -> None:
        now = time.monotonic()
        left: dict[Key, float] = {}
        objects = {key_of(one): one for one in found.objects if self._scope.has(one)}
        for one in self.store.objects():
            key, node = key_of(one), one["spec"].get("nodeName", "")
            if key in objects:
                continue
            left[key] = seen_at = self._left.get(key, self._round_at)
            if now - seen_at >= DONE_S:
                continue
            if one["status"]["phase"] == PullPhase.SUCCEEDED:
                objects[key] = one
            elif node in found.silent:
                objects[key] = _unknown(one, found.silent[node])
        self._left = left
        has_changed = self.store.replace(objects.values(), time.time())
        self.warnings = found.warnings
        self._round_at = now
        self.rounds += 1
        if has_changed:
            self._changed.set()
            self._changed = asyncio.Event()


class Feeds:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._tag = tag_of(cluster.node)
        self._feeds: OrderedDict[Scope, Feed] = OrderedDict()

    def get(self, scope: Scope) -> Feed:
        feed = self._feeds.get(scope)
        if feed is None or feed.is_idle:
            feed = self._feeds[scope] = Feed(self._cluster, scope, self._tag)
        self._feeds.move_to_end(scope)
        self._forget()
        return feed

    def listed(self, scope: Scope, version: int) -> list[Document]:
        if (feed := self._feeds.get(scope)) is None:
            raise VersionGone
        return feed.store.listed(version)

    async def close(self) -> None:
        for feed in self._feeds.values():
            await feed.stop()

    def _forget(self) -> None:
        for scope, feed in [*self._feeds.items()][:-1]:
            is_surplus = len(self._feeds) > MAX_FEEDS and not feed.watchers
            if feed.is_idle or is_surplus:
                del self._feeds[scope]


def _unknown(document: Document, why: str) -> Document:
    node = document["spec"].get("nodeName", "")
    status = {
        **document["status"],
        "unknown": True,
        "error": f"node {node} did not answer: {why}"[:MAX_TEXT],
    }
    return {**document, "status": status}
