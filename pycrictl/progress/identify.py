"""Finds out which image a lease is pulling: its manifest, its config and its name.

The lease of a pull holds the documents of the image as soon as they are fetched. Their labels
distinguish them from layers. They are read once, and name all layers of the pull, however few of
them have begun.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from pycrictl.containerd.grpc_client import Documents
from pycrictl.containerd.store import (
    Document,
    ImageConfig,
    Index,
    Manifest,
    chain_ids,
    has_children,
    repositories,
)
from pycrictl.progress.layers import Layers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pycrictl.containerd.grpc_client import ContainerdClient
    from pycrictl.progress.pull_names import Expected, Names

SETTLE_S: Final = 1.0
"""How long to wait after an image's manifest for its label, its index and its config; then the
pull is shown with what is known."""


class Held(NamedTuple):
    ingests: set[str]
    blobs: set[str]
    snapshotter: str


class LeasePull:
    """What is known of a lease that is a pull or may become one.

    ``image`` is its name for good, empty before. ``is_placed``: the config of its manifest was
    read. ``judged`` are digests of blobs that were read. ``is_missed``: it has ended, and its image
    was not there.
    """

    def __init__(self, lease_id: str, started_s: float, snapshotter: str) -> None:
        self.lease_id = lease_id
        self.started_s = started_s
        self.snapshotter = snapshotter
        self.layers = Layers(started_s)
        self.image = ""
        self.index_digest = ""
        self.manifest_digest = ""
        self.manifest: Manifest | None = None
        self.is_placed = False
        self.judged: set[str] = set()
        self.manifest_at = -math.inf
        self.retry_at = -math.inf
        self.recheck_at = -math.inf
        self.moved_s = started_s
        self.pulse: int | None = None
        self.pods = ""
        self.expected: Expected | None = None
        self.is_shown = False
        self.is_missed = False
        self.error = ""

    @property
    def digests(self) -> list[str]:
        return [self.manifest_digest, *filter(None, [self.index_digest])]

    def is_late(self, now: float) -> bool:
        return now - self.manifest_at >= SETTLE_S

    def is_ready(self, now: float) -> bool:
        """Return whether its layers can be reported: under a name, and in their right phases."""
        return bool(self.image) and (self.is_placed or self.is_late(now))


class Identifier:
    def __init__(self, client: ContainerdClient, documents: Documents, names: Names) -> None:
        self._client = client
        self._documents = documents
        self._names = names

    def look(self, pull: LeasePull, blobs: Iterable[str], now: float) -> None:
        """Learn what the blobs show that a pull's lease holds."""
        if pull.manifest is None:
            infos = self._client.infos(one for one in blobs if one not in pull.judged).values()
            # Their labels say that they refer to other blobs; a layer may get none at all.
            for info in [info for info in infos if has_children(info.labels)]:
                self._read(pull, info.digest, now)
        self._place(pull, blobs, now)
        if pull.manifest is not None and not pull.image:
            self._name(pull, is_final=pull.is_late(now))

    def conclude(self, pull: LeasePull, now: float) -> None:
        """Learn the rest about a pull whose lease is gone; it gets a name in any case."""
        pull.retry_at = -math.inf
        self._place(pull, (), now)
        if not pull.image:
            self._name(pull, is_final=True)

    def read(self, pull: LeasePull, digest: str) -> bool:
        """Learn what an image is made of; return whether its documents are still there."""
        index = self._read(pull, digest, 0.0)
        if isinstance(index, Index):
            for one in self._client.infos(index.manifests):
                self._read(pull, one, 0.0)
        self._place(pull, (), 0.0)
        return pull.manifest is not None

    def images(self, pull: LeasePull) -> list[str]:
        """Return the names of the pulled image on the node; its ID is among them."""
        filters = (f"target.digest=={digest}" for digest in pull.digests)
        return [image.name for image in self._client.images(*filters)]

    def _read(self, pull: LeasePull, digest: str, now: float) -> Document | None:
        document = self._documents.get(digest)
        pull.judged.add(digest)
        if isinstance(document, Index):
            pull.index_digest = pull.index_digest or digest
        elif isinstance(document, Manifest) and pull.manifest is None:
            pull.manifest, pull.manifest_digest, pull.manifest_at = document, digest, now
            pull.layers.add(document.layers)
            pull.recheck_at = -math.inf
        return document

    def _place(self, pull: LeasePull, blobs: Iterable[str], now: float) -> None:
        if pull.manifest is None or pull.is_placed:
            return
        is_there = pull.manifest.config_digest in blobs
        if not is_there and now < pull.retry_at:
            return
        config = self._documents.get(pull.manifest.config_digest)
        if config is None and not is_there:
            pull.retry_at = now + SETTLE_S
            return
        diff_ids = config.diff_ids if isinstance(config, ImageConfig) else ()
        pull.layers.place(pull.manifest.layers, chain_ids(diff_ids))
        pull.is_placed, pull.recheck_at = True, -math.inf

    def _name(self, pull: LeasePull, *, is_final: bool) -> None:
        infos = self._client.infos(pull.digests).values()
        pull.image = self._names.choose(
            pull.lease_id,
            pull.started_s,
            digests=pull.digests,
            repositories=repositories(info.labels for info in infos),
            images=self.images(pull),
            is_final=is_final,
        )
        pull.expected = self._names.expected_of(pull.lease_id)
