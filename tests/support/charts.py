"""The Helm chart, rendered."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.packaging.helm import find_helm
from tests.support.manifests import manifests

CHART = Path(__file__).parents[2] / "packaging/helm/pycrictl"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
ON = {"enabled": True}
PEM = "-----BEGIN CERTIFICATE-----"
FILES = dict.fromkeys(("ca", "certificate", "key"), PEM)
SAME: dict[str, tuple[list[str], dict[str, Any]]] = {
    "ca": (["ca"], {}),
    "copies": (["copies"], {"copies": ON}),
    "events": (["events"], {"events": ON}),
    "metrics": (["metrics"], {"metrics": ON}),
    "selinux": (["selinux"], {"selinux": ON}),
    "cri-o": (["cri-o"], {"runtime": {"crio": True}}),
    "k3s": (["k3s"], {"runtime": {"folder": "/run/k3s/containerd"}}),
    "k0s": (["k0s"], {"runtime": {"folder": "/run/k0s"}}),
    "microk8s": (["microk8s"], {"runtime": {"folder": "/var/snap/microk8s/common/run"}}),
    "cert-manager": (["cert-manager"], {"tls": {"mode": "certManager"}}),
    "kubelet-config": (
        ["kubelet-config"],
        {"kubelet": {"config": "/var/lib/kubelet/config.yaml"}},
    ),
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


def merged(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    known = dict(values)
    for key, value in changes.items():
        known[key] = merged(known[key], value) if isinstance(value, dict) else value
    return known


def helm(
    values: dict[str, Any], files: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run helm with values; ``files`` are the PEM of certificates that these do not give."""
    given = {key: value for key, value in values.get("tls", {}).items() if value}
    tls = {**(files or {}), **given}
    words = ["template", "pycrictl", str(CHART), "--namespace", "pycrictl", "--values", "-"]
    return subprocess.run(
        [find_helm(), *words],
        input=json.dumps({**values, "tls": tls}),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def render(values: dict[str, Any]) -> list[dict[str, Any]]:
    is_made = values.get("tls", {}).get("mode") == "certManager"
    done = helm(values, None if is_made else FILES)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def changes_of(name: str, scratch: Path) -> dict[str, Any]:
    """Return the values of a case, with the certificates that kustomize takes."""
    components, changes = SAME[name]
    if "cert-manager" in components:
        return changes
    folder = manifests(scratch) / "components/ca"
    files = {"ca": "ca.crt", "certificate": "tls.crt", "key": "tls.key"}
    return {**changes, "tls": {key: (folder / file).read_text() for key, file in files.items()}}
