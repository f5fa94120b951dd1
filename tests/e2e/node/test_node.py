"""A throwaway node leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_until

from .sweep import cgroups, mount_points, processes

_BUSY_LAB = """
import os, signal, sys
from tests.e2e.node.lab import Lab
with Lab() as lab:
    lab.container(lab.node.kubelet.run_pod("left behind"))
    print(lab.folder, flush=True)
    sys.stdin.read()
"""


def shim_sockets(folder: Path) -> list[Path]:
    """Return the sockets of this node's shims; those of other nodes are in the same place."""
    addresses = [file.read_text() for file in folder.rglob("address") if file.is_file()]
    return [Path(address.removeprefix("unix://")) for address in addresses]


@pytest.mark.node
@pytest.mark.root
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
        # The registry, containerd, the shim of the pod, its sandbox and its container.
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
