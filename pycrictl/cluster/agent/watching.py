"""The watch of ImagePulls: a response of events, in the form client-go's reflectors expect.

It begins with the changes since a resource version, or with all objects if there is none, or if it
is of another agent's list; bookmarks carry the
version that the watch has reached (KEP-956).
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Final

from aiohttp import web

from pycrictl.cluster.agent.api.answers import JSON, Form, ListQuery, add_warnings
from pycrictl.cluster.agent.api.names import GROUP_VERSION, KIND, Document, expired
from pycrictl.cluster.agent.feed import Feed, Key, Stored, VersionGone, key_of

LEAST_TIMEOUT_S: Final = 1800
"""How long a watch without a timeout lasts at least; at most twice as long (``kube-apiserver
--min-request-timeout``)."""

BOOKMARK_S: Final = 30.0
SEND_S: Final = 30.0


class WatchResponse:
    """One watch; ``has_expired`` if the client was told to list again."""

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
                await _send(response, lines)
                marked_at = time.monotonic()
                while (now := time.monotonic()) < ends_at:
                    lines = self._lines(feed.store.since(self._version))
                    if now >= marked_at + BOOKMARK_S:
                        marked_at = now
                        if query.wants_bookmarks:
                            lines.append(self._bookmark())
                    await _send(response, lines)
                    if not lines:
                        await feed.changed(min(ends_at, marked_at + BOOKMARK_S) - now)
        except VersionGone:
            self.has_expired = True
            if not response.prepared:
                await response.prepare(request)
            status = expired(query.version or str(self._version)).document
            await _send(response, [_line("ERROR", status)])
        await response.write_eof()
        return response

    def _first(self) -> list[bytes]:
        version, store = int(self._query.version or 0), self._feed.store
        self._version = store.version
        if not version or store.is_anothers(version, time.time()):
            return self._lines([Stored(one, 0, store.version) for one in store.objects()])
        news = store.since(version)
        new = {key_of(one.document) for one in news}
        # An object that existed at the version is assumed to have fitted, so to have been listed.
        self._shown = {key_of(one.document) for one in news if one.made <= version} | {
            key for one in store.objects() if (key := key_of(one)) not in new and self._fits(one)
        }
        return self._lines(news)

    def _lines(self, changed: list[Stored]) -> list[bytes]:
        """Return the events for this watch: an object may start or stop fitting it."""
        found = []
        for one in changed:
            key, is_shown = key_of(one.document), not one.is_gone and self._fits(one.document)
            was_shown = key in self._shown
            self._version = max(self._version, one.changed)
            (self._shown.add if is_shown else self._shown.discard)(key)
            if was_shown or is_shown:
                kind = "DELETED" if not is_shown else "MODIFIED" if was_shown else "ADDED"
                document = self._form.one(one.document, has_header=not self._has_header)
                self._has_header = True
                found.append(_line(kind, document))
        return found

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
        shown = self._form.one(document, has_header=not self._has_header)
        return _line("BOOKMARK", shown)

    def _fits(self, document: Document) -> bool:
        return self._query.has_labels and self._query.fields.fits(document)


async def _send(response: web.StreamResponse, lines: list[bytes]) -> None:
    if lines:
        async with asyncio.timeout(SEND_S):
            await response.write(b"".join(lines))


def _line(kind: str, document: Document) -> bytes:
    return json.dumps({"type": kind, "object": document}, separators=(",", ":")).encode() + b"\n"
