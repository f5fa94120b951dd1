"""The changing objects of a list, each change with a version. Pure: callers pass the time.

Versions let a watch resume where a list ended. They are integers that grow with time across all
agents: milliseconds, and in the last six decimal digits a tag of the agent's node. Only the agent
that issued a version can tell what it listed at that version.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from pycrictl.cluster.agent.api.names import Document

MAX_REMOVED: Final = 2000
"""How many deleted objects are remembered for watches that begin at an earlier version."""

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


def is_of(version: int, node: str) -> bool:
    return version % _TAGS == tag_of(node)


def key_of(document: Document) -> Key:
    return document["metadata"]["namespace"], document["metadata"]["name"]


class ObjectStore:
    def __init__(self, tag: int, now_s: float) -> None:
        self._tag = tag
        self._objects: dict[Key, Stored] = {}
        self._removed: deque[Stored] = deque()
        self.version = self._oldest = self._version(now_s)

    def objects(self) -> list[Document]:
        return [self._objects[key].document for key in sorted(self._objects)]

    def find(self, key: Key) -> Document | None:
        found = self._objects.get(key)
        return None if found is None else found.document

    def replace(self, documents: Iterable[Document], now_s: float) -> bool:
        """Replace all objects by these; return whether anything has changed.

        An object with the same name but another UID is a different object.
        """
        incoming = {key_of(one): one for one in documents}
        self.version = begun = max(self._version(now_s), self.version)
        for key, found in [*self._objects.items()]:
            after = incoming.get(key)
            if after is None or _uid_of(after) != _uid_of(found.document):
                del self._objects[key]
                self._removed.append(self._changed(found.document, found.made, is_gone=True))
        for key, document in incoming.items():
            before = self._objects.get(key)
            if before is None or not _is_same(before.document, document):
                self._objects[key] = self._changed(document, before.made if before else 0)
        while len(self._removed) > MAX_REMOVED:
            self._oldest = self._removed.popleft().changed
        return self.version > begun

    def is_own(self, version: int) -> bool:
        return version % _TAGS == self._tag

    def since(self, version: int) -> list[Stored]:
        """Return the changes since a version, oldest first; raise VersionGone if unknown."""
        if not (self.is_own(version) and self._oldest <= version <= self.version):
            raise VersionGone
        found = (*self._removed, *self._objects.values())
        return sorted((one for one in found if one.changed > version), key=lambda one: one.changed)

    def listed(self, version: int) -> list[Document]:
        """Return the objects that existed at a version, each in its last known state."""
        news = self.since(version)
        made = {key_of(one.document) for one in news if one.made > version}
        return [
            *(one for one in self.objects() if key_of(one) not in made),
            *(one.document for one in news if one.is_gone and one.made <= version),
        ]

    def differences(self, listed: Iterable[Document], version: int) -> list[Stored]:
        """Return the differences from the objects that another agent ``listed`` at its version.

        Removed objects come first. Versions of this store are higher from now on.
        """
        before = {key_of(one): one for one in listed}
        found = {key_of(one): one for one in self.objects()}
        kept = {key for key in before.keys() & found if _uid_of(before[key]) == _uid_of(found[key])}
        self.version = at = max(self.version, (version // _TAGS + 1) * _TAGS + self._tag)
        gone = [one for key, one in before.items() if key not in kept]
        changed = [
            (one, 0 if key in kept else at)
            for key, one in found.items()
            if key not in kept
            or not _is_same(before[key], one)
            or int(before[key]["metadata"]["resourceVersion"]) > version
        ]
        return [
            *(Stored(_versioned(one, at), 0, at, is_gone=True) for one in gone),
            *(Stored(_versioned(one, at), made, at) for one, made in changed),
        ]

    def _changed(self, document: Document, made: int, *, is_gone: bool = False) -> Stored:
        """Return an object with the next version; it appeared at ``made``, or if 0, then."""
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
