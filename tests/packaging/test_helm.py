"""The Helm chart renders the same objects as kustomize makes from the manifests."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pycrictl import __version__
from pycrictl.show.gofunctions import FUNCTIONS
from pycrictl.show.gotemplate import GoTemplate

from .test_kubernetes import combined, container, leaves, manifests, one

CHART = Path(__file__).parents[2] / "packaging/helm/pycrictl"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
TEMPLATES = sorted((CHART / "templates").glob("*.yaml"))
OF_HELM = {
    "toJson": (lambda value: json.dumps(value), 1, 1),
    "b64enc": (lambda text: base64.b64encode(text.encode()).decode(), 1, 1),
}
"""All functions that the chart uses besides those of Go templates."""

ON = {"enabled": True}
SAME: dict[str, tuple[list[str], dict[str, Any]]] = {
    "base": ([], {}),
    "copies": (["copies"], {"copies": ON}),
    "events": (["events"], {"events": ON}),
    "metrics": (["metrics"], {"metrics": ON}),
    "selinux": (["selinux"], {"selinux": ON}),
    "cri-o": (["cri-o"], {"runtime": {"crio": True}}),
    "k3s": (["k3s"], {"runtime": {"folder": "/run/k3s/containerd"}}),
    "k0s": (["k0s"], {"runtime": {"folder": "/run/k0s"}}),
    "microk8s": (["microk8s"], {"runtime": {"folder": "/var/snap/microk8s/common/run"}}),
    "cert-manager": (["cert-manager"], {"tls": {"mode": "certManager"}}),
    "ca": (["ca"], {"tls": {"mode": "files"}}),
    "kubelet-config": (
        ["kubelet-config"],
        {"kubelet": {"config": "/var/lib/kubelet/config.yaml"}},
    ),
    "namespaces": (["namespaces"], {"namespaces": ["default"]}),
    "many": (
        ["copies", "events", "metrics", "cri-o", "cert-manager"],
        {
            "copies": ON,
            "events": ON,
            "metrics": ON,
            "runtime": {"crio": True},
            "tls": {"mode": "certManager"},
        },
    ),
}
"""For each case, the components for kustomize and the values for Helm."""

Render = Callable[[dict[str, Any]], list[dict[str, Any]]]


def merged(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    found = dict(values)
    for key, value in changes.items():
        found[key] = merged(found[key], value) if isinstance(value, dict) else value
    return found


def by_templates(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Render the chart as Helm does, with those features that it uses."""
    data = {"Values": values, "Release": {"Namespace": "pycrictl"}}
    texts = [GoTemplate(path.read_text()).render(data) for path in TEMPLATES]
    return [each for text in texts for each in yaml.safe_load_all(text) if each]


def by_helm(values: dict[str, Any]) -> list[dict[str, Any]]:
    words = ["helm", "template", "pycrictl", str(CHART), "--namespace", "pycrictl", "--values", "-"]
    done = subprocess.run(
        words, input=json.dumps(values), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


@pytest.fixture(params=[by_templates, *([by_helm] if shutil.which("helm") else [])])
def render(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Render:
    for name, function in OF_HELM.items():
        monkeypatch.setitem(FUNCTIONS, name, function)
    made: Render = request.param
    return made


def changes_of(name: str, scratch: Path) -> dict[str, Any]:
    changes = SAME[name][1]
    if name != "ca":
        return changes
    folder = manifests(scratch) / "components/ca"
    files = {"ca": "ca.crt", "certificate": "tls.crt", "key": "tls.key"}
    pem = {key: (folder / file).read_text() for key, file in files.items()}
    return {"tls": {**changes["tls"], **pem}}


@pytest.mark.parametrize("name", SAME)
def test_it_makes_what_kustomize_makes(name: str, render: Render, run_folder: Path) -> None:
    wanted = [each for each in combined(SAME[name][0], run_folder) if each["kind"] != "Namespace"]
    found = render(merged(VALUES, changes_of(name, run_folder)))
    assert leaves(found) == leaves(wanted)
    assert len(found) == len(wanted)


def test_what_kustomize_has_no_component_for(render: Render) -> None:
    digest = "sha256:" + "0" * 64
    changes = {
        "image": {"repository": "registry.example.com/pycrictl", "digest": digest},
        "resources": {"limits": {"memory": "1Gi"}},
        "tolerations": [{"key": "a", "operator": "Exists"}],
    }
    objects = render(merged(VALUES, {}) | {**changes, "image": VALUES["image"] | changes["image"]})
    found = container(objects)
    assert found["image"] == f"registry.example.com/pycrictl@{digest}"
    assert found["resources"] == {"limits": {"memory": "1Gi"}}
    assert one(objects, "DaemonSet")["spec"]["template"]["spec"]["tolerations"] == [
        {"key": "a", "operator": "Exists"}
    ]


def test_it_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    release = __version__.partition(".dev")[0]
    assert chart["version"] == chart["appVersion"] == VALUES["image"]["tag"] == release
