"""Why pods do not run, by a real kubelet's status and events: in the cluster and on the node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.kubectl.plugin import Plugin
from tests.support.cluster_agents import plugin_beside
from tests.support.cluster_pulls import run
from tests.support.findings import NOISE
from tests.waiting import wait_until

from .cluster import NODE, Cluster

FAILS = {"exec": {"command": ["/bin/false"]}, "periodSeconds": 1, "failureThreshold": 1}

FAULTY: dict[str, dict[str, Any]] = {
    "no-settings": {
        "volumes": [{"name": "v", "configMap": {"name": "nope"}}],
        "container": {"volumeMounts": [{"name": "v", "mountPath": "/v"}]},
    },
    "no-secret": {
        "volumes": [{"name": "v", "secret": {"secretName": "nope"}}],
        "container": {"volumeMounts": [{"name": "v", "mountPath": "/v"}]},
    },
    "no-claim": {
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "nope"}}],
        "container": {"volumeMounts": [{"name": "v", "mountPath": "/v"}]},
    },
    "unready": {"container": {"readinessProbe": FAILS}},
    "killed": {"container": {"livenessProbe": FAILS}},
    "rejected": {"nodeSelector": {"no": "such"}},
}

SAYS = {
    "no-settings": 'volume "v" cannot be mounted: configmap "nope" not found',
    "no-secret": 'volume "v" cannot be mounted: secret "nope" not found',
    "no-claim": 'persistentvolumeclaims "nope" not found',
    "unready": 'the readiness probe of container "c0" fails',
    "killed": "keeps being killed because its liveness probe fails",
    "rejected": "the kubelet rejects it (NodeAffinity)",
}
"""Parts of the answers of ``kubectl why``."""

ON_NODE = {
    "unready": 'the readiness probe of container "c0" has not succeeded yet',
    "rejected": "the kubelet rejects it (NodeAffinity)",
}
"""Answers of ``pycrictl why`` on a node without a journal, from the pod's status."""


@pytest.fixture(scope="module")
def faulty(shared_cluster: Cluster) -> Iterator[Cluster]:
    cluster = shared_cluster
    image = cluster.lab.reference(cluster.image("why:1", 1250, 1))
    for name, changes in FAULTY.items():
        container = {"name": "c0", "image": image, **changes.get("container", {})}
        spec = {
            **{key: value for key, value in changes.items() if key != "container"},
            "nodeName": NODE,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{"operator": "Exists"}],
            "containers": [container],
        }
        metadata = {"name": name, "namespace": "default"}
        cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    # pycrictl ignores the command line of a kubelet outside the machine's mount namespace.
    place = Path("/var/lib/kubelet/kubeconfig")
    place.write_bytes(cluster.kubeconfig("kubelet").read_bytes())
    yield cluster
    place.unlink()
    cluster.remove_pods()


@pytest.fixture
def plugin(faulty: Cluster, tmp_path: Path) -> Plugin:
    plugin = plugin_beside(faulty, tmp_path)
    plugin.name = "kubectl-why"
    return plugin


@pytest.mark.parametrize("name", SAYS)
def test_from_the_cluster(plugin: Plugin, name: str) -> None:
    wait_until(lambda: SAYS[name] in plugin.run(name).stdout.splitlines()[0])
    assert not re.search(NOISE, plugin.run(name).stdout)
    if name == "rejected":
        assert "controller" not in plugin.run(name).stdout


@pytest.mark.parametrize("name", ON_NODE)
def test_on_the_node(faulty: Cluster, name: str) -> None:
    wait_until(lambda: ON_NODE[name] in run(faulty, "why", f"default/{name}").splitlines()[0])
    for words in (["why"], ["why", f"default/{name}"], ["doctor"], ["top", "--once"]):
        assert not re.search(NOISE, run(faulty, *words)), words
