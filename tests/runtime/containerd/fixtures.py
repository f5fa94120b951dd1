"""The fake containerd and a client of it, as fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pycrictl.runtime.containerd.grpc_client import ContainerdClient
from tests.runtime.containerd.fakectd import FakeContainerd


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeContainerd]:
    with FakeContainerd(tmp_path) as fake:
        yield fake


@pytest.fixture
def client(fake: FakeContainerd) -> ContainerdClient:
    return ContainerdClient(fake.path)
