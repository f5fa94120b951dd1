"""A real kubectl with the agent's answers, through a stand-in for the API server."""

from __future__ import annotations

import re

from tests.cluster.agent.standing import Cluster
from tests.kube.kubectl import Kubectl


def test_get_and_describe(cluster: Cluster, kubectl: Kubectl) -> None:
    cluster.start()
    cluster.add_pod("web")
    cluster.add_pod("db", namespace="other")
    heading, row = kubectl.good("get", "ipull").splitlines()
    assert heading.split() == ["NAME", "IMAGE", "PHASE", "PERCENT", "PROGRESS", "ETA", "AGE"]
    assert row.split()[:3] == ["web.main", "team/app:1", "<unknown>"]
    everywhere = kubectl.good("get", "imagepulls", "-A", "-o", "wide").splitlines()
    assert [row.split()[:2] for row in everywhere[1:]] == [
        ["default", "web.main"],
        ["other", "db.main"],
    ]
    pull = kubectl.document("get", "imagepull", "web.main")
    assert pull["spec"] == {
        "podName": "web",
        "podUID": "uid-default-web",
        "containers": ["main"],
        "image": "registry.test/team/app:1",
        "nodeName": "n1",
    }
    assert {condition["status"] for condition in pull["status"].pop("conditions")} == {"Unknown"}
    assert pull["status"] == {"phase": "Waiting", "unknown": True, "error": "no runtime here"}
    described = kubectl.good("describe", "imagepull", "web.main")
    assert re.search(r"(?m)^  Phase: +Waiting$", described)


def test_discovery_and_explanation(cluster: Cluster, kubectl: Kubectl) -> None:
    cluster.start()
    _, *rows = kubectl.good("api-resources", "--api-group=progress.pycrictl.dev").splitlines()
    assert [row.split() for row in rows] == [
        ["imagepulls", "ipull", "progress.pycrictl.dev/v1alpha1", "true", "ImagePull"]
    ]
    kubectl.needs(27)  # older ones read OpenAPI v2, which the API server makes
    assert "Place in the line for a slot" in kubectl.good("explain", "imagepulls.status")


def test_what_is_not_there(cluster: Cluster, kubectl: Kubectl) -> None:
    cluster.start()
    error = kubectl.bad("get", "ipull", "nope.main")
    assert error.strip() == (
        'Error from server (NotFound): imagepulls.progress.pycrictl.dev "nope.main" not found'
    )


def test_the_longest_names(cluster: Cluster, kubectl: Kubectl) -> None:
    cluster.start()
    name = "a" * 120 + "." + "b" * 120
    cluster.add_pod(name)
    assert kubectl.document("get", "ipull", f"{name}.main")["spec"]["podName"] == name


def test_wait_and_watch(cluster: Cluster, kubectl: Kubectl) -> None:
    kubectl.needs(23)
    cluster.start()
    cluster.add_pod("web")
    condition = "--for=jsonpath={.status.phase}="
    assert "met" in kubectl.good("wait", f"{condition}Waiting", "imagepull/web.main")
    with kubectl.running("get", "ipull", "-w", "-o", "name") as process:
        assert process.stdout is not None
        shown = (line for line in process.stdout if not line.startswith("Warning: "))
        assert next(shown) == "imagepull.progress.pycrictl.dev/web.main\n"
        cluster.add_pod("db")
        assert next(shown) == "imagepull.progress.pycrictl.dev/db.main\n"
    started = {"running": {"startedAt": "2026-11-22T10:00:05Z"}}
    with kubectl.running(
        "wait", f"{condition}Succeeded", "imagepull/web.main", "--timeout=30s"
    ) as process:
        cluster.add_pod("web", state=started, phase="Running")
        assert process.stdout is not None
        assert "condition met" in process.stdout.read()
