"""The calls, against a real gRPC server."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from pycrictl.containerd.grpc_client import ContainerdClient
from pycrictl.errors import (
    ConnectError,
    DeadlineExceeded,
    Invalid,
    RuntimeFault,
    Unavailable,
    Unimplemented,
)
from tests.containerd.fakectd import Blob, FakeContainerd, Ingest, Lease, Snapshot
from tests.fakecri import serve

A, B, C = ("sha256:" + letter * 64 for letter in "abc")


def test_a_containerd(fake: FakeContainerd, client: ContainerdClient) -> None:
    assert client.version() == "1.6.20~fake"
    assert client.server().uuid == "fake"


def test_another_runtime() -> None:
    """CRI-O knows the CRI's services only."""
    with serve() as crio:
        client = ContainerdClient(crio.path)
        with pytest.raises(Unimplemented) as caught:
            client.version()
    assert caught.value.message == (
        f'the runtime at "{crio.endpoint}" is not containerd, and its pulls cannot be '
        "seen from outside"
    )


def test_nobody_listens(tmp_path: Path) -> None:
    client = ContainerdClient(f"{tmp_path}/none.sock")
    with pytest.raises(ConnectError, match=r"Version\.Version: .* went away: no such file"):
        client.version()


def test_content(fake: FakeContainerd, client: ContainerdClient) -> None:
    fake.ingests[f"layer-{A}"] = Ingest(1, 2, 1000.5)
    (status,) = client.statuses()
    assert (status.ref, status.offset, status.total) == (f"layer-{A}", 1, 2)
    assert status.updated_at.ToNanoseconds() == 1_000_500_000_000

    fake.blobs[A] = Blob(5, 1.0, {"a": "b"}, b"hello")
    fake.blobs[B] = Blob(1, 1.0)
    infos = client.infos([A, C])
    assert infos.keys() == {A}
    assert (infos[A].size, dict(infos[A].labels)) == (5, {"a": "b"})
    assert client.infos([]) == {}
    assert fake.calls["list_content"] == 1


def test_reading_is_bounded(fake: FakeContainerd, client: ContainerdClient) -> None:
    data = bytes(range(256)) * 2000
    fake.blobs[A] = Blob(len(data), 1.0, data=data)
    assert client.read(A, size_bytes=len(data) + 10) == data
    assert client.read(A, size_bytes=300_000) == data[:300_000]
    assert client.read(A, size_bytes=4, offset=len(data) - 4) == data[-4:]
    assert client.read(B, size_bytes=4) is None
    with pytest.raises(Invalid):
        client.read(A, size_bytes=4, offset=len(data) + 1)


def test_leases(fake: FakeContainerd, client: ContainerdClient) -> None:
    fake.leases["one"] = Lease(7.0, [("content", A)])
    (lease,) = client.leases()
    assert (lease.id, lease.created_at.seconds) == ("one", 7)
    assert [(held.type, held.id) for held in client.resources("one") or ()] == [("content", A)]
    assert client.resources("gone") is None


def test_snapshots(fake: FakeContainerd, client: ContainerdClient) -> None:
    fake.snapshots[A] = Snapshot("COMMITTED", 1.0)
    fake.snapshots["extract-1 x"] = Snapshot("ACTIVE", 1.0, usage=77)
    assert client.snapshots("overlayfs", [A, B]).keys() == {A}
    assert client.snapshots("overlayfs", []) == {}
    assert client.usage("overlayfs", "extract-1 x") == 77
    assert client.usage("overlayfs", "gone") is None
    with pytest.raises(Invalid):
        client.snapshots("other", [A])


def test_images(fake: FakeContainerd, client: ContainerdClient) -> None:
    fake.images = {"host/a:1": A, "host/b:1": B}
    assert [image.name for image in client.images(f"target.digest=={B}")] == ["host/b:1"]
    assert len(client.images()) == 2


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
