"""Agents in a real cluster, applied as their manifests say."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.kubectl.plugin import Plugin, plugin_in
from tests.e2e.cluster.agents import NAME, NAMESPACE, publish, take_out
from tests.e2e.cluster.cluster import ADDRESS, NODE, Cluster
from tests.e2e.cluster.cluster import PORT as API_PORT
from tests.support.manifests import manifests
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
SECRETS = "/var/run/secrets/kubernetes.io/serviceaccount"


def agent_pod(cluster: Cluster, template: dict[str, Any]) -> dict[str, Any]:
    """Make the pod that the DaemonSet's controller would make on the node."""
    spec = template["spec"]
    (container,) = spec["containers"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    folders = {"/usr", "/lib", "/lib64", "/bin", str(ROOT), sys.prefix, sys.base_prefix}
    mounts = [folder for folder in sorted(folders) if Path(folder).is_dir()]
    for number, path in enumerate(mounts):
        name = f"machine{number}"
        volumes[name] = {"name": name, "hostPath": {"path": os.path.realpath(path)}}
        container["volumeMounts"].append({"name": name, "mountPath": path, "readOnly": True})
    volumes["api"] = {
        "name": "api",
        "projected": {
            "sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                {"configMap": {"name": "kube-root-ca.crt"}},
                {
                    "downwardAPI": {
                        "items": [
                            {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}
                        ]
                    }
                },
            ]
        },
    }
    container["volumeMounts"].append({"name": "api", "mountPath": SECRETS, "readOnly": True})
    container["image"] = cluster.lab.reference(cluster.lab.busybox)
    container["command"] = [sys.executable, "-m", "pycrictl"]
    container["env"] += [
        {"name": "PYTHONPATH", "value": str(ROOT)},
        {"name": "KUBERNETES_SERVICE_HOST", "value": ADDRESS},
        {"name": "KUBERNETES_SERVICE_PORT", "value": str(API_PORT)},
    ]
    changed = {
        "nodeName": NODE,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "volumes": list(volumes.values()),
    }
    spec.pop("priorityClassName")  # admission turns it into a number
    metadata = {
        "name": f"{NAME}-x",
        "namespace": NAMESPACE,
        "labels": template["metadata"]["labels"],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**spec, **changed}}


@contextmanager
def applied_from(
    cluster: Cluster, overlay: str, make: Callable[[dict[str, Any]], dict[str, Any]]
) -> Iterator[Cluster]:
    """Apply the manifests of an overlay and run the agent's pod while the block runs.

    ``make`` turns the DaemonSet's template into the pod.
    """
    kubectl, folder = cluster.kubectl, manifests(cluster.folder) / overlay
    kubectl.good("apply", "-k", str(folder))
    ca = {"data": {"ca.crt": Path(cluster.pki.ca).read_text()}}
    metadata = {"name": "kube-root-ca.crt", "namespace": NAMESPACE}
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, **ca})
    daemonset = kubectl.document("get", "daemonset", NAME, "-n", NAMESPACE)
    cluster.apply(make(daemonset["spec"]["template"]))
    await_agent(cluster)
    wait_until(lambda: kubectl("get", "imagepulls").returncode == 0)
    yield cluster
    remove_agent(cluster)
    take_out(cluster, folder)


def await_agent(cluster: Cluster) -> None:
    """Wait until the agent's pod is ready; publish its address as the Service's endpoint."""
    path = "jsonpath={.status.containerStatuses[0]}"
    words = ("get", "pod", f"{NAME}-x", "-n", NAMESPACE, "-o", path)
    try:
        wait_until(lambda: '"ready":true' in cluster.kubectl(*words).stdout)
    except AssertionError:
        logs = cluster.kubectl("logs", f"{NAME}-x", "-n", NAMESPACE)
        pytest.fail(f"{cluster.kubectl(*words).stdout}\n{logs.stdout}{logs.stderr}")
    publish(cluster, {NODE: (cluster.address_of(f"{NAME}-x", NAMESPACE), True)})


def remove_agent(cluster: Cluster) -> None:
    words = ("-n", NAMESPACE, "--force", "--grace-period=0")
    cluster.kubectl.good("delete", "pod", f"{NAME}-x", *words)


def plugin_beside(cluster: Cluster, folder: Path) -> Plugin:
    runtime = cluster.folder / "run"
    runtime.mkdir(exist_ok=True)
    plugin = plugin_in(folder, runtime, cluster.kubeconfig("admin"))
    (folder / "bin/kubectl").symlink_to(cluster.programs / "kubectl")
    return plugin
