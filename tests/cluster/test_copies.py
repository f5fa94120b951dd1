"""``kubectl container-cp`` from a slow workstation to containers of a real kubelet."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pycrictl._proto import cri_pb2
from tests.agent.copies.conftest import Plugin, plugin_of, spooled
from tests.agent.copies.relay import Relay
from tests.copy.trees import stages_in
from tests.kube.kubectl import Kubectl
from tests.kubectl.plugin import proxies_of
from tests.node.kubelet import RUNTIME
from tests.node.lab import MIB
from tests.waiting import settled, wait_until

from .agents import Agents
from .cluster import ADDRESS, NODE, Cluster
from .cluster import PORT as API_PORT

SIZE_MIB = int(os.environ.get("COPY_MIB", "256"))
"""Of what is copied through five cuts, in each direction."""

LINK_BYTES_PER_S = 20_000_000
AWAY_S = 30.0
ASLEEP_S = float(os.environ.get("COPY_ASLEEP_S", "10"))
PATIENCE_S = 600.0


@pytest.fixture
def agents(cluster: Cluster, shared_agents: Agents) -> Iterator[Agents]:
    yield shared_agents
    spool = shared_agents.folder / "spool"
    wait_until(lambda: spooled(spool) == [])


@contextmanager
def workstation(
    cluster: Cluster, folder: Path, user: str = "admin", port: int = API_PORT
) -> Iterator[Plugin]:
    """The plugin of a user who reaches the API server at a port of the loopback."""
    home = folder / user
    (home / "bin").mkdir(parents=True)
    (home / "bin/kubectl").symlink_to(cluster.programs / "kubectl")
    kubeconfig = home / "kubeconfig"
    found = cluster.kubeconfig(user).read_text()
    kubeconfig.write_text(found.replace(f":{API_PORT}", f":{port}"))
    kubeconfig.chmod(0o600)
    with plugin_of(Kubectl(kubeconfig, home, str(home / "bin/kubectl")), home) as plugin:
        yield plugin


@contextmanager
def slow_link() -> Iterator[Relay]:
    with closing(Relay("", API_PORT)) as link:
        link.bytes_per_s = LINK_BYTES_PER_S
        yield link


class Container:
    """The first container of a pod, as it runs now."""

    def __init__(self, cluster: Cluster, pod: str) -> None:
        self._cluster, self._pod = cluster, pod
        wait_until(lambda: cluster.phase(pod) == "Running" and self.status["ready"])
        self.id = str(self.status["containerID"]).rpartition("/")[2]
        asked = cri_pb2.ContainerStatusRequest(container_id=self.id, verbose=True)
        answer = cluster.lab.node.kubelet.call(
            RUNTIME + "ContainerStatus", asked, cri_pb2.ContainerStatusResponse
        )
        self.pid = int(json.loads(answer.info["info"])["pid"])
        self.root = Path(f"/proc/{self.pid}/root")

    @property
    def status(self) -> dict[str, Any]:
        found = self._cluster.kubectl.document("get", "pod", self._pod)["status"]
        return {"ready": False, **(found.get("containerStatuses") or [{}])[0]}


@pytest.fixture
def web(cluster: Cluster, agents: Agents) -> Container:
    cluster.run_pod("web", cluster.lab.reference(cluster.image("web:1", 1200, 1)))
    return Container(cluster, "web")


def fill(path: Path, size_mib: int) -> None:
    """Write random bytes, with a hole in each eighth MiB."""
    with path.open("wb") as file:
        for number in range(size_mib):
            if number % 8 == 7:
                file.seek(MIB, os.SEEK_CUR)
            else:
                file.write(os.urandom(MIB))
        file.truncate(size_mib * MIB)


def assert_equal(one: Path, other: Path) -> None:
    subprocess.run(["diff", "-r", "--no-dereference", one, other], check=True)


@pytest.mark.timeout(1800)
def test_five_cuts(cluster: Cluster, agents: Agents, web: Container, tmp_path: Path) -> None:
    """Each in the middle of a copy there and of one back, over a link for each."""
    fill(tmp_path / "there", SIZE_MIB)
    fill(web.root / "tmp/back", SIZE_MIB)
    copies = {"to": (str(tmp_path / "there"), "web:/there"), "from": ("web:/tmp/back", "back")}
    with (
        slow_link() as link_to,
        slow_link() as link_from,
        workstation(cluster, tmp_path / "one", port=link_to.port) as one,
        workstation(cluster, tmp_path / "other", port=link_from.port) as other,
    ):
        running = {
            "to": one.start(*copies["to"], "--progress", "plain"),
            "from": other.start(*copies["from"], "--progress", "plain", cwd=tmp_path),
        }
        laptops = [(running["to"], one), (running["from"], other)]

        def reached(share: float) -> None:
            wanted = SIZE_MIB * MIB * share
            is_there = settled(
                lambda: min(link_to.passed, link_from.passed) >= wanted, limit_s=PATIENCE_S
            )
            assert is_there, (link_to.passed, link_from.passed)
            for name, process in running.items():
                assert process.poll() is None, (name, share, process.communicate())

        try:
            for number, cut in enumerate((restart_api, restart_agent, kill, away, sleep)):
                reached((number + 0.5) / 6)
                cut(cluster, agents, laptops)
            ended = {
                name: process.communicate(timeout=PATIENCE_S) for name, process in running.items()
            }
        finally:
            for process in running.values():
                process.kill()
        for name, process in running.items():
            assert process.returncode == 0, (name, ended[name])
            # Two cuts with nothing copied between them are one, and not all break a connection.
            notes = (b"it goes on as soon as it can", b"it begins anew")
            assert sum(map(ended[name][1].count, notes)) >= 2, ended[name]
        # What was sent a second time is what was on its way, and all until the agent's restart.
        for link in (link_to, link_from):
            assert SIZE_MIB * MIB < link.passed < SIZE_MIB * MIB * 1.35 + 5 * 40 * MIB
        assert (one.kept, other.kept) == ([], [])
    assert_equal(web.root / "there", tmp_path / "there")
    assert_equal(web.root / "tmp/back", tmp_path / "back")
    assert stages_in(tmp_path, web.root / "tmp") == []


Laptops = list[tuple[subprocess.Popen[bytes], Plugin]]


def restart_api(cluster: Cluster, agents: Agents, laptops: Laptops) -> None:
    cluster.apiserver.terminate()
    cluster.start_apiserver()


def restart_agent(cluster: Cluster, agents: Agents, laptops: Laptops) -> None:
    agents.restart(NODE, ADDRESS)


def kill(cluster: Cluster, agents: Agents, laptops: Laptops) -> None:
    for _, plugin in laptops:
        (carrier,) = proxies_of(plugin.runtime)
        os.kill(carrier, signal.SIGKILL)


def away(cluster: Cluster, agents: Agents, laptops: Laptops) -> None:
    """Take the node's network away: nothing reaches its address, and no connection is closed."""
    command = ["ip", "address", "del", f"{ADDRESS}/32", "dev", "lo"]
    subprocess.run(command, check=True)
    time.sleep(AWAY_S)
    command[2] = "add"
    subprocess.run(command, check=True)


def sleep(cluster: Cluster, agents: Agents, laptops: Laptops) -> None:
    everything = [
        pid for process, plugin in laptops for pid in (process.pid, *proxies_of(plugin.runtime))
    ]
    assert len(everything) == 4
    for pid in everything:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(ASLEEP_S)
    for pid in everything:
        os.kill(pid, signal.SIGCONT)
