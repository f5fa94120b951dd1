from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.waiting import wait_until

from .sweep import cgroups, mount_points, processes

if TYPE_CHECKING:
    from .images import Image
    from .lab import Lab


def random_image(lab: Lab, name: str, *sizes_bytes: int, seed: int) -> Image:
    image = lab.layout.image(name, lab.layout.random_layers(sizes_bytes, seed=seed))
    lab.push(image)
    return image


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
