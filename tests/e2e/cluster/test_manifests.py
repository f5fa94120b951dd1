"""The manifests in a real cluster: an agent as a pod of a real kubelet, and the plugin.

The tests add what controllers and admission would: the DaemonSet's pod, its token for the API
server, and the endpoints of the Service. The image is busybox, with the folders of Python and the
project mounted from this machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.kube.kubectl import Kubectl
from tests.support.charts import SAME, VALUES, changes_of, merged, render
from tests.support.cluster_agents import agent_pod, applied_from
from tests.support.manifests import PAIRS, WHOLE, combined
from tests.waiting import wait_until

from .cluster import Cluster


@pytest.fixture(scope="module")
def applied(shared_cluster: Cluster) -> Iterator[Cluster]:
    with applied_from(shared_cluster, "with-ca", partial(agent_pod, shared_cluster)) as cluster:
        yield cluster


def test_components_apply_beside_each_other(applied: Cluster, run_folder: Path) -> None:
    """In pairs and all at once; objects that several have in common are applied once."""
    made = [document for names in (*PAIRS, *WHOLE) for document in combined(names, run_folder)]
    assert_taken(applied, list({json.dumps(document): document for document in made}.values()))


@pytest.mark.parametrize("name", SAME)
def test_the_chart_applies(applied: Cluster, name: str, run_folder: Path) -> None:
    assert_taken(applied, render(merged(VALUES, changes_of(name, run_folder))))


def assert_taken(cluster: Cluster, objects: list[dict[str, Any]]) -> None:
    """Assert that the API server accepts every object of its built-in kinds, and every field."""
    own = [
        item
        for item in objects
        if item["apiVersion"].partition("/")[0] not in ("cert-manager.io", "monitoring.coreos.com")
    ]
    document = {"apiVersion": "v1", "kind": "List", "items": own}
    words = "apply", "--validate=strict", "--dry-run=server", "-f", "-"
    said = cluster.kubectl.good(*words, stdin=json.dumps(document))
    assert len(said.splitlines()) == len(own)


def test_users_by_the_roles_that_are_shipped(applied: Cluster) -> None:
    jane: Kubectl = applied.as_user("jane")
    assert "(Forbidden)" in jane.bad("get", "imagepulls")
    words = ("create", "rolebinding", "jane-sees-pulls", "--user=jane", "-n", "default")
    applied.kubectl.good(*words, "--clusterrole=pycrictl-imagepulls-view")
    try:
        wait_until(lambda: jane("get", "imagepulls").returncode == 0)
        assert "(Forbidden)" in jane.bad("get", "imagepulls", "-A")
    finally:
        applied.kubectl.good("delete", "rolebinding", "jane-sees-pulls", "-n", "default")
