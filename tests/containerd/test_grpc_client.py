"""The calls, against a real gRPC server."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from pycrictl.containerd.grpc_client import ContainerdClient
from pycrictl.errors import (
    ConnectError,
    DeadlineExceeded,
    RuntimeFault,
    Unavailable,
    Unimplemented,
)
from tests.containerd.fakectd import FakeContainerd
from tests.fakecri import serve

A, B, C = ("sha256:" + letter * 64 for letter in "abc")


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
