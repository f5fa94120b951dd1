"""The plugin with the real agent, through a real kubectl and a stand-in for the API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pycrictl.cluster.kubectl.api_errors import VIEW_ROLE
from tests.cluster.agent.standing import Cluster, standing
from tests.cluster.kubectl.plugin import Plugin
from tests.kube.access import Grant
from tests.kube.apiserver import make_node_certificates
from tests.support.manifests import build, object_of

PODS = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
STARTED = {"running": {"startedAt": "2026-11-22T10:00:05Z"}}


@pytest.fixture
def standing_cluster(run_folder: Path, tmp_path: Path) -> Iterator[Cluster]:
    with standing(make_node_certificates(run_folder), tmp_path) as made:
        made.start()
        yield made


@pytest.fixture
def admin(standing_cluster: Cluster, plugin: Plugin) -> Plugin:
    return _as(plugin, standing_cluster, "admin")


def _as(plugin: Plugin, cluster: Cluster, user: str) -> Plugin:
    plugin.environ["KUBECONFIG"] = str(cluster.kubectl(user).kubeconfig)
    return plugin


def test_a_node_whose_runtime_is_gone(standing_cluster: Cluster, admin: Plugin) -> None:
    standing_cluster.add_pod("web")
    run = admin.run("-A")
    assert run.code == 0
    assert run.stderr.splitlines() == [
        "node n1 does not answer: no runtime here",
        "no image is being pulled",
        "kubectl image-pull-progress: 'kubectl why' says what the pods wait for",
    ]


@pytest.mark.usefixtures("impatient")
def test_the_role_of_the_manifests_is_enough(
    standing_cluster: Cluster, plugin: Plugin, run_folder: Path
) -> None:
    """Without the role, the message must say how to get it."""
    standing_cluster.add_pod("web", state=STARTED, phase="Running")
    jane = _as(plugin, standing_cluster, "jane")
    standing_cluster.api.grants.append(Grant("jane", PODS))
    for words in ((), ("web",), ("-A",)):
        run = jane.run(*words)
        assert run.code == 1
        message, hint = run.stderr.splitlines()
        assert 'User "jane" cannot ' in message
        assert VIEW_ROLE in hint
    role = object_of(build("base", run_folder), "ClusterRole", VIEW_ROLE)
    standing_cluster.api.grants.append(Grant("jane", role["rules"], "default"))
    assert jane.run().code == 0
    assert jane.run("web").code == 0
    assert "forbidden" in jane.run("-A").stderr


def test_the_agent_may_no_more_than_it_needs(run_folder: Path) -> None:
    objects = build("base", run_folder)
    given = [
        (rule["apiGroups"], rule["resources"], sorted(rule["verbs"]))
        for kind in ("ClusterRole", "Role")
        for rule in object_of(objects, kind, "pycrictl-agent")["rules"]
    ]
    assert sorted(given) == [
        ([""], ["pods"], ["list", "watch"]),
        (["authentication.k8s.io"], ["tokenreviews"], ["create"]),
        (["authorization.k8s.io"], ["subjectaccessreviews"], ["create"]),
        (["discovery.k8s.io"], ["endpointslices"], ["list"]),
    ]
