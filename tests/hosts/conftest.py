"""Hosts with a fake runtime behind each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hosts.sshd import Hosts, hosts


@pytest.fixture(scope="session")
def machines() -> Iterator[Hosts]:
    """Test hosts of this run; each test adds those that it needs, or takes ``n1`` and ``n2``."""
    with hosts() as made:
        yield made
