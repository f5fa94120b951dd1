"""Lists and watches of one scope: clients share rounds of queries; without clients there are none.

Versions let a watch resume where a list ended. They are integers that grow with time across all
agents: milliseconds, and in the last six decimal digits a tag of the agent's node. Only the agent
that issued a version can tell what it listed at that version. The API server may hand the watch
that follows a list to another agent, where it begins with all objects.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import time
import zlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Iterable
from typing import Final, NamedTuple, TypeAlias

from aiohttp import web

from pycrictl.base.errors import PycrictlError
from pycrictl.base.servicelog import Log
from pycrictl.cluster.agent.api.answers import JSON, Form, ListQuery, add_warnings
from pycrictl.cluster.agent.api.names import GROUP_VERSION, KIND, Document, expired
from pycrictl.cluster.agent.asyncapi import Reflector
from pycrictl.cluster.agent.cluster import Cluster, Scope
from pycrictl.kube.pods import Pod
from pycrictl.streams.loop import Changes, end_tasks

MAX_SHARE: Final = 0.1
"""The largest share of one CPU that rounds may take."""

LIST_KEPT_S: Final = 120.0
"""How long the last list is remembered, for watches that resume from it."""

POD_LIST_S: Final = 10.0
MAX_REMOVED: Final = 2000
"""How many deleted objects are remembered for watches that begin at an earlier version."""

LATELY_S: Final = 10.0
"""The maximum age of another agent's version from which a watch may continue."""

LEAST_TIMEOUT_S: Final = 1800
"""How long a watch without a timeout lasts at least; at most twice as long (``kube-apiserver
--min-request-timeout``)."""

BOOKMARK_S: Final = 30.0
SEND_S: Final = 30.0

_TAGS: Final = 1_000_000

Key: TypeAlias = tuple[str, str]
"""Namespace and name."""


class Stored(NamedTuple):
    """An object's last state; the versions of its appearance, and of its last change or removal."""

    document: Document
    made: int
    changed: int
    is_gone: bool = False


class VersionGone(Exception):
    """The changes since a version are no longer known."""


def tag_of(node: str) -> int:
    """Return the tag of a node's agent. Among 5,000 nodes, a few pairs share a tag."""
    return zlib.crc32(node.encode()) % _TAGS


def key_of(document: Document) -> Key:
    return document["metadata"]["namespace"], document["metadata"]["name"]


class ObjectStore:
    """The changing objects of a list, each change with a version. Pure: callers pass the time."""

    def __init__(self, tag: int, now_s: float) -> None:
        self._tag = tag
        self._objects: dict[Key, Stored] = {}
        self._removed: deque[Stored] = deque()
        self.version = self._oldest = self._version(now_s)

    def objects(self) -> list[Document]:
        return [self._objects[key].document for key in sorted(self._objects)]

    def find(self, key: Key) -> Document | None:
        stored = self._objects.get(key)
        return None if stored is None else stored.document

    def replace(self, documents: Iterable[Document], now_s: float) -> bool:
        """Replace all objects by these; return whether anything has changed.

        An object with the same name but another UID is a different object.
        """
        incoming = {key_of(document): document for document in documents}
        self.version = begun = max(self._version(now_s), self.version)
        for key, known in [*self._objects.items()]:
            after = incoming.get(key)
            if after is None or _uid_of(after) != _uid_of(known.document):
                del self._objects[key]
                self._removed.append(self._changed(known.document, known.made, is_gone=True))
        for key, document in incoming.items():
            before = self._objects.get(key)
            if before is None or not _is_same(before.document, document):
                self._objects[key] = self._changed(document, before.made if before else 0)
        while len(self._removed) > MAX_REMOVED:
            self._oldest = self._removed.popleft().changed
        return self.version > begun

    def is_anothers(self, version: int, now_s: float) -> bool:
        """Return whether another agent issued a version within the last ``LATELY_S``."""
        return version % _TAGS != self._tag and abs(now_s - version // _TAGS / 1000) < LATELY_S

    def since(self, version: int) -> list[Stored]:
        """Return the changes since a version, oldest first; raise VersionGone if unknown."""
        is_own = version % _TAGS == self._tag
        if not (is_own and self._oldest <= version <= self.version):
            raise VersionGone
        known = (*self._removed, *self._objects.values())
        return sorted(
            (stored for stored in known if stored.changed > version),
            key=lambda stored: stored.changed,
        )

    def _changed(self, document: Document, made: int, *, is_gone: bool = False) -> Stored:
        """Return an object with the next version; ``made`` is that of its appearance, 0 if new."""
        self.version += _TAGS
        shown = _versioned(document, self.version)
        return Stored(shown, made or self.version, self.version, is_gone)

    def _version(self, now_s: float) -> int:
        return int(now_s * 1000) * _TAGS + self._tag


def _versioned(document: Document, version: int) -> Document:
    return {**document, "metadata": {**document["metadata"], "resourceVersion": str(version)}}


def _uid_of(document: Document) -> str:
    return str(document["metadata"]["uid"])


def _is_same(before: Document, after: Document) -> bool:
    was, is_ = before["metadata"], after["metadata"]
    is_same_age = was.get("creationTimestamp") == is_.get("creationTimestamp")
    return is_same_age and all(before[key] == after[key] for key in ("status", "spec"))


class Feed:
    def __init__(
        self, cluster: Cluster, scope: Scope, tag: int, *, pace_s: float, fresh_s: float
    ) -> None:
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
        self.changes = Changes()
        self._pace_s, self._fresh_s = pace_s, fresh_s
        self._round_at = -math.inf
        self._log = Log(__name__)

    @property
    def is_idle(self) -> bool:
        return not self.watchers and time.monotonic() - self.used_at > LIST_KEPT_S

    async def refresh(self, version: int = 0) -> None:
        """Make a round if the last one is old, or older than another agent's ``version``."""
        self.used_at = time.monotonic()
        asked_at = self.used_at
        async with self._lock:
            if self._round_at < asked_at - self._fresh_s or self.store.version < version:
                await self._round()

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Ask the nodes for their pulls, again and again, while the block runs."""
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
            await asyncio.sleep(max(self._pace_s / 2, took_s / MAX_SHARE))
            # This node's pulls are polled at about the same pace: a round that follows a poll at
            # once shows bytes and times that are not a second old.
            await self._cluster.own_news(0.6 * self._pace_s)

    async def _round(self) -> None:
        pods = await self._pods()
        # Nodes are queried until they no longer report a pull: for a while after its end.
        nodes = {document["spec"].get("nodeName", "") for document in self.store.objects()} - {""}
        answers = await self._cluster.collect(self._scope, pods, nodes)
        objects = [document for document in answers.objects if self._scope.has(document)]
        has_changed = self.store.replace(objects, time.time())
        self.warnings = answers.warnings
        self._round_at = time.monotonic()
        self.rounds += 1
        if has_changed:
            self.changes.notify()

    async def _pods(self) -> list[Pod]:
        if self._reflector is not None:
            await self._reflector.ready(POD_LIST_S)
            return list(self._reflector.items.values())
        return await self._cluster.pods(self._scope)


class Feeds:
    """The feeds of all scopes.

    Args:
        pace_s: the time between two rounds of a watch; longer if a round takes much CPU time.
        fresh_s: how old the last round may be for a list.
        max_feeds: how many are kept if nobody watches them.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        pace_s: float = 1.0,
        fresh_s: float = 0.5,
        max_feeds: int = 256,
    ) -> None:
        self.pace_s, self.fresh_s, self.max_feeds = pace_s, fresh_s, max_feeds
        self._cluster = cluster
        self._tag = tag_of(cluster.node)
        self._feeds: OrderedDict[Scope, Feed] = OrderedDict()

    def get(self, scope: Scope) -> Feed:
        feed = self._feeds.get(scope)
        if feed is None or feed.is_idle:
            times = {"pace_s": self.pace_s, "fresh_s": self.fresh_s}
            feed = self._feeds[scope] = Feed(self._cluster, scope, self._tag, **times)
        self._feeds.move_to_end(scope)
        self._forget()
        return feed

    async def close(self) -> None:
        for feed in self._feeds.values():
            await feed.stop()

    def _forget(self) -> None:
        for scope, feed in [*self._feeds.items()][:-1]:
            is_surplus = len(self._feeds) > self.max_feeds and not feed.watchers
            if feed.is_idle or is_surplus:
                del self._feeds[scope]


class WatchResponse:
    """One watch: a response of events, in the form that client-go's reflectors expect.

    It begins with the changes since a resource version, or with all objects if the request has no
    version or another agent's; bookmarks carry the version that the watch has reached (KEP-956).

    Attributes:
        has_expired: whether the client was told to list again.
    """

    def __init__(self, feed: Feed, query: ListQuery, form: Form) -> None:
        self._feed = feed
        self._query = query
        self._form = form
        self._shown: set[Key] = set()
        self._has_header = False
        self._version = 0
        self.has_expired = False

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        query, feed = self._query, self._feed
        timeout_s = query.timeout_s or random.randint(LEAST_TIMEOUT_S, 2 * LEAST_TIMEOUT_S)
        ends_at = time.monotonic() + timeout_s
        await feed.refresh(int(query.version or 0))
        response = web.StreamResponse(headers={"Content-Type": JSON, "Cache-Control": "no-cache"})
        response.enable_chunked_encoding()
        add_warnings(response, feed.warnings)
        try:
            async with feed.watching():
                lines = self._first()
                await response.prepare(request)
                await send_lines(response, lines)
                marked_at = time.monotonic()
                while (now := time.monotonic()) < ends_at:
                    lines = self._lines(feed.store.since(self._version))
                    if now >= marked_at + BOOKMARK_S:
                        marked_at = now
                        if query.wants_bookmarks:
                            lines.append(self._bookmark())
                    await send_lines(response, lines)
                    if not lines:
                        await feed.changes.wait(min(ends_at, marked_at + BOOKMARK_S) - now)
        except VersionGone:
            self.has_expired = True
            if not response.prepared:
                await response.prepare(request)
            status = expired(query.version or str(self._version)).document
            await send_lines(response, [_line("ERROR", status)])
        await response.write_eof()
        return response

    def _first(self) -> list[bytes]:
        version, store = int(self._query.version or 0), self._feed.store
        self._version = store.version
        if not version or store.is_anothers(version, time.time()):
            return self._lines([Stored(document, 0, store.version) for document in store.objects()])
        news = store.since(version)
        new = {key_of(stored.document) for stored in news}
        # An object that existed at the version is assumed to have fitted, so to have been listed.
        self._shown = {key_of(stored.document) for stored in news if stored.made <= version} | {
            key
            for document in store.objects()
            if (key := key_of(document)) not in new and self._query.fits(document)
        }
        return self._lines(news)

    def _lines(self, changed: list[Stored]) -> list[bytes]:
        """Return the events for this watch: an object may start or stop fitting it."""
        lines = []
        for stored in changed:
            key, is_shown = (
                key_of(stored.document),
                not stored.is_gone and self._query.fits(stored.document),
            )
            was_shown = key in self._shown
            self._version = max(self._version, stored.changed)
            (self._shown.add if is_shown else self._shown.discard)(key)
            if was_shown or is_shown:
                kind = "DELETED" if not is_shown else "MODIFIED" if was_shown else "ADDED"
                document = self._form.single(stored.document, has_header=not self._has_header)
                self._has_header = True
                lines.append(_line(kind, document))
        return lines

    def _bookmark(self) -> bytes:
        self._version = max(self._version, self._feed.store.version)
        version = {"resourceVersion": str(self._version)}
        document = {
            "apiVersion": GROUP_VERSION,
            "kind": KIND,
            "metadata": {"name": "", **version, "creationTimestamp": None},
            "spec": {},
            "status": {},
        }
        shown = self._form.single(document, has_header=not self._has_header)
        return _line("BOOKMARK", shown)


async def send_lines(response: web.StreamResponse, lines: list[bytes]) -> None:
    if lines:
        async with asyncio.timeout(SEND_S):
            await response.write(b"".join(lines))


def _line(kind: str, document: Document) -> bytes:
    return json.dumps({"type": kind, "object": document}, separators=(",", ":")).encode() + b"\n"
