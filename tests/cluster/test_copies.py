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
from tests.agent.copies.conftest import Plugin, plugin_of
from tests.agent.copies.relay import Relay
from tests.agent.copies.spooled import spooled
from tests.copy.trees import listing, stages_in
from tests.kube.aggregator import GROUP
from tests.kube.kubectl import Kubectl
from tests.kubectl.plugin import proxies_of
from tests.node.kubelet import RUNTIME
from tests.node.lab import MIB
from tests.node.test_copy_node import make_tree
from tests.waiting import settled, wait_until

from .agents import Agents, binding, role
from .cluster import ADDRESS, NODE, Cluster
from .cluster import PORT as API_PORT

SIZE_MIB = int(os.environ.get("COPY_MIB", "256"))
"""Of what is copied through five cuts, in each direction."""

LINK_BYTES_PER_S = 20e6
AWAY_S = 30.0
ASLEEP_S = float(os.environ.get("COPY_ASLEEP_S", "10"))
PATIENCE_S = 600.0

COPY = [
    {"apiGroups": [GROUP], "resources": ["pods/containercopies"], "verbs": ["create", "get"]},
    {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]},
]


@pytest.fixture
def agents(cluster: Cluster, shared_agents: Agents) -> Iterator[Agents]:
    yield shared_agents
    spool = shared_agents.folder / "spool"
    wait_until(lambda: spooled(spool) == [])


@pytest.fixture
def plugin(cluster: Cluster, tmp_path: Path) -> Iterator[Plugin]:
    with workstation(cluster, tmp_path) as made:
        yield made
        assert made.kept == []


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
def slow_link(bytes_per_s: float) -> Iterator[Relay]:
    with closing(Relay("", API_PORT)) as link:
        link.bytes_per_s = int(bytes_per_s)
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

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


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


# What is copied


def test_trees_and_archives(cluster: Cluster, web: Container, plugin: Plugin) -> None:
    tree = plugin.state.parent / "tree"
    make_tree(tree)
    done = plugin("-a", str(tree), "web:/srv")
    assert (done.returncode, done.stdout) == (0, b""), done.stderr
    assert listing(web.root / "srv", ids=True) == listing(tree, ids=True)
    done = plugin("-a", "default/web:/srv", str(tree.parent / "back"))
    assert done.returncode == 0, done.stderr
    assert listing(tree.parent / "back", ids=True) == listing(tree, ids=True)
    archive = plugin("web:/srv/sub", "-").stdout
    assert plugin("-", "web:/tmp", stdin=archive).returncode == 0
    assert_equal(web.root / "tmp/sub", tree / "sub")
    assert stages_in(web.root / "srv", web.root / "tmp", tree.parent) == []


def test_volumes(cluster: Cluster, agents: Agents, plugin: Plugin, tmp_path: Path) -> None:
    name = {"name": "settings", "namespace": "default"}
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": name, "data": {"k": "v"}})
    volumes: dict[str, dict[str, Any]] = {
        "data": {"emptyDir": {}},
        "settings": {"configMap": {"name": "settings"}},
    }
    spec = {
        "nodeName": NODE,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "volumes": [{"name": name, **volume} for name, volume in volumes.items()],
        "containers": [
            {
                "name": "c0",
                "image": cluster.lab.reference(cluster.image("web:1", 1200, 1)),
                "volumeMounts": [{"name": name, "mountPath": f"/{name}"} for name in volumes],
            }
        ],
    }
    metadata = {"name": "mounts", "namespace": "default"}
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    mounts = Container(cluster, "mounts")
    make_tree(tmp_path / "tree")
    done = plugin(str(tmp_path / "tree"), "mounts:/data/tree")
    assert done.returncode == 0, done.stderr
    assert_equal(mounts.root / "data/tree", tmp_path / "tree")
    done = plugin("mounts:/settings/k", str(tmp_path / "k"), "-L")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "k").read_text() == "v"
    before = sorted(one.name for one in (mounts.root / "settings").iterdir())
    done = plugin(str(tmp_path / "tree/f"), "mounts:/settings/f")
    assert done.returncode == 1
    assert b"read-only file system" in done.stderr.lower(), done.stderr
    assert done.stderr.count(b"\n") == 1, done.stderr
    assert sorted(one.name for one in (mounts.root / "settings").iterdir()) == before


# What happens meanwhile


@pytest.mark.timeout(1800)
def test_five_cuts(cluster: Cluster, agents: Agents, web: Container, tmp_path: Path) -> None:
    """Each in the middle of a copy there and of one back, over a link for each."""
    fill(tmp_path / "there", SIZE_MIB)
    fill(web.root / "tmp/back", SIZE_MIB)
    copies = {"to": (str(tmp_path / "there"), "web:/there"), "from": ("web:/tmp/back", "back")}
    with (
        slow_link(LINK_BYTES_PER_S) as link_to,
        slow_link(LINK_BYTES_PER_S) as link_from,
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


@contextmanager
def half_way(
    cluster: Cluster, agents: Agents, folder: Path
) -> Iterator[tuple[Plugin, subprocess.Popen[bytes]]]:
    """A copy of 32 MiB to ``web`` that takes eight seconds, when some of it has arrived."""
    fill(folder / "f", 32)
    with (
        slow_link(4e6) as link,
        workstation(cluster, folder / "slow", port=link.port) as plugin,
    ):
        process = plugin.start(str(folder / "f"), "web:/f", start_new_session=True)
        try:
            wait_until(lambda: link.passed > 4 * MIB)
            yield plugin, process
        finally:
            process.kill()
            process.communicate()


REPLACED = b'container "c0" of pod "default/web" was stopped or replaced since the copy began'


def test_a_container_that_dies(
    cluster: Cluster, agents: Agents, web: Container, tmp_path: Path
) -> None:
    with half_way(cluster, agents, tmp_path) as (plugin, process):
        web.kill()
        _, stderr = process.communicate(timeout=100)
        assert process.returncode == 1
        assert REPLACED in stderr, stderr
        assert plugin.kept == []
        wait_until(lambda: Container(cluster, "web").id != web.id)
        assert not (Container(cluster, "web").root / "f").exists()


def test_a_container_that_was_replaced(
    cluster: Cluster, agents: Agents, web: Container, tmp_path: Path
) -> None:
    with half_way(cluster, agents, tmp_path) as (plugin, process):
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert len(plugin.kept) == 1
        web.kill()
        wait_until(lambda: Container(cluster, "web").id != web.id)
        done = plugin("--resume", str(tmp_path / "f"), "web:/f")
        assert done.returncode == 1
        assert REPLACED in done.stderr, done.stderr
        assert b"cannot be resumed" in done.stderr, done.stderr
        assert plugin.kept == []
        assert not (Container(cluster, "web").root / "f").exists()


def test_a_pod_that_is_deleted(
    cluster: Cluster, agents: Agents, web: Container, tmp_path: Path
) -> None:
    with half_way(cluster, agents, tmp_path) as (plugin, process):
        cluster.kubectl.good("delete", "pod", "web", "--grace-period=0", "--force")
        _, stderr = process.communicate(timeout=100)
        assert process.returncode == 1
        assert b'pods "web" not found' in stderr or REPLACED in stderr, stderr
        assert plugin.kept == []


# Who may


def test_a_user_needs_both_rights(
    cluster: Cluster, agents: Agents, web: Container, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("content")
    user = {"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}
    with workstation(cluster, tmp_path, "jane") as jane:
        words = str(tmp_path / "f"), "web:/f", "--retries", "0"
        done = jane(*words)
        assert done.returncode == 1
        assert b'User "jane" cannot create resource "pods/containercopies"' in done.stderr
        cluster.apply(role("copy", COPY[:1], "default"), binding("copy", "Role", user, "default"))
        try:
            refused = b'User "jane" cannot create resource "pods/exec"'
            wait_until(lambda: refused in jane(*words).stderr)
            done = jane("web:/etc/passwd", str(tmp_path), "--retries", "0")
            assert done.returncode == 1
            assert refused in done.stderr
            assert done.stderr.count(b"\n") <= 2, done.stderr
            assert not (web.root / "f").exists()
            cluster.apply(role("copy", COPY, "default"))
            answers: list[subprocess.CompletedProcess[bytes]] = []

            def is_allowed() -> bool:
                answers.append(jane(*words))
                return refused not in answers[-1].stderr

            wait_until(is_allowed)
            assert answers[-1].returncode == 0, answers[-1].stderr
            assert (web.root / "f").read_text() == "content"
        finally:
            cluster.kubectl.good("delete", "role,rolebinding", "-n", "default", "copy")
        assert jane.kept == []


def test_what_the_log_says(
    cluster: Cluster, agents: Agents, web: Container, plugin: Plugin, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("content")
    assert plugin(str(tmp_path / "f"), "web:/audited").returncode == 0
    wanted = "copy user=admin pod=default/web container=c0 direction=to path=/audited size_bytes="
    (line,) = (one for one in agents.log(NODE).splitlines() if wanted in one)
    assert line.endswith("end=done")
