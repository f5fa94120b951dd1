"""Copies in a real cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.cluster.agent.copies.conftest import Plugin, plugin_of
from tests.e2e.cluster.cluster import PORT as API_PORT
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.shipped import agent_pid
from tests.kube.kubectl import Kubectl
from tests.support.cluster_agents import agent_pod, await_agent, remove_agent
from tests.waiting import wait_until


@contextmanager
def workstation(
    cluster: Cluster, folder: Path, user: str = "admin", port: int = API_PORT
) -> Iterator[Plugin]:
    """The plugin of a user who reaches the API server at a loopback port."""
    home = folder / user
    (home / "bin").mkdir(parents=True)
    (home / "bin/kubectl").symlink_to(cluster.programs / "kubectl")
    kubeconfig = home / "kubeconfig"
    text = cluster.kubeconfig(user).read_text()
    kubeconfig.write_text(text.replace(f":{API_PORT}", f":{port}"))
    kubeconfig.chmod(0o600)
    with plugin_of(Kubectl(kubeconfig, home, str(home / "bin/kubectl")), home) as plugin:
        yield plugin


class Container:
    """The running first container of a pod."""

    def __init__(self, cluster: Cluster, pod: str) -> None:
        def status() -> dict[str, Any]:
            status = cluster.kubectl.document("get", "pod", pod)["status"]
            return {"ready": False, **(status.get("containerStatuses") or [{}])[0]}

        wait_until(lambda: cluster.phase(pod) == "Running" and status()["ready"])
        name = str(status()["containerID"]).rpartition("/")[2]
        self.root = Path(f"/proc/{cluster.lab.node.kubelet.pid(name)}/root")


def assert_equal(first: Path, other: Path) -> None:
    subprocess.run(["diff", "-r", "--no-dereference", first, other], check=True)


OVERLAY = "with-copies"


class Agent:
    """The agent's pod, whose capabilities can be changed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.spool = cluster.folder / "copies"

    @property
    def kept(self) -> list[str]:
        """The archives it keeps: files in its folder, and open files without a name."""
        names = [str(path) for path in (self.spool / "copies").iterdir()]
        for path in Path(f"/proc/{agent_pid(self._cluster)}/fd").iterdir():
            with suppress(OSError):
                if "/copies/#" in (link := str(path.readlink())):
                    names.append(link)
        return names

    def make(self, template: dict[str, Any]) -> dict[str, Any]:
        """Make the DaemonSet's pod, with the spool in the folder of the cluster."""
        self._pod = agent_pod(self._cluster, template)
        for volume in self._pod["spec"]["volumes"]:
            if volume["name"] == "copies":
                self.spool.mkdir(exist_ok=True)
                volume["hostPath"]["path"] = str(self.spool)
        return self._pod

    @property
    def capabilities(self) -> list[str]:
        context = self._pod["spec"]["containers"][0]["securityContext"]["capabilities"]
        assert context["drop"] == ["ALL"]
        return list(context["add"])

    def restart(self, capabilities: list[str]) -> None:
        remove_agent(self._cluster)
        context = self._pod["spec"]["containers"][0]["securityContext"]["capabilities"]
        before, context["add"] = context["add"], capabilities
        self._cluster.apply(self._pod)
        context["add"] = before
        await_agent(self._cluster)
        wait_until(lambda: self._cluster.kubectl("get", "imagepulls").returncode == 0)
