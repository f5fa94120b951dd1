"""The suite where nothing of the proposals is there: it says so, and leaves nothing behind."""

from __future__ import annotations

from tests.node.lab import Lab

from .suite import Suite, suite

__all__ = ["suite"]


def test_a_runtime_without_the_proposals(suite: Suite, lab: Lab) -> None:
    def held() -> set[str]:
        kubelet = lab.node.kubelet
        return {*(image.id for image in kubelet.images()), *kubelet.running_containers()}

    before = held()
    found = suite.run({"CONFORMANCE_ENDPOINT": lab.node.endpoint})
    assert set(found.values()) == {"not implemented"}
    assert held() == before
