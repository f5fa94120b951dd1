"""The suite itself: each fault fails its rule, and nothing is left behind."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.node.lab import Lab

from . import planted
from .suite import Suite, suite

pytestmark = pytest.mark.slow

__all__ = ["suite"]


@pytest.fixture
def short_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pcc-", dir="/var/tmp") as name:
        yield Path(name)


@pytest.mark.parametrize("name", planted.FAULTS)
def test_a_planted_fault_is_found(suite: Suite, lab: Lab, short_path: Path, name: str) -> None:
    fault = planted.FAULTS[name]
    with planted.serving_endpoint(lab, short_path, fault) as known:
        assert suite.run(known, fault.rule) == {fault.rule: "fail"}


def test_a_runtime_without_the_proposals(suite: Suite, lab: Lab) -> None:
    def held() -> set[str]:
        kubelet = lab.node.kubelet
        return {*(image.id for image in kubelet.images()), *kubelet.running_containers()}

    before = held()
    results = suite.run({"CONFORMANCE_ENDPOINT": lab.node.endpoint})
    assert set(results.values()) == {"not implemented"}
    assert held() == before
