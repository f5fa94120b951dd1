"""Copies in a cluster of one node: kubectl, the stand-in of an API server, an agent, containerd.

API server and agent communicate through a relay, which can be slowed down or interrupted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pycrictl.cluster.agent.copies.sessions import CONTAINER_NAME, POD_UID
from tests.cluster.agent.copies.conftest import Plugin, plugin_of, spooled
from tests.cluster.agent.copies.relay import Relay
from tests.cluster.agent.program import Program, running
from tests.cluster.agent.standing import Cluster, standing
from tests.cluster.kubectl.plugin import proxies_of
from tests.kube.apiserver import make_node_certificates
from tests.support.pull_objects import STARTED

from .images import busybox
from .kubelet import Kubelet
from .lab import Lab


class Distroless:
    """A container of the pod ``name`` that has nothing but its program."""

    def __init__(self, kubelet: Kubelet, reference: str, name: str, **fields: Any) -> None:
        self.name = name
        uid = f"uid-default-{name}"
        pod = kubelet.run_pod(kubelet.pod_config(name, uid=uid))
        labels = {POD_UID: uid, CONTAINER_NAME: "main"}
        command = ["/busybox-app", "sleep", "1000000"]
        self.id = kubelet.create_container(pod, reference, command, labels=labels, **fields)
        kubelet.start_container(self.id)
        self.pid = kubelet.pid(self.id)
        self._fd = os.open(f"/proc/{self.pid}/root", os.O_PATH | os.O_DIRECTORY)
        self.root = Path(f"/proc/{os.getpid()}/fd/{self._fd}")

    def close(self) -> None:
        os.close(self._fd)


class InCluster:
    """A node with its agent, and the plugin of a cluster user."""

    def __init__(self, lab: Lab, cluster: Cluster, folder: Path, plugin: Plugin) -> None:
        self.lab, self.cluster, self.folder, self.plugin = lab, cluster, folder, plugin
        self.store = folder / "store"
        self.link = Relay("", 0)
        self.agent: Program
        self._running = ExitStack()
        self._containers: list[Distroless] = []
        image = lab.layout.image("static:2", [lab.layout.layer([busybox("busybox-app")])])
        self._image = lab.push(image)
        lab.node.kubelet.pull(self._image)

    def start_agent(self, *flags: str, endpoint: str = "", module: str = "pycrictl") -> Program:
        self._running.close()
        self.cluster.api.services.clear()
        words = "--spool-dir", str(self.store), "--admin-socket", f"unix://{self.folder}/none"
        self.agent = self._running.enter_context(
            running(
                self.cluster,
                endpoint or self.lab.node.endpoint,
                *(*words, *flags),
                module=module,
            )
        )
        self.link.upstream = self.agent.port
        self.cluster.api.services.clear()
        self.cluster.stand_behind(self.link.port)
        return self.agent

    def add(self, name: str, **fields: Any) -> Distroless:
        made = Distroless(self.lab.node.kubelet, self._image, name, **fields)
        self._containers.append(made)
        self.cluster.add_pod(name, state=STARTED, phase="Running")
        return made

    def close(self) -> None:
        self._running.close()
        self.link.close()
        for container in self._containers:
            container.close()

    @property
    def archives(self) -> list[Path]:
        return spooled(self.store)

    @property
    def proxies(self) -> list[int]:
        return proxies_of(self.plugin.runtime)


@contextmanager
def in_cluster(lab: Lab, run_folder: Path, folder: Path) -> Iterator[InCluster]:
    with (
        standing(make_node_certificates(run_folder), folder) as cluster,
        plugin_of(cluster.kubectl(), folder) as plugin,
    ):
        made = InCluster(lab, cluster, folder, plugin)
        try:
            yield made
        finally:
            made.close()
