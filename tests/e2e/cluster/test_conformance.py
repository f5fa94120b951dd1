"""The proposals' rules, checked against a released kubelet and API server, and the agents."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.suite import Suite, suite
from tests.kube.aggregator import BASE
from tests.waiting import wait_until

from .agents import NAMESPACE, PORT, Agents
from .cluster import ADDRESS, KUBELET_PORT, NODE, OTHER_ADDRESS, Cluster
from .cluster import PORT as API_PORT

__all__ = ["suite"]

OTHER = "vm2"
POD = f"{BASE}/namespaces/{{namespace}}/pods/{{pod}}"


@pytest.fixture(scope="module")
def known(shared_cluster: Cluster) -> Iterator[dict[str, str]]:
    """Two agents behind the API server, one with handlers disabled, and a pod on each node."""
    cluster = shared_cluster
    agents = Agents(cluster)
    agents.install()
    config = agents.folder / "kubelet.yaml"
    config.write_text("enableDebuggingHandlers: false\n")
    tokens = []
    for name in ("boss", "nobody"):
        metadata = {"name": name, "namespace": NAMESPACE}
        cluster.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
        tokens.append(cluster.kubectl.good("create", "token", name, "-n", NAMESPACE).strip())
    words = ("create", "clusterrolebinding", "boss", "--clusterrole=cluster-admin")
    cluster.kubectl.good(*words, f"--serviceaccount={NAMESPACE}:boss")
    images = [cluster.lab.reference(cluster.image(f"{name}:1", 1100, 1)) for name in ("a", "b")]
    with cluster.node(OTHER, OTHER_ADDRESS):
        try:
            spool = ("--spool-dir", str(agents.folder / NODE))
            agents.start(NODE, ADDRESS, flags=spool)
            spool = ("--spool-dir", str(agents.folder / OTHER))
            agents.start(OTHER, OTHER_ADDRESS, flags=(*spool, "--kubelet-config", str(config)))
            cluster.run_pod("web", *images)
            cluster.run_pod("off", images[0], node=OTHER)
            wait_until(lambda: cluster.phase("web") == "Running")
            wait_until(lambda: cluster.kubectl("get", "imagepulls").returncode == 0)
            yield {
                "CONFORMANCE_API": f"https://127.0.0.1:{API_PORT}",
                "CONFORMANCE_KUBELET": f"https://{ADDRESS}:{PORT}",
                "CONFORMANCE_KUBELET_OFF": f"https://{OTHER_ADDRESS}:{PORT}",
                "CONFORMANCE_TOKEN": tokens[0],
                "CONFORMANCE_STRANGER": tokens[1],
                "CONFORMANCE_POD": "default/web/c0",
                "CONFORMANCE_POD_OFF": "default/off/c0",
                "CONFORMANCE_SUBRESOURCE": f"{POD}/imagepullprogress",
                "CONFORMANCE_COPIES": f"{POD}/containercopies",
            }
        finally:
            cluster.kubectl.good("delete", "clusterrolebinding", "boss")
            agents.remove()
    cluster.remove_pods()


def test_agents_keep_all_rules(suite: Suite, known: dict[str, str]) -> None:
    found = suite.run(known, "A")
    assert set(found.values()) == {"pass"}, found


def test_what_is_released_has_none_of_it(suite: Suite, known: dict[str, str]) -> None:
    """Without the features, answers must have the form that the KEP defines for that."""
    kubelet = f"https://{ADDRESS}:{KUBELET_PORT}"
    released = {"CONFORMANCE_KUBELET": kubelet, "CONFORMANCE_KUBELET_OFF": ""}
    changed = {**known, **released, "CONFORMANCE_SUBRESOURCE": "", "CONFORMANCE_COPIES": ""}
    found = suite.run(changed, "A")
    assert set(found.values()) == {"not implemented"}, found
