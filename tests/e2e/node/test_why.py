"""The first line of ``why`` on a real node, for the causes that administrators meet most.

The tests act as the kubelet: they make its calls to the runtime, and a stand-in of an API server
reports, as the kubelet would, why a container waits, in the runtime's own words.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.diagnosis.pod import document
from pycrictl.diagnosis.survey import Sources, Survey
from pycrictl.kube.node_pods import NodePods
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.show.diagnosis_text import write_pod
from tests.kube.apiserver import ApiServer, write_kubeconfig
from tests.support.journals import add_pod, read_journal, write_journal
from tests.waiting import wait_until

from .forked import Program
from .lab import MIB, Lab


class Scene:
    """A pod ``default/web`` of the node, and its status in the API server."""

    def __init__(self, lab: Lab, api: ApiServer, root: Path) -> None:
        self.lab = lab
        self.api = api
        self.root = root
        write_kubeconfig(api.kubeconfig(inline=True), root)
        self.output = ""

    def say(self, image: str, reason: str = "ContainerCreating", message: str = "") -> None:
        """Make the API server report that the pod waits for an image."""
        self.api.pods["items"].clear()
        add_pod(self.api, "web", image, waiting=reason)
        (status,) = self.api.pods["items"][0]["status"]["containerStatuses"]
        status["state"]["waiting"]["message"] = message
        status["name"] = self.api.pods["items"][0]["spec"]["containers"][0]["name"] = "main"

    def fail_to_pull(self, image: str) -> None:
        """Pull an image, which must fail, and report the error as the kubelet does."""
        if not self.api.pods["items"]:
            self.say(image)
            self.lab.node.kubelet.run_pod("web")
        error = self.lab.node.kubelet.start_pull(image).exception(100)
        assert isinstance(error, grpc.RpcError)
        self.say(image, "ErrImagePull", error.details() or "")

    def why(self, **sources: Any) -> str:
        """Return the first line without the pod's name, as if the node's disks had free space."""
        path = self.lab.node.endpoint.removeprefix("unix://")
        asked = {
            "pods": NodePods(root=self.root, timeout_s=20),
            "read_journal": read_journal,
            **sources,
        }
        with CriClient(path, timeout_s=20) as client:
            facts = Survey(client, client, Sources(**asked)).pod("web")
        roomy = [
            disk._replace(free_bytes=disk.size_bytes, free_inodes=disk.inodes)
            for disk in facts.disks
        ]
        self.document = document(replace(facts, disks=tuple(roomy)))
        out = io.StringIO()
        write_pod(self.document, out)
        self.output = out.getvalue()
        first = self.output.splitlines()[0]
        assert first.startswith("default/web ")
        return first.removeprefix("default/web ")


@pytest.fixture
def scene(lab: Lab, api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    write_journal(lab, tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return Scene(lab, api, tmp_path)


def test_an_image_that_is_slow(scene: Scene) -> None:
    lab = scene.lab
    image = lab.layout.image("shop/slow:1", lab.layout.random_layers([8 * MIB], seed=710))
    reference = lab.push(image)
    lab.registry.limit(MIB // 4)
    scene.say(reference)
    pod = lab.node.kubelet.run_pod("web")
    pull = lab.node.kubelet.start_pull(reference, pod)
    wait_until(lab.node.store.ingests)
    wait_until(lambda: scene.why().endswith(" left"))
    line = scene.why()
    lab.registry.limit(0)
    stalled = f'is waiting: the pull of image "{reference}" has stalled for '
    wait_until(lambda: scene.why().startswith(stalled))
    lab.registry.limit(None)
    pull.result(100)
    assert line.startswith(f'is waiting: image "{reference}" is being pulled, '), line
    assert "of 8.0 MiB, " in line
    assert re.search(r", \S+ [KM]iB/s, \S+ left$", line), line


CANNOT_BE_PULLED = {
    "missing": ("the registry does not have it", "; next try about "),
    "login": ("the registry refuses access, and the pod has no pull secret", "401"),
    "certificate": ("the node does not trust the certificate of the registry", "x509: "),
    "down": (
        "it could not be fetched from its registry or a mirror of it",
        "connection refused",
    ),
}


@pytest.mark.parametrize("trouble", CANNOT_BE_PULLED)
def test_an_image_that_cannot_be_pulled(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, unknown_ca: str, trouble: str
) -> None:
    monkeypatch.setattr(
        "pycrictl.pulls.sources.failures.BACK_OFF_S", 100.0
    )  # no retry is due meanwhile
    lab = scene.lab
    reference = {
        "missing": f"{lab.registry.host}/nosuch/why:1",
        "login": lab.reference(lab.busybox),
        "certificate": f"{unknown_ca}/shop/web:1",
        "down": "127.0.0.1:1/shop/web:1",
    }[trouble]
    if trouble == "login":
        lab.registry.require_login("u", "p")
    scene.fail_to_pull(reference)
    line = scene.why()
    cause, detail = CANNOT_BE_PULLED[trouble]
    assert line.startswith(f'is not running: image "{reference}": {cause} ('), line
    assert detail in line
    if trouble == "missing":
        lines = [line for line in scene.output.splitlines() if line.startswith("Journal")]
        assert lines
        assert not [line for line in lines if "level=info" in line]
        assert scene.why(read_journal=None).startswith(line.partition(" (")[0])
        assert "Unavailable  journal: " in scene.output


def test_a_bad_command(scene: Scene) -> None:
    pod = scene.lab.node.kubelet.run_pod("web")
    with pytest.raises(grpc.RpcError):
        scene.lab.container(pod, ["/no/such/program"])
    line = scene.why(pods=None)
    expected = 'is not running: the command of container "main" cannot be run: "/no/such/program": '
    assert line.startswith(expected), line


def pod_with_a_network(lab: Lab) -> cri_pb2.PodSandboxConfig:
    config = lab.node.kubelet.pod_config("web")
    options = config.linux.security_context.namespace_options
    options.network = cri_pb2.POD
    return config


def test_a_network_that_cannot_be_set_up(scene: Scene) -> None:
    lab = scene.lab
    broken = lab.folder / "cni" / "05-broken.conflist"
    network = {"cniVersion": "0.4.0", "name": "broken", "plugins": [{"type": "nosuch"}]}
    broken.write_text(json.dumps(network))
    try:
        scene.say(lab.reference(lab.busybox))

        def error() -> str:
            with pytest.raises(grpc.RpcError) as caught:
                lab.node.kubelet.run_pod(pod_with_a_network(lab))
            return str(caught.value)

        wait_until(lambda: "nosuch" in error())
        line = scene.why()
        assert line.startswith("is not running: its network cannot be set up: "), line
        assert 'failed to find plugin "nosuch"' in line
    finally:
        broken.unlink()
        wait_until(lambda: "nosuch" not in error())


def test_a_disk_that_is_full(scene: Scene) -> None:
    lab = scene.lab
    image = lab.layout.image("shop/full:1", lab.layout.random_layers([4 * MIB], seed=740))
    store = lab.folder / "root/io.containerd.content.v1.content"
    reference = lab.push(image)
    scene.say(reference)
    lab.node.kubelet.run_pod("web")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(store)], check=True)
    try:
        for folder in ("ingest", "blobs/sha256"):
            (store / folder).mkdir(parents=True)
        scene.fail_to_pull(reference)
        line = scene.why()
    finally:
        subprocess.run(["umount", "-l", str(store)], check=True)
    expected = f'is not running: image "{reference}": there is no space left for it ('
    assert line.startswith(expected), line


def test_a_sandbox_that_is_gone(scene: Scene) -> None:
    lab = scene.lab
    pod = lab.node.kubelet.run_pod("web")
    lab.container(pod)
    answer = lab.node.kubelet.ask("PodSandboxStatus", pod_sandbox_id=pod.id, verbose=True)
    os.kill(json.loads(answer.info["info"])["pid"], signal.SIGKILL)
    gone = "is not running: its sandbox is gone (no longer ready)"
    wait_until(lambda: scene.why(pods=None) == gone)  # its container may end first


def test_the_doctor_on_a_node(lab: Lab, crictl: Program) -> None:
    lab.push(lab.layout.image("shop/d:1", lab.layout.random_layers([4 * MIB], seed=750)))
    run = crictl.run("doctor", "--registry", f"{lab.registry.host}/shop/d", "-o", "json")
    assert run.stderr == ""
    document = json.loads(run.stdout)
    facts = document["facts"]
    assert facts["runtime"].startswith("containerd ")
    (route,) = facts["routes"]
    names = ["dns", "tcp", "tls", "auth", "first byte"]
    steps = [(step["name"], step["is_good"]) for step in route["steps"]]
    assert steps == [(name, None if name == "tls" else True) for name in names]
    assert {disk["use"] for disk in facts["disks"]} >= {"images"}
