from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pycrictl.runtime.cri.calls.client import CriClient
from tests.fakecri import FakeServer
from tests.fakecri.fixtures import fake

__all__ = ["fake"]


@pytest.fixture
def client(fake: FakeServer) -> Iterator[CriClient]:
    with CriClient(fake.path, timeout_s=5.0) as client:
        yield client


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a path short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="cri-"))
    yield path
    shutil.rmtree(path)
