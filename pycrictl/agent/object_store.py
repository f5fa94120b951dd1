"""The objects of a list as they change, each change with a version. Pure: no clock of its own.

Versions are what makes a watch go on where a list ended. They are whole numbers that grow with
time, of whichever agent: milliseconds, and in the last six decimals a tag of the agent's node. What
another agent had listed at a version of its own only that agent can say.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from pycrictl.agent.api.names import Document

MAX_REMOVED: Final = 2000
"""How many deleted objects are remembered for watches that begin at an earlier version."""

_TAGS: Final = 1_000_000

Key: TypeAlias = tuple[str, str]
"""Namespace and name."""


class Change(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class WatchEvent(NamedTuple):
    """A change of one object, which it shows as it is afterwards."""

    change: Change
    document: Document
    version: int


class VersionGone(Exception):
    """What has changed since a version is not known any more."""


def tag_of(node: str) -> int:
    """Return the tag of a node's agent. Of 5,000 nodes, some pairs share one; most do not."""
    return zlib.crc32(node.encode()) % _TAGS


def is_of(version: int, node: str) -> bool:
    return version % _TAGS == tag_of(node)


def key_of(document: Document) -> Key:
    return document["metadata"]["namespace"], document["metadata"]["name"]


class ObjectStore:
    def __init__(self, tag: int, now_s: float) -> None:
        self._tag = tag
        self._objects: dict[Key, tuple[Document, int, int]] = {}  # made at, changed at
        self._removed: deque[WatchEvent] = deque()
        self.version = self._oldest = self._version(now_s)

    def objects(self) -> list[Document]:
        return [self._objects[key][0] for key in sorted(self._objects)]

    def find(self, key: Key) -> Document | None:
        found = self._objects.get(key)
        return None if found is None else found[0]

    def replace(self, documents: Iterable[Document], now_s: float) -> list[WatchEvent]:
        """Take these for all the objects that there are; return what has changed.

        An object of the same name and another UID is another object.
        """
        incoming = {key_of(one): one for one in documents}
        events: list[WatchEvent] = []
        version = max(self._version(now_s), self.version + _TAGS)
        for key in [*self._objects]:
            before = self._objects[key][0]
            after = incoming.get(key)
            if after is None or after["metadata"]["uid"] != before["metadata"]["uid"]:
                del self._objects[key]
                event = WatchEvent(Change.DELETED, _versioned(before, version), version)
                events.append(event)
                self._removed.append(event)
                version += _TAGS
        for key, document in incoming.items():
            found = self._objects.get(key)
            if found is not None and _is_same(found[0], document):
                continue
            made = version if found is None else found[1]
            change = Change.ADDED if found is None else Change.MODIFIED
            shown = _versioned(document, version)
            self._objects[key] = shown, made, version
            events.append(WatchEvent(change, shown, version))
            version += _TAGS
        self.version = events[-1].version if events else max(self.version, self._version(now_s))
        while len(self._removed) > MAX_REMOVED:
            self._oldest = self._removed.popleft().version
        return events

    def is_own(self, version: int) -> bool:
        return version % _TAGS == self._tag

    def since(self, version: int) -> list[WatchEvent]:
        """Return what has changed since a version, the oldest first; else raise VersionGone."""
        if not (self.is_own(version) and self._oldest <= version <= self.version):
            raise VersionGone
        events = [event for event in self._removed if event.version > version]
        for document, made, changed in self._objects.values():
            if changed > version:
                change = Change.ADDED if made > version else Change.MODIFIED
                events.append(WatchEvent(change, document, changed))
        return sorted(events, key=lambda event: event.version)

    def listed(self, version: int) -> list[Document]:
        """Return the objects that there were at a version, as they were seen last."""
        news = self.since(version)
        made = {key_of(event.document) for event in news if event.change is Change.ADDED}
        return [
            *(one for one in self.objects() if key_of(one) not in made),
            *(event.document for event in news if event.change is Change.DELETED),
        ]

    def differences(self, listed: Iterable[Document], version: int) -> list[WatchEvent]:
        """Return what is different from what another agent had ``listed`` at its version.

        What is gone comes first. Versions of this store are higher from now on.
        """
        before = {key_of(one): one for one in listed}
        self.version = at = max(self.version, (version // _TAGS + 1) * _TAGS + self._tag)
        gone, rest = [], []
        for key, was in before.items():
            found = self.find(key)
            if found is None or found["metadata"]["uid"] != was["metadata"]["uid"]:
                gone.append(WatchEvent(Change.DELETED, _versioned(was, at), at))
        for document in self.objects():
            known = before.get(key_of(document))
            if known is None or known["metadata"]["uid"] != document["metadata"]["uid"]:
                change = Change.ADDED
            elif _is_same(known, document) and int(known["metadata"]["resourceVersion"]) <= version:
                continue
            else:
                change = Change.MODIFIED
            rest.append(WatchEvent(change, _versioned(document, at), at))
        return gone + rest

    def _version(self, now_s: float) -> int:
        return int(now_s * 1000) * _TAGS + self._tag


def _versioned(document: Document, version: int) -> Document:
    return {**document, "metadata": {**document["metadata"], "resourceVersion": str(version)}}


def _is_same(before: Document, after: Document) -> bool:
    was, is_ = before["metadata"], after["metadata"]
    is_same_age = was.get("creationTimestamp") == is_.get("creationTimestamp")
    return is_same_age and all(before[key] == after[key] for key in ("status", "spec"))
