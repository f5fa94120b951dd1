"""The fake runtime as a fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakecri.server import FakeServer, serve


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    """A fake runtime; the test fails when it leaves an answer that it prepared unused."""
    with serve() as server:
        yield server
