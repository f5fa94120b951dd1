"""The real cluster, for tests run by `make cluster BIN=DIR`; otherwise none are collected."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_until

from .agents import Agents
from .cluster import ADDRESS, NODE, Cluster

_PROGRAMS = os.environ.get("CLUSTER_BIN", "")
collect_ignore_glob = [] if _PROGRAMS else ["test_*.py"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder, for `-m "not cluster"`."""
    for item in items:
        if item.nodeid.startswith("tests/e2e/cluster/"):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Cluster]:
    """One cluster for all tests; tests use `cluster`, which cleans up."""
    with Cluster(Path(_PROGRAMS).resolve()) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster; pods and limits of the network are removed after the test."""
    yield shared_cluster
    shared_cluster.lab.registry.heal()
    shared_cluster.lab.registry.limit(None)
    shared_cluster.remove_pods()


@pytest.fixture(scope="module")
def shared_agents(shared_cluster: Cluster) -> Iterator[Agents]:
    """An agent on the cluster's node, which offers copies; tests use `agents`."""
    agents = Agents(shared_cluster)
    agents.install()
    try:
        agents.start(NODE, ADDRESS, flags=("--spool-dir", str(agents.folder / "spool")))
        wait_until(lambda: shared_cluster.kubectl("get", "imagepulls").returncode == 0)
        yield agents
    finally:
        agents.remove()


@pytest.fixture
def agents(cluster: Cluster, shared_agents: Agents) -> Agents:
    return shared_agents
