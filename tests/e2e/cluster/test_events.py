"""Events of pulls by agents as shipped (the overlay ``with-events``), with and without a proxy."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.support.cluster_agents import agent_pod, applied_from
from tests.waiting import wait_until

from .cluster import Cluster
from .shipped import Node, node_of

PODS = 6


@pytest.fixture(params=["direct", "proxy"])
def node(request: pytest.FixtureRequest, shared_cluster: Cluster) -> Iterator[Node]:
    with (
        node_of(shared_cluster, is_proxied=request.param == "proxy") as node,
        applied_from(shared_cluster, "with-events", partial(agent_pod, shared_cluster)),
    ):
        yield node
        shared_cluster.lab.registry.limit(None)
        words = ("delete", "pods", "--all", "--grace-period=1", "--wait=false")
        shared_cluster.kubectl.good(*words)
        wait_until(lambda: not shared_cluster.kubectl.good("get", "pods", "-o", "name"))


def test_every_event_gets_its_last_word(node: Node) -> None:
    cluster = node.cluster
    names = [f"event{node.seed}{number}" for number in range(PODS)]
    cluster.lab.registry.limit(1.5e6)
    for number, name in enumerate(names):
        image = cluster.image(f"{name}:1", node.seed + 200 + number, 5)
        cluster.run_pod(name, cluster.lab.reference(image))

    def messages() -> dict[str, str]:
        selector = "--field-selector=reason=PullProgress"
        events = cluster.kubectl.document("get", "events", selector)["items"]
        return {event["involvedObject"]["name"]: event["message"] for event in events}

    for name in names:
        wait_until(lambda name=name: cluster.phase(name) == "Running")  # type: ignore[misc]  # mypy knows no defaults of lambdas
    written = [name for name in names if name in messages()]
    assert len(written) > PODS / 2
    wait_until(lambda: all("was pulled in" in messages()[name] for name in written))
