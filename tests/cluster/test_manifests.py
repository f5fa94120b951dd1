"""The manifests in a real cluster: an agent as a pod of a real kubelet, and the plugin.

The tests add what controllers and admission would: the DaemonSet's pod, its token for the API
server, and the endpoints of the Service. The image is busybox, with the folders of Python and the
project mounted from this machine.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.kube.kubectl import Kubectl
from tests.kubectl.plugin import Plugin, plugin_in
from tests.packaging.test_helm import SAME, VALUES, changes_of, merged, render
from tests.packaging.test_kubernetes import PAIRS, WHOLE, combined
from tests.waiting import wait_until

from .agents import BASE, NAME, NAMESPACE, publish, take_out
from .cluster import ADDRESS, NODE, Cluster
from .cluster import PORT as API_PORT

ROOT = Path(__file__).parents[2]
SECRETS = "/var/run/secrets/kubernetes.io/serviceaccount"


def agent_pod(cluster: Cluster, template: dict[str, Any]) -> dict[str, Any]:
    """Make the pod that the DaemonSet's controller would make on the node."""
    spec = template["spec"]
    (container,) = spec["containers"]
    volumes = {one["name"]: one for one in spec["volumes"]}
    folders = {"/usr", "/lib", "/lib64", "/bin", str(ROOT), sys.prefix, sys.base_prefix}
    mounts = [one for one in sorted(folders) if Path(one).is_dir()]
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
    cluster: Cluster, folder: Path, make: Callable[[dict[str, Any]], dict[str, Any]]
) -> Iterator[Cluster]:
    """Apply the manifests of a folder and run the agent's pod while the block runs.

    ``make`` turns the DaemonSet's template into the pod.
    """
    kubectl = cluster.kubectl
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
    publish(cluster, {NODE: cluster.address_of(f"{NAME}-x", NAMESPACE)})


def remove_agent(cluster: Cluster) -> None:
    words = ("-n", NAMESPACE, "--force", "--grace-period=0")
    cluster.kubectl.good("delete", "pod", f"{NAME}-x", *words)


@pytest.fixture(scope="module")
def applied(shared_cluster: Cluster) -> Iterator[Cluster]:
    with applied_from(shared_cluster, BASE, partial(agent_pod, shared_cluster)) as cluster:
        yield cluster


def plugin_beside(cluster: Cluster, folder: Path) -> Plugin:
    runtime = cluster.folder / "run"
    runtime.mkdir(exist_ok=True)
    found = plugin_in(folder, runtime, cluster.kubeconfig("admin"))
    (folder / "bin/kubectl").symlink_to(cluster.programs / "kubectl")
    return found


def test_components_apply_beside_each_other(applied: Cluster, run_folder: Path) -> None:
    """In pairs and all at once; objects that several have in common are applied once."""
    made = [each for names in (*PAIRS, *WHOLE) for each in combined(names, run_folder)]
    assert_taken(applied, list({json.dumps(each): each for each in made}.values()))


@pytest.mark.parametrize("name", SAME)
def test_the_chart_applies(applied: Cluster, name: str, run_folder: Path) -> None:
    assert_taken(applied, render(merged(VALUES, changes_of(name, run_folder))))


def assert_taken(cluster: Cluster, objects: list[dict[str, Any]]) -> None:
    """Assert that the API server accepts every object of its built-in kinds, and every field."""
    own = [
        each
        for each in objects
        if each["apiVersion"].partition("/")[0] not in ("cert-manager.io", "monitoring.coreos.com")
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
