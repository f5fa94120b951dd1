"""``kubectl container-cp`` with a real kubectl, an agent as a program, and a real containerd."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.agent.copies.engine import CONTAINER_NAME, POD_UID
from tests.agent.copies.conftest import Plugin, plugin_of
from tests.agent.standing import Cluster, standing
from tests.copy.trees import listing, stages_in
from tests.kube.apiserver import make_node_certificates
from tests.proxy.program import Program as Proxy
from tests.waiting import wait_until

from .images import File
from .kubelet import RUNTIME
from .lab import MIB, Lab
from .test_agent import STARTED, running
from .test_copy_node import make_tree

UID = "uid-default-web"


@pytest.fixture
def cluster(run_folder: Path, tmp_path: Path) -> Iterator[Cluster]:
    with standing(make_node_certificates(run_folder), tmp_path) as made:
        yield made


@pytest.fixture
def plugin(cluster: Cluster, tmp_path: Path) -> Iterator[Plugin]:
    with plugin_of(cluster.kubectl(), tmp_path) as made:
        yield made


class Distroless:
    """A container that has nothing but its program.

    Attributes:
        id: the container's.
        root: its root directory.
    """

    def __init__(self, lab: Lab) -> None:
        binary = Path("/bin/busybox")
        only = File("busybox-app", binary.stat().st_size, lambda: binary.open("rb"), mode=0o755)
        reference = lab.push(lab.layout.image("static:2", [lab.layout.layer([only])]))
        self.kubelet = lab.node.kubelet
        self.kubelet.pull(reference)
        pod = self.kubelet.run_pod(self.kubelet.pod_config("web", uid=UID))
        labels = {POD_UID: UID, CONTAINER_NAME: "main"}
        command = ["/busybox-app", "sleep", "1000000"]
        self.id = self.kubelet.create_container(pod, reference, command, labels=labels)
        self.kubelet.start_container(self.id)
        asked = cri_pb2.ContainerStatusRequest(container_id=self.id, verbose=True)
        status = self.kubelet.call(
            RUNTIME + "ContainerStatus", asked, cri_pb2.ContainerStatusResponse
        )
        self.pid = int(json.loads(status.info["info"])["pid"])
        self.root = Path(f"/proc/{self.pid}/root")


def left(store: Path) -> list[str]:
    return [one.name for one in store.iterdir() if one.suffix == ".tar"]


@pytest.mark.parametrize("way", ["node", "proxy"])
def test_trees_both_ways(
    lab: Lab, cluster: Cluster, plugin: Plugin, tmp_path: Path, way: str
) -> None:
    container, store = Distroless(lab), tmp_path / "store"
    (tmp_path / "px").mkdir()
    with Proxy(tmp_path / "px", lab.node.endpoint) as proxy:
        endpoint = proxy.endpoint if way == "proxy" else lab.node.endpoint
        flags = "--spool-dir", str(store), "--admin-socket", f"unix://{tmp_path}/none"
        with running(cluster, endpoint, *flags) as program:
            cluster.add_pod("web", state=STARTED, phase="Running")
            make_tree(tmp_path / "tree")
            done = plugin(str(tmp_path / "tree"), "web:/new")
            assert done.returncode == 0, done.stderr
            assert {*listing(container.root / "new")} == {*listing(tmp_path / "tree")}
            done = plugin("-a", "web:/new", str(tmp_path / "back"))
            assert done.returncode == 0, done.stderr
            assert listing(tmp_path / "back") == listing(container.root / "new")
            assert (left(store), plugin.kept) == ([], [])
            assert stages_in(container.root) == []
            log = program.log.read_text()
            line = "copy user=admin pod=default/web container=main direction=to path=/new"
            assert line in log
            assert log.count("end=done") == 2
        wait_until(lambda: proxy.log().count(" copy direction=") == (2 if way == "proxy" else 0))


def test_a_container_that_dies(lab: Lab, cluster: Cluster, plugin: Plugin, tmp_path: Path) -> None:
    container, store = Distroless(lab), tmp_path / "store"
    (tmp_path / "f").write_bytes(os.urandom(64 * MIB))
    with running(cluster, lab.node.endpoint, "--spool-dir", str(store)) as program:
        cluster.add_pod("web", state=STARTED, phase="Running")
        process = plugin.start(str(tmp_path / "f"), "web:/f")
        wait_until(lambda: any(one.stat().st_size > MIB for one in store.glob("*.tar")))
        os.kill(container.pid, signal.SIGKILL)
        _, stderr = process.communicate(timeout=100)
        assert process.returncode == 1
        assert b"was stopped or replaced since the copy began" in stderr, stderr
        assert (left(store), plugin.kept) == ([], [])
        assert "was stopped or replaced" in program.log.read_text()
