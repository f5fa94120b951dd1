"""Documents are read once, and only as far as needed."""

from __future__ import annotations

import gzip

from pycrictl.containerd.grpc_client import ContainerdClient, Documents
from pycrictl.containerd.store import DOCUMENT_LIMIT_BYTES
from tests.containerd.fakectd import Blob, FakeContainerd

A, B = ("sha256:" + letter * 64 for letter in "ab")


def test_what_is_kept_is_bounded(fake: FakeContainerd, client: ContainerdClient) -> None:
    documents = Documents(client)
    digests = [f"sha256:{number:064x}" for number in range(257)]
    for digest in digests:
        fake.put_document(digest, {"rootfs": {"diff_ids": []}}, 0.0)
        documents.get(digest)
    fake.calls.clear()
    documents.get(digests[1])
    documents.get(digests[-1])
    assert fake.calls["read"] == 0
    documents.get(digests[0])
    assert fake.calls["read"] == 1


def test_what_is_larger_than_any_document_is_none(
    fake: FakeContainerd, client: ContainerdClient
) -> None:
    fake.blobs[A] = Blob(DOCUMENT_LIMIT_BYTES + 1, 0.0, data=b"{".ljust(DOCUMENT_LIMIT_BYTES + 1))
    assert Documents(client).get(A) is None


def test_unpacked_bytes(fake: FakeContainerd, client: ContainerdClient) -> None:
    packed = gzip.compress(bytes(5_000_000))
    fake.blobs[A] = Blob(len(packed), 0.0, data=packed)
    documents = Documents(client)
    assert documents.unpacked_bytes(A, len(packed)) == 5_000_000
    assert documents.unpacked_bytes(A, len(packed) + 100) == 0  # shorter than its manifest says
    assert documents.unpacked_bytes(B, 1000) == 0
