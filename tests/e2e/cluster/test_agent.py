"""Agents behind a real API server, beside a real kubelet that pulls."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import pytest

from pycrictl.cluster.agent.node_pulls import ENDED_S
from tests.e2e.node.lab import Lab
from tests.support.cluster_pulls import pull_slowly
from tests.waiting import settled, wait_until

from .agents import Agents
from .cluster import ADDRESS, NODE, OTHER_ADDRESS, Cluster

OTHER = "vm2"


def percents(lines: str) -> list[int]:
    return [int(match) for match in re.findall(r" (\d+)% ", lines)]


def test_a_pull_in_tables_documents_and_words(cluster: Cluster, agents: Agents) -> None:
    reference = pull_slowly(cluster, "slow", 1010, seconds=30)
    kubectl = cluster.kubectl
    row = kubectl.good("get", "ipull", "-A", "-o", "wide").splitlines()[1].split()
    assert row[:4] == ["default", "slow.c0", reference.partition("/")[2], "Pulling"]
    assert NODE in row
    document = kubectl.document("get", "imagepull", "slow.c0")
    assert (document["spec"]["image"], document["spec"]["nodeName"]) == (reference, NODE)
    assert document["spec"]["podUID"] == kubectl.document("get", "pod", "slow")["metadata"]["uid"]
    assert re.search(r"\n  Phase: +Pulling\n", kubectl.good("describe", "imagepull", "slow.c0"))
    assert "Compressed bytes" in kubectl.good("explain", "imagepulls.status.progressBytes")
    for selector, name in (("spec.nodeName=vm", "slow.c0"), ("spec.nodeName=no", "")):
        words = (
            "get",
            "ipull",
            "--field-selector",
            selector,
            "-o",
            "jsonpath={.items[*].metadata.name}",
        )
        assert kubectl.good(*words) == name
    assert '"nope.c0" not found' in kubectl.bad("get", "imagepull", "nope.c0")
    path = "jsonpath={.status.phase}=Succeeded"
    assert "condition met" in kubectl.good(
        "wait", f"--for={path}", "ipull/slow.c0", "--timeout=60s"
    )


def test_a_watch_from_the_first_byte_to_the_last(cluster: Cluster, agents: Agents) -> None:
    with cluster.kubectl.running("get", "imagepulls", "-w") as process:
        pull_slowly(cluster, "slow", 1020, seconds=20)
        wait_until(lambda: cluster.phase("slow") == "Running")
        time.sleep(2)
        process.terminate()
        assert process.stdout is not None
        shown = process.stdout.read()
    seen = percents(shown)
    assert seen == sorted(seen), shown
    assert len(set(seen)) > 5, shown
    assert seen[-1] == 100, shown


def test_the_agent_is_restarted_in_the_middle(cluster: Cluster, agents: Agents) -> None:
    pull_slowly(cluster, "slow", 1050, seconds=40)
    condition = "--for=jsonpath={.status.phase}=Succeeded"
    wait_until(lambda: percents(cluster.kubectl.good("get", "ipull")))
    before = percents(cluster.kubectl.good("get", "ipull"))[0]
    with cluster.kubectl.running("wait", condition, "ipull/slow.c0", "--timeout=90s") as waiting:
        time.sleep(3)
        began_at = time.monotonic()
        agents.restart(NODE, ADDRESS)
        wait_until(lambda: cluster.kubectl("get", "ipull").returncode == 0)
        assert time.monotonic() - began_at < 20
        wait_until(lambda: percents(cluster.kubectl.good("get", "ipull")))
        assert percents(cluster.kubectl.good("get", "ipull"))[0] >= before
        wait_until(lambda: cluster.phase("slow") == "Running")
        assert waiting.stdout is not None
        assert "condition met" in waiting.stdout.read()


def test_the_api_server_is_restarted_in_the_middle(cluster: Cluster, agents: Agents) -> None:
    pull_slowly(cluster, "slow", 1060, seconds=60)
    cluster.apiserver.terminate()
    cluster.start_apiserver()
    wait_until(lambda: "slow.c0" in cluster.kubectl("get", "ipull").stdout)
    assert percents(cluster.kubectl.good("get", "ipull"))
    assert agents.daemon(NODE).running


@pytest.fixture
def other_node(cluster: Cluster, agents: Agents) -> Iterator[Lab]:
    """A second node: a containerd and an agent; the test acts as its kubelet."""
    with cluster.node(OTHER, OTHER_ADDRESS), Lab() as lab:
        agents.start(OTHER, OTHER_ADDRESS, lab.node.endpoint, serves=False)
        yield lab
        agents.stop(OTHER)


def test_a_second_node(cluster: Cluster, agents: Agents, other_node: Lab) -> None:
    lab, kubectl = other_node, cluster.kubectl
    image = lab.layout.image("far:1", lab.layout.random_layers([9 << 20, 5 << 20], seed=1070))
    reference = lab.push(image)
    cluster.run_pod("far", reference, node=OTHER)
    uid = cluster.let_wait("far", reference, OTHER_ADDRESS)
    config = lab.node.kubelet.pod_config("far", uid=uid)
    lab.registry.limit(image.layers_bytes / 25)
    pod = lab.node.kubelet.run_pod(config)
    pull = lab.node.kubelet.start_pull(reference, pod)
    wait_until(lab.node.store.ingests)
    pull_slowly(cluster, "near", 1080, seconds=90)
    wait_until(lambda: len(percents(kubectl.good("get", "ipull", "-A"))) == 2)
    rows = [line.split() for line in kubectl.good("get", "ipull", "-o", "wide").splitlines()[1:]]
    nodes = {row[0]: OTHER if OTHER in row else NODE for row in rows}
    assert nodes == {"far.c0": OTHER, "near.c0": NODE}
    agents.stop(OTHER)
    done = kubectl("get", "ipull", "-o", "json")
    assert done.returncode == 0
    assert f"node {OTHER} did not answer" in done.stderr
    objects = {item["metadata"]["name"]: item for item in json.loads(done.stdout)["items"]}
    assert objects["far.c0"]["status"]["unknown"] is True
    assert "unknown" not in objects["near.c0"]["status"]
    pull.cancel()
    # As an autoscaler removes a node: it must disappear even while requests keep coming.
    kubectl.good("delete", "pod", "far", "--force", "--grace-period=0")
    kubectl.good("delete", "node", OTHER)

    def is_gone() -> bool:
        listed = kubectl("get", "ipull", "-A")
        assert listed.returncode == 0
        return "far.c0" not in listed.stdout and OTHER not in listed.stderr

    assert settled(is_gone, limit_s=ENDED_S + 15)
