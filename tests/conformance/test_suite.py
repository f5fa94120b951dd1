"""The suite itself: each fault fails its rule, and nothing is left behind."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.e2e.node.lab import Lab

from . import planted, planted_cluster
from .cluster import Cluster
from .conftest import our_cluster
from .suite import Suite, suite

pytestmark = pytest.mark.slow

__all__ = ["suite"]


@pytest.fixture
def short_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pcc-", dir="/var/tmp") as name:
        yield Path(name)


def failed(found: Mapping[str, str]) -> list[str]:
    return [rule for rule, outcome in found.items() if outcome == "fail"]


@pytest.mark.parametrize("name", planted.FAULTS)
def test_a_planted_fault_is_found(suite: Suite, lab: Lab, short_path: Path, name: str) -> None:
    fault = planted.FAULTS[name]
    with planted.serving_endpoint(lab, short_path, fault) as known:
        assert suite.run(known, fault.rule) == {fault.rule: "fail"}


@pytest.fixture(scope="module")
def ours(run_folder: Path) -> Iterator[Cluster]:
    with our_cluster(run_folder) as made:
        yield made


def test_a_cluster_that_keeps_all_rules_passes(suite: Suite, ours: Cluster) -> None:
    with planted_cluster.serving_cluster(ours, "") as known:
        found = suite.run(known)
    assert found == dict.fromkeys(planted_cluster.FAULTS.values(), "pass")


@pytest.mark.parametrize("fault", planted_cluster.FAULTS)
def test_a_fault_of_a_cluster_is_found_by_its_rule(suite: Suite, ours: Cluster, fault: str) -> None:
    with planted_cluster.serving_cluster(ours, fault) as known:
        found = suite.run(known, "A")
    assert failed(found) == [planted_cluster.FAULTS[fault]]


def test_a_runtime_without_the_proposals(suite: Suite, lab: Lab) -> None:
    def held() -> set[str]:
        kubelet = lab.node.kubelet
        return {*(image.id for image in kubelet.images()), *kubelet.running_containers()}

    before = held()
    found = suite.run({"CONFORMANCE_ENDPOINT": lab.node.endpoint})
    assert set(found.values()) == {"not implemented"}
    assert held() == before


def test_servers_that_do_not_know_the_routes(suite: Suite, ours: Cluster) -> None:
    """Released API servers and kubelets answer 404 to users who are authorized."""
    with planted_cluster.serving_cluster(ours, "") as known:
        url = f"{known['CONFORMANCE_API']}/none"
        found = suite.run(
            {**known, "CONFORMANCE_KUBELET": url, "CONFORMANCE_API": url, "CONFORMANCE_COPIES": ""},
            "A",
        )
    assert found.pop("A15") == "pass", "another kubelet knows them"
    assert set(found.values()) == {"not implemented"}
