"""Pulls that a test simulates step by step on the fake containerd."""

from __future__ import annotations

import hashlib

from pycrictl.runtime.containerd.store import chain_ids
from tests.runtime.containerd.fakectd import Blob, FakeContainerd, Ingest, Lease, Snapshot

GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
START_S = 1_700_000_000.0
"""Wall time at which made-up pulls begin."""


def digest_of(name: str) -> str:
    return f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"


class Made:
    """An image whose pull a test simulates step by step."""

    def __init__(
        self, fake: FakeContainerd, name: str, layers: list[str], *, size_bytes: int = 1000
    ) -> None:
        self.fake, self.name = fake, name
        self.layers = [digest_of(layer) for layer in layers]
        self.manifest, self.config = digest_of(f"{name} manifest"), digest_of(f"{name} config")
        self.size_bytes = size_bytes
        self.diff_ids = [digest_of(f"{layer} diff") for layer in layers]
        self.chain_ids = chain_ids(self.diff_ids)

    def begin(self, lease_id: str, *, at_s: float = START_S) -> None:
        """Create the lease, with manifest and config."""
        self.lease = self.fake.leases[lease_id] = Lease(at_s)
        self.add_manifest(at_s)
        self.add_config(at_s)

    def add_manifest(self, at_s: float = START_S, *, source: str | None = "host") -> None:
        labels = {"containerd.io/gc.ref.content.config": self.config}
        if source:
            labels[f"containerd.io/distribution.source.{source}"] = self.name
        layers = [
            {"digest": layer, "size": self.size_bytes, "mediaType": GZIP} for layer in self.layers
        ]
        document = {"config": {"digest": self.config, "size": 2}, "layers": layers}
        self.fake.put_document(self.manifest, document, at_s, labels)
        self.lease.holds.append(("content", self.manifest))

    def add_config(self, at_s: float = START_S) -> None:
        document = {"rootfs": {"type": "layers", "diff_ids": self.diff_ids}}
        self.fake.put_document(self.config, document, at_s)
        self.lease.holds.append(("content", self.config))

    def download(self, number: int, offset: int, *, at_s: float = START_S) -> None:
        ref = f"layer-{self.layers[number]}"
        self.fake.ingests[ref] = Ingest(offset, self.size_bytes, at_s)
        if ("ingests", ref) not in self.lease.holds:
            self.lease.holds.append(("ingests", ref))

    def complete(self, number: int, *, at_s: float = START_S) -> None:
        ref = f"layer-{self.layers[number]}"
        self.fake.ingests.pop(ref, None)
        self.fake.blobs[self.layers[number]] = Blob(self.size_bytes, at_s)
        self.lease.holds = [held for held in self.lease.holds if held != ("ingests", ref)]
        self.lease.holds.append(("content", self.layers[number]))

    def extract(self, number: int, usage: int, *, at_s: float = START_S) -> None:
        key = f"extract-1-abcd {self.chain_ids[number]}"
        self.fake.snapshots[key] = Snapshot("ACTIVE", at_s, usage)
        if ("snapshots/overlayfs", key) not in self.lease.holds:
            self.lease.holds.append(("snapshots/overlayfs", key))

    def commit(self, number: int, *, at_s: float = START_S) -> None:
        key = f"extract-1-abcd {self.chain_ids[number]}"
        self.fake.snapshots.pop(key, None)
        held = ("snapshots/overlayfs", key)
        self.lease.holds = [resource for resource in self.lease.holds if resource != held]
        self.fake.snapshots[self.chain_ids[number]] = Snapshot("COMMITTED", at_s)
        self.lease.holds.append(("snapshots/overlayfs", self.chain_ids[number]))

    def end(self) -> None:
        """Create the image and delete the lease."""
        self.fake.images[f"host/{self.name}:1"] = self.manifest
        for key in [key for key, lease in self.fake.leases.items() if lease is self.lease]:
            del self.fake.leases[key]

    @property
    def shown_name(self) -> str:
        return f"host/{self.name}@{self.manifest[:19]}"
