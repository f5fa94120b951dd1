from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.waiting import wait_until

from .sweep import cgroups, mount_points, processes

if TYPE_CHECKING:
    from .lab import Lab


def test_clean_leaves_the_sandbox_image_only(lab: Lab) -> None:
    image = lab.layout.image("leftover:1", lab.layout.random_layers([1000], seed=200))
    lab.node.kubelet.pull(lab.push(image))
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
    lab.container(lab.node.kubelet.run_pod("left behind"))
    print(lab.folder, flush=True)
    sys.stdin.read()
"""


def shim_sockets(folder: Path) -> list[Path]:
    """The sockets of a node's own shims: other nodes have theirs in the same place."""
    addresses = [file.read_text() for file in folder.rglob("address") if file.is_file()]
    return [Path(address.removeprefix("unix://")) for address in addresses]


@pytest.mark.node
@pytest.mark.skipif(os.geteuid() != 0, reason="the throwaway node needs root")
def test_nothing_is_left_behind_by_a_lab_that_is_killed() -> None:
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
        # The registry, containerd, the pod's shim, its sandbox and its container.
        wait_until(lambda: len(processes(folder)) == 5)
        assert mount_points(folder)
        assert cgroups(folder.name)
        sockets = shim_sockets(folder)
        assert sockets
        assert all(socket.exists() for socket in sockets)
        script.kill()
        script.wait(60)
    wait_until(lambda: not folder.exists())
    assert processes(folder) == []
    assert mount_points(folder) == []
    assert cgroups(folder.name) == []
    assert not any(socket.exists() for socket in sockets)
