"""Agents that serve only some namespaces, with Roles in these."""

from __future__ import annotations

import pytest

from tests.cluster.agent.standing import OWN, Cluster
from tests.kube.access import Grant

PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}


@pytest.fixture
def bound(cluster: Cluster) -> Cluster:
    """A cluster whose agents may list pods only in the namespaces shop and bank."""
    (whole, *_) = (grant for grant in cluster.api.grants if grant.subject == OWN)
    rules = [rule for rule in whole.rules if "pods" not in rule["resources"]]
    cluster.api.grants.remove(whole)
    cluster.api.grants += [
        Grant(OWN, rules),
        *(Grant(OWN, [PODS], namespace) for namespace in ("shop", "bank")),
    ]
    cluster.start(namespaces=("shop", "bank"))
    for name, namespace in (("web", "shop"), ("db", "bank"), ("far", "default")):
        cluster.add_pod(name, namespace=namespace)
    return cluster


def test_lists_and_watches(bound: Cluster) -> None:
    found = bound.get("imagepulls")
    assert found.status == 200
    names = [one["metadata"]["name"] for one in found.document["items"]]
    assert sorted(names) == ["db.main", "web.main"]
    one = bound.get("namespaces/shop/imagepulls").document["items"]
    assert [each["metadata"]["name"] for each in one] == ["web.main"]
    watched = bound.get("imagepulls?watch=true&timeoutSeconds=1")
    assert b"web.main" in watched.content
    assert b"far.main" not in watched.content


@pytest.mark.parametrize(
    "path",
    [
        "namespaces/default/imagepulls",
        "namespaces/default/imagepulls/far.main",
        "namespaces/default/pods/far/imagepullprogress",
        "namespaces/default/imagepulls?watch=true&timeoutSeconds=1",
    ],
)
def test_another_namespace(bound: Cluster, path: str) -> None:
    found = bound.get(path)
    assert (found.status, found.document["reason"]) == (403, "Forbidden")
    assert found.document["message"] == "the agents serve only these namespaces: shop, bank"
