"""The real cluster, for tests that `make cluster BIN=DIR` runs; without it there are none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .cluster import Cluster

_PROGRAMS = os.environ.get("CLUSTER_BIN", "")
collect_ignore_glob = [] if _PROGRAMS else ["test_*.py"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all of them, so that `-m "not cluster"` leaves them out as well."""
    for item in items:
        if item.nodeid.startswith("tests/cluster/"):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Cluster]:
    """One cluster for all tests; tests use `cluster`, which cleans up."""
    with Cluster(Path(_PROGRAMS).resolve()) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster; without pods, and with a quick network, after the test."""
    yield shared_cluster
    shared_cluster.lab.throttle.heal()
    shared_cluster.lab.throttle.limit(None)
    shared_cluster.remove_pods()
