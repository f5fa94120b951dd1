from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from pycrictl._proto import cri_pb2
from tests.waiting import wait_until

from .images import zero_file
from .kubelet import RUNTIME
from .lab import MIB
from .sweep import cgroups, mount_points, processes

if TYPE_CHECKING:
    from .images import Image
    from .lab import Lab


def random_image(lab: Lab, name: str, *sizes_bytes: int, seed: int) -> Image:
    image = lab.layout.image(name, lab.layout.random_layers(sizes_bytes, seed=seed))
    lab.push(image)
    return image


def test_runtime_answers(lab: Lab) -> None:
    answer = lab.node.kubelet.call(
        RUNTIME + "Version", cri_pb2.VersionRequest(), cri_pb2.VersionResponse
    )
    assert (answer.runtime_name, answer.runtime_api_version) == ("containerd", "v1")


def test_pulled_blobs_are_those_of_the_image(lab: Lab) -> None:
    image = random_image(lab, "blobs:1", 2 * MIB, 300_000, 7, seed=100)
    image_id = lab.node.kubelet.pull(lab.reference(image))
    blobs = lab.node.store.blobs()
    assert image_id == image.config_digest
    assert {layer.digest: blobs[layer.digest] for layer in image.layers} == {
        layer.digest: layer.size_bytes for layer in image.layers
    }
    assert blobs[image.manifest_digest] == image.manifest_size_bytes
    assert blobs[image.config_digest] == image.config_size_bytes
    assert set(image.chain_ids) <= set(lab.node.store.snapshots())
    assert lab.node.store.leases() == []


def test_pull_by_digest(lab: Lab) -> None:
    image = random_image(lab, "digest:1", 1000, seed=110)
    assert lab.node.kubelet.pull(lab.reference_by_digest(image)) == image.config_digest


def test_multi_platform_pull_takes_this_platform_only(lab: Lab) -> None:
    layers = lab.layout.random_layers([1000, 2000], seed=120)
    image = lab.layout.multi_platform_image("platforms:1", layers)
    lab.push(image)
    before = set(lab.node.store.blobs())
    lab.node.kubelet.pull(lab.reference(image))
    assert set(lab.node.store.blobs()) - before == {
        image.digest,
        image.manifest_digest,
        image.config_digest,
        *(layer.digest for layer in layers),
    }


def test_base_layer_is_not_fetched_again(lab: Lab) -> None:
    image = lab.layout.image("based:1", [lab.base, *lab.layout.random_layers([1000], seed=130)])
    lab.push(image)
    lab.node.kubelet.pull(lab.reference(image))
    paths = [path for _, path, _ in lab.throttle.requests if "/based/blobs/" in path]
    assert not [path for path in paths if lab.base.digest in path]
    assert [path for path in paths if image.layers[1].digest in path]


def test_huge_layer_unpacks(lab: Lab) -> None:
    layer = lab.layout.layer([zero_file("zeros", 300 * MIB)])
    image = lab.layout.image("zeros:1", [layer])
    lab.push(image)
    pull = lab.node.kubelet.start_pull(lab.reference(image))
    wait_until(lambda: any(key.startswith("extract-") for key in lab.node.store.snapshots()))
    assert pull.result().image_ref == image.config_digest
    assert layer.size_bytes < 3 * MIB


def test_pod_and_container_run(lab: Lab) -> None:
    kubelet = lab.node.kubelet
    kubelet.pull(lab.reference(lab.busybox))
    pod = kubelet.run_pod("web")
    container_id = kubelet.create_container(pod, lab.reference(lab.busybox))
    kubelet.start_container(container_id)
    answer = kubelet.call(
        RUNTIME + "ExecSync",
        cri_pb2.ExecSyncRequest(container_id=container_id, cmd=["sh", "-c", "echo hi; exit 3"]),
        cri_pb2.ExecSyncResponse,
    )
    assert (answer.stdout, answer.exit_code) == (b"hi\n", 3)


def test_pull_runs_as_fast_as_the_throttle_lets_it(lab: Lab) -> None:
    image = random_image(lab, "slow:1", MIB, MIB, seed=140)
    lab.throttle.limit(2 * MIB)
    started = time.monotonic()
    lab.node.kubelet.pull(lab.reference(image))
    assert 0.9 <= time.monotonic() - started <= 60


def test_pull_holds_one_lease_and_an_ingest_a_layer(lab: Lab) -> None:
    image = random_image(lab, "held:1", 2 * MIB, 2 * MIB, seed=150)
    lab.throttle.stall("blobs/" + image.layers[0].digest, after_bytes=MIB)
    lab.throttle.stall("blobs/" + image.layers[1].digest, after_bytes=MIB)
    pull = lab.node.kubelet.start_pull(lab.reference(image), lab.node.kubelet.run_pod("waiting"))
    totals = {f"layer-{layer.digest}": layer.size_bytes for layer in image.layers}
    wait_until(lambda: lab.node.store.ingests().keys() == totals.keys())
    assert {ref: total for ref, (_, total) in lab.node.store.ingests().items()} == totals
    assert len(lab.node.store.leases()) == 1
    lab.throttle.heal()
    assert pull.result().image_ref == image.config_digest
    wait_until(lambda: not lab.node.store.leases())


def test_cancelled_pull_leaves_nothing(lab: Lab) -> None:
    image = random_image(lab, "cancelled:1", MIB, seed=160)
    lab.throttle.stall("blobs/" + image.layers[0].digest, after_bytes=1000)
    pull = lab.node.kubelet.start_pull(lab.reference(image))
    wait_until(lambda: bool(lab.node.store.ingests()))
    pull.cancel()
    wait_until(lambda: not lab.node.store.leases() and not lab.node.store.ingests())


@pytest.mark.parametrize(
    ("status", "text"),
    [(404, "not found"), (500, "500"), (401, "authoriz"), (429, "429")],
)
def test_refused_blob_fails_the_pull(lab: Lab, status: int, text: str) -> None:
    image = random_image(lab, f"refused:{status}", 1000, seed=170 + status)
    lab.throttle.answer("blobs/" + image.layers[0].digest, status)
    with pytest.raises(grpc.RpcError, match=text):
        lab.node.kubelet.pull(lab.reference(image))
    lab.throttle.heal()
    assert lab.node.kubelet.pull(lab.reference(image)) == image.config_digest


def test_missing_tag_fails_the_pull(lab: Lab) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        lab.node.kubelet.pull(f"{lab.throttle.host}/busybox:none")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_cut_connection_fails_the_pull(lab: Lab) -> None:
    image = random_image(lab, "cut:1", MIB, seed=180)
    lab.throttle.cut("blobs/" + image.layers[0].digest, after_bytes=1000)
    with pytest.raises(grpc.RpcError, match="EOF"):
        lab.node.kubelet.pull(lab.reference(image))


def test_login(lab: Lab) -> None:
    lab.throttle.require_login("me", "secret")
    with pytest.raises(grpc.RpcError, match="authoriz"):
        lab.node.kubelet.pull(lab.reference(lab.busybox))
    auth = cri_pb2.AuthConfig(username="me", password="secret")
    image_id = lab.node.kubelet.pull(lab.reference(lab.busybox), auth=auth)
    assert image_id == lab.busybox.config_digest


def test_killed_containerd_resumes_the_pull(lab: Lab) -> None:
    image = random_image(lab, "resumed:1", 4 * MIB, seed=190)
    ref = f"layer-{image.layers[0].digest}"
    lab.throttle.stall("blobs/" + image.layers[0].digest, after_bytes=3 * MIB)
    pull = lab.node.kubelet.start_pull(lab.reference(image))
    wait_until(lambda: lab.node.store.ingests().get(ref, (0, 0))[0] >= MIB)
    lab.node.kill9()
    assert isinstance(pull.exception(), grpc.RpcError)
    lab.throttle.heal()
    lab.node.start()
    assert len(lab.node.store.leases()) == 1
    offset, _ = lab.node.store.ingests()[ref]
    assert offset >= MIB
    sent_before = lab.throttle.sent_bytes
    lab.node.kubelet.pull(lab.reference(image))
    assert lab.throttle.sent_bytes - sent_before < image.layers_bytes
    lab.clean()
    assert lab.node.store.leases() == []


def test_clean_leaves_the_sandbox_image_only(lab: Lab) -> None:
    random_image(lab, "leftover:1", 1000, seed=200)
    lab.node.kubelet.pull(f"{lab.throttle.host}/leftover:1")
    lab.node.kubelet.run_pod("leftover")
    lab.throttle.answer(".", 500)
    lab.node.stop()
    lab.clean()
    tags = [tag for image in lab.node.kubelet.images() for tag in image.repo_tags]
    assert tags == [lab.reference(lab.pause)]
    assert set(lab.node.store.blobs()) == {
        lab.pause.manifest_digest,
        lab.pause.config_digest,
        lab.base.digest,
    }
    assert lab.node.store.snapshots() == list(lab.pause.chain_ids)
    assert mount_points(lab.folder) == []


_BUSY_LAB = """
import os, signal, sys
from tests.node.lab import Lab
with Lab() as lab:
    kubelet = lab.node.kubelet
    kubelet.pull(lab.reference(lab.busybox))
    pod = kubelet.run_pod("left behind")
    container_id = kubelet.create_container(pod, lab.reference(lab.busybox))
    kubelet.start_container(container_id)
    print(lab.folder, flush=True)
    sys.stdin.read()
"""


def shim_sockets(folder: Path) -> list[Path]:
    """The sockets of a node's own shims: other nodes have theirs in the same place."""
    addresses = [file.read_text() for file in folder.rglob("address") if file.is_file()]
    return [Path(address.removeprefix("unix://")) for address in addresses]


@pytest.mark.node
@pytest.mark.skipif(os.geteuid() != 0, reason="the throwaway node needs root")
@pytest.mark.parametrize("end", ["exit", "SIGINT", "SIGKILL"])
def test_nothing_is_left_behind(end: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _BUSY_LAB],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as script:
        assert script.stdin is not None
        assert script.stdout is not None
        folder = Path(script.stdout.readline().strip())
        assert folder.name.startswith("pcn-")
        # containerd, the registry, the pod's shim, its sandbox and its container.
        wait_until(lambda: len(processes(folder)) == 5)
        assert mount_points(folder)
        assert cgroups(folder.name)
        sockets = shim_sockets(folder)
        assert sockets
        assert all(socket.exists() for socket in sockets)
        if end == "exit":
            script.stdin.close()
        else:
            script.send_signal(getattr(signal, end))
        script.wait(60)
    wait_until(lambda: not folder.exists())
    assert processes(folder) == []
    assert mount_points(folder) == []
    assert cgroups(folder.name) == []
    assert not any(socket.exists() for socket in sockets)
