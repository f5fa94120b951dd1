from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakecri.fixtures import fake

__all__ = ["fake"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a path short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="cri-"))
    yield path
    shutil.rmtree(path)
