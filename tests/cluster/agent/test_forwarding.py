"""Agents of several nodes: one answers for all, and queries only nodes with waiting pods."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.cluster.agent.standing import Cluster
from tests.serving import free_port


def listed(cluster: Cluster, path: str = "imagepulls") -> dict[str, Any]:
    items = cluster.get(path).document["items"]
    return {item["metadata"]["name"]: item for item in items}


@pytest.fixture
def dead(cluster: Cluster) -> Iterator[None]:
    """A node whose agent accepts connections but never answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        cluster.add_endpoint("n9", silent.getsockname()[1])
        yield


def test_one_answers_for_all(cluster: Cluster) -> None:
    cluster.start("n1")
    second, third = cluster.start("n2"), cluster.start("n3")
    cluster.add_pod("web", node="n1")
    cluster.add_pod("db", node="n2")
    cluster.add_pod("idle", node="n3", state={"running": {}}, phase="Running")
    cluster.add_pod("later", node="")
    items = listed(cluster)
    assert {name: item["spec"]["nodeName"] for name, item in items.items()} == {
        "web.main": "n1",
        "db.main": "n2",
    }
    assert cluster.agents[0].peers.asked == 1
    assert second.metrics.requests["peer", "200"] == 1
    assert not third.metrics.requests
    assert listed(cluster, "imagepulls?fieldSelector=spec.nodeName=n2").keys() == {"db.main"}
    later = cluster.get("namespaces/default/imagepulls/later.main").document["status"]
    assert later.keys() == {"phase", "conditions"}
    assert later["phase"] == "Waiting"


@pytest.mark.debian
def test_a_node_that_does_not_answer_is_named(cluster: Cluster, dead: None) -> None:
    cluster.start("n1").peers.timeout_s = 1.0
    cluster.add_pod("web", node="n1")
    cluster.add_pod("db", node="n9", state={"waiting": {"reason": "ImagePullBackOff"}})
    cluster.add_pod("far", node="n8")
    answer = cluster.get("imagepulls")
    assert answer.status == 200
    assert sorted(answer.headers.get_all("Warning") or ()) == [
        '299 - "node n1 does not know its pulls: no runtime here"',
        '299 - "node n8 did not answer: no agent is known to run on it"',
        '299 - "node n9 did not answer: it did not answer within 1 s"',
    ]
    items = {item["metadata"]["name"]: item for item in answer.document["items"]}
    status = items["db.main"]["status"]
    assert {condition["status"] for condition in status.pop("conditions")} == {"Unknown"}
    assert status == {
        "phase": "BackOff",
        "kubeletReason": "ImagePullBackOff",
        "unknown": True,
        "error": "node n9 did not answer: it did not answer within 1 s",
    }
    assert items["far.main"]["status"]["unknown"] is True
    warned = cluster.kubectl()("get", "ipull", "-A")
    assert "Warning: node n9 did not answer" in warned.stderr


def test_requests_that_fail_do_not_make_it_list_the_agents_each_time(
    cluster: Cluster,
) -> None:
    agent = cluster.start("n1")
    agent.feeds.fresh_s, agent.peers.missing_s = 0.0, 30.0
    cluster.add_endpoint("n9", free_port())
    cluster.add_pod("db", node="n9")

    def fail() -> int:
        assert "cannot be reached" in listed(cluster)["db.main"]["status"]["error"]
        return sum("endpointslices" in path for _, path, _ in cluster.api.asked)

    assert [fail() for _ in range(3)] == [1, 1, 1]
    agent.peers.missing_s = 0.0
    assert fail() == 2, "the agent may have moved"


def test_without_a_token_no_other_node_is_known(cluster: Cluster) -> None:
    cluster.start("n1")
    cluster.start("n2")
    cluster.add_pod("db", node="n2")
    (cluster.folder / "token").unlink()
    status = listed(cluster)["db.main"]["status"]
    assert "cannot read the token in --peer-token" in status["error"]
