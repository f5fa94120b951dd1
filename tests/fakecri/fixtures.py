"""The fake runtime as a fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakecri.server import FakeServer, serve


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    """A fake runtime; the test fails if an answer that it prepared is never requested."""
    with serve() as server:
        yield server
