"""Agents of the cluster, each a process with an address of its own, with the shipped manifests."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.e2e.node.daemon import Daemon
from tests.kube.aggregator import GROUP
from tests.serving import believing
from tests.support.manifests import manifests

from .cluster import START_S, Cluster

NAMESPACE: Final = "pycrictl"
NAME: Final = "pycrictl-agent"
PORT: Final = 10281


class Agents:
    """The agents of a cluster, behind its API server.

    Args:
        cluster: a running one.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._endpoints: dict[str, tuple[str, bool]] = {}
        self._daemons: dict[str, Daemon] = {}
        folder = cluster.folder / "agents"
        folder.mkdir(exist_ok=True)
        self.folder = folder

    def install(self) -> None:
        self._cluster.kubectl.good("apply", "-k", str(manifests(self._cluster.folder) / "with-ca"))
        self._write_credentials()

    def remove(self) -> None:
        for node in list(self._daemons):
            self.stop(node)
        take_out(self._cluster, manifests(self._cluster.folder) / "with-ca")

    def _write_credentials(self) -> None:
        words = ("create", "token", NAME, "-n", NAMESPACE, "--duration=3h")
        token = self._cluster.kubectl.good(*words).strip()
        self.kubeconfig = self._cluster.write_kubeconfig(NAME, {"token": token})
        self.peer_token = self.folder / "token"
        self.peer_token.write_text(self._cluster.kubectl.good(*words, f"--audience={GROUP}"))

    def daemon(self, node: str) -> Daemon:
        return self._daemons[node]

    def log(self, node: str) -> str:
        return self._daemons[node].log_path.read_text()

    def start(
        self,
        node: str,
        address: str,
        endpoint: str = "",
        *,
        serves: bool = True,
        flags: Sequence[str] = (),
        module: str = "pycrictl",
    ) -> None:
        """Start a node's agent, wait until it is ready, and publish its endpoint.

        One that does not serve is not ready there: other agents query it, the API server does not.
        ``endpoint`` is the node's runtime; the default is that of the cluster's own node.
        """
        files = manifests(self._cluster.folder) / "components/ca"
        command = [
            sys.executable, "-m", module,
            "-r", endpoint or self._cluster.lab.node.endpoint,
            "agent", "--listen", f"{address}:{PORT}", "--node-name", node,
            "--kubeconfig", str(self.kubeconfig), "--peer-token", str(self.peer_token),
            "--peer-namespace", NAMESPACE, "--log-level", "info",
            "--tls-cert", str(files / "tls.crt"), "--tls-key", str(files / "tls.key"),
            "--peer-ca", str(files / "ca.crt"),
            *flags,
        ]  # fmt: skip
        self._daemons[node] = Daemon(command, self.folder / f"{node}.log")
        self._daemons[node].start(lambda: is_ready(address), timeout_s=START_S)
        self._endpoints[node] = address, serves
        self._publish()

    def stop(self, node: str) -> None:
        """Stop a node's agent; its endpoint stays published."""
        self._daemons[node].terminate()

    def restart(self, node: str, address: str) -> None:
        self.stop(node)
        self._daemons[node].start(lambda: is_ready(address), timeout_s=START_S)

    def publish(self, node: str, address: str) -> None:
        """Publish the endpoint of an agent that was started elsewhere."""
        self._endpoints[node] = address, True
        self._publish()

    def _publish(self) -> None:
        publish(self._cluster, self._endpoints)


def take_out(cluster: Cluster, folder: Path) -> None:
    """Delete the objects of a folder's manifests."""
    kubectl = cluster.kubectl
    kubectl.good("delete", "-k", str(folder), "--wait=false")
    # The namespace controller does this once a namespace is empty; there is none here.
    namespace = kubectl.document("get", "namespace", NAMESPACE)
    namespace["spec"]["finalizers"] = []
    path = f"/api/v1/namespaces/{NAMESPACE}/finalize"
    kubectl.good("replace", "--raw", path, "-f", "-", stdin=json.dumps(namespace))
    objects = kubectl.good("get", "clusterrole,clusterrolebinding,apiservice", "-o", "name")
    assert "pycrictl" not in objects
    assert "pycrictl" not in kubectl.good("get", "rolebinding", "-n", "kube-system", "-o", "name")


def publish(cluster: Cluster, endpoints: Mapping[str, tuple[str, bool]]) -> None:
    """Write the agents' EndpointSlice, as its controller would: by node, where and if ready."""
    cluster.apply(
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"{NAME}-1",
                "namespace": NAMESPACE,
                "labels": {"kubernetes.io/service-name": NAME},
            },
            "addressType": "IPv4",
            "ports": [{"name": "https", "port": PORT, "protocol": "TCP"}],
            "endpoints": [
                {"addresses": [address], "nodeName": node, "conditions": {"ready": serves}}
                for node, (address, serves) in endpoints.items()
            ],
        }
    )


def is_ready(address: str) -> bool:
    try:
        url = f"https://{address}:{PORT}/readyz"
        with urllib.request.urlopen(url, timeout=5, context=believing()) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
