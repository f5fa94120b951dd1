"""The Helm chart renders the same objects as kustomize makes from the manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pycrictl import __version__
from tests.support.charts import CHART, FILES, PEM, SAME, VALUES, changes_of, helm, merged, render
from tests.support.manifests import combined, container, leaves, object_of


@pytest.mark.parametrize("name", SAME)
def test_it_makes_what_kustomize_makes(name: str, run_folder: Path) -> None:
    wanted = [
        document
        for document in combined(SAME[name][0], run_folder)
        if document["kind"] != "Namespace"
    ]
    rendered = render(merged(VALUES, changes_of(name, run_folder)))
    assert leaves(rendered) == leaves(wanted)
    assert len(rendered) == len(wanted)


def test_what_kustomize_has_no_component_for() -> None:
    digest = "sha256:" + "0" * 64
    changes = {
        "image": {"repository": "registry.example.com/pycrictl", "digest": digest},
        "resources": {"requests": None, "limits": {"memory": "1Gi"}},
        "tolerations": [{"key": "a", "operator": "Exists"}],
    }
    objects = render(merged(VALUES, {}) | {**changes, "image": VALUES["image"] | changes["image"]})
    agent = container(objects)
    assert agent["image"] == f"registry.example.com/pycrictl@{digest}"
    assert agent["resources"] == {"limits": {"memory": "1Gi"}}
    assert object_of(objects, "DaemonSet")["spec"]["template"]["spec"]["tolerations"] == [
        {"key": "a", "operator": "Exists"}
    ]


def test_what_else_clusters_need() -> None:
    peers = [{"ipBlock": {"cidr": "10.0.0.0/24"}}]
    affinity: dict[str, Any] = {"nodeAffinity": {"requiredDuringScheduling": None}}
    objects = render(
        {
            "imagePullSecrets": [{"name": "registry"}],
            "podLabels": {"team": "nodes"},
            "affinity": affinity,
            "updateStrategy": {"type": "OnDelete"},
            "networkPolicy": {"from": peers},
        }
    )
    agents = object_of(objects, "DaemonSet")["spec"]
    pod = agents["template"]["spec"]
    assert agents["updateStrategy"]["type"] == "OnDelete"
    assert agents["template"]["metadata"]["labels"]["team"] == "nodes"
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["affinity"].keys() == affinity.keys()
    assert object_of(objects, "NetworkPolicy")["spec"]["ingress"][1]["from"] == peers


def test_copies_on_chosen_nodes() -> None:
    """Each node has one agent, and only the chosen ones an agent with the rights for copies."""
    objects = render({"copies": {"enabled": True, "nodeSelector": {"copies": "yes"}}})
    pulls, copies = [
        item["spec"]["template"]["spec"] for item in objects if item["kind"] == "DaemonSet"
    ]
    (term,) = pulls["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"] == [{"key": "copies", "operator": "NotIn", "values": ["yes"]}]
    assert copies["nodeSelector"] == {"copies": "yes", "kubernetes.io/os": "linux"}
    added = [
        spec["containers"][0]["securityContext"]["capabilities"]["add"] for spec in (pulls, copies)
    ]
    assert (added[0], len(added[1])) == (["SYS_PTRACE"], 5)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"tls": {"mode": "bogus"}}, "'/tls/mode': value must be one of"),
        ({"copies": {"enabled": "false"}}, "'/copies/enabled': got string, want boolean"),
        ({"unknown": 1}, "additional properties 'unknown' not allowed"),
        ({"copies": {"spoolsize": "1Gi"}}, "additional properties 'spoolsize' not allowed"),
        ({"image": {"digest": "latest"}}, "'/image/digest': 'latest' does not match"),
        ({"runtime": {"folder": "run"}}, "'/runtime/folder': 'run' does not match"),
        ({}, "tls.mode=files needs tls.ca"),
        ({"tls": {"mode": "certManager", "ca": PEM}}, "need tls.mode=files: with certManager"),
        (
            {
                "tls": FILES,
                "affinity": {"a": 1},
                "copies": {"enabled": True, "nodeSelector": {"a": "b"}},
            },
            "affinity and copies.nodeSelector cannot be combined",
        ),
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any], error: str) -> None:
    done = helm(values)
    assert done.returncode != 0
    assert error in done.stderr


def test_it_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    release = __version__.partition(".dev")[0]
    assert chart["version"] == chart["appVersion"] == VALUES["image"]["tag"] == release
