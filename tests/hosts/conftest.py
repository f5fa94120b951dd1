"""Hosts with a fake runtime behind each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakecri import FakeServer
from tests.hosts.sshd import SSHD, Hosts, hosts


@pytest.fixture(scope="session")
def shared(as_root: None) -> Iterator[Hosts]:
    """Three hosts for all tests of this process that leave them as they are."""
    if not Path(SSHD).exists():
        pytest.fail("openssh-server missing: run tests/e2e/node/install.sh")
    with hosts() as made:
        for name in ("n1", "n2", "n3"):
            made.add(name)
        yield made


@pytest.fixture
def machines(shared: Hosts, fake: FakeServer) -> Hosts:
    """The same with a fake runtime behind each of them."""
    for host in shared.hosts.values():
        host.serve(fake.path)
    return shared


@pytest.fixture
def fresh(shared: Hosts) -> Iterator[Hosts]:
    """No hosts yet, which a test adds as it needs them."""
    with hosts() as made:
        yield made
