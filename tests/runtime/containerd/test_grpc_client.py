"""The calls, and the documents that they read, against a real gRPC server."""

from __future__ import annotations

import gzip

import grpc
import pytest

from pycrictl.base.errors import (
    DeadlineExceeded,
    RuntimeFault,
    Unavailable,
    Unimplemented,
)
from pycrictl.runtime.containerd.grpc_client import ContainerdClient, Documents
from pycrictl.runtime.containerd.store import DOCUMENT_LIMIT_BYTES
from tests.fakecri import serve
from tests.runtime.containerd.fakectd import Blob, FakeContainerd

A, B, C = ("sha256:" + letter * 64 for letter in "abc")


def test_another_runtime() -> None:
    """CRI-O implements only the services of the CRI."""
    with serve() as crio:
        client = ContainerdClient(crio.path)
        with pytest.raises(Unimplemented) as caught:
            client.version()
    assert caught.value.message == (
        f'the runtime at "{crio.endpoint}" is not containerd, which this command needs'
    )


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (grpc.StatusCode.UNAVAILABLE, Unavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineExceeded),
        (grpc.StatusCode.INTERNAL, RuntimeFault),
    ],
)
def test_errors_name_the_call(
    fake: FakeContainerd,
    client: ContainerdClient,
    code: grpc.StatusCode,
    error: type[RuntimeFault],
) -> None:
    fake.failures = dict.fromkeys(("list_leases", "read"), (code, "because"))
    with pytest.raises(error, match=r"asking containerd for Leases\.List: .*because"):
        client.leases()
    with pytest.raises(error, match=r"asking containerd for Content\.Read: "):
        client.read(A, size_bytes=1)
    fake.failures.clear()
    assert list(client.leases()) == []


# Documents


def test_what_is_kept_is_bounded(fake: FakeContainerd, client: ContainerdClient) -> None:
    documents = Documents(client)
    digests = [f"sha256:{number:064x}" for number in range(257)]
    for digest in digests:
        fake.put_document(digest, {"rootfs": {"diff_ids": []}}, 0.0)
        documents.get(digest)
    fake.calls.clear()
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
