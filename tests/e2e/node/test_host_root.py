"""The program in its own root, with the node's root at ``/host``, as in a node's debug pod."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_until

from .kubelet import Pod
from .lab import Lab

TREE = Path(__file__).parents[3]

SCRIPT = """
set -e
root=$1 socket=$2 tree=$3 venv=$4 python=$5
shift 5
mount -t tmpfs tmpfs "$root"
cd "$root"
mkdir -p host usr etc run proc tmp dev ".$tree" ".$venv" ".$python"
for name in bin lib lib64 sbin; do [ ! -L /$name ] || ln -s usr/$name $name; done
mount --rbind / host
mount -t tmpfs tmpfs host/run
mkdir host/run/containerd
ln -s "$socket" host/run/containerd/containerd.sock
mount --bind /usr usr
mount -t proc proc proc
mount --rbind /dev dev
mount --bind "$tree" ".$tree"
mount --bind "$venv" ".$venv"
[ "$python" = /usr ] || mount --bind "$python" ".$python"
exec chroot . /usr/bin/env -C "$tree" "$@"
"""


@pytest.fixture
def container(lab: Lab, tmp_path: Path) -> str:
    kubelet = lab.node.kubelet
    logs = tmp_path / "logs"
    logs.mkdir()
    pod: Pod = kubelet.run_pod(kubelet.pod_config("web", log_directory=str(logs)))
    command = ["sh", "-c", "echo hello > /tmp/file; echo started; exec sleep 1000"]
    container_id = lab.container(pod, command, log_path="0.log")
    wait_until(lambda: b"started" in (logs / "0.log").read_bytes())
    return container_id


def run(lab: Lab, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the program with the node's root at /host, and no trace of a runtime in its own root."""
    folder = folder / "root"
    folder.mkdir(exist_ok=True)
    program = [sys.executable, "-m", "pycrictl", "-t", "20s", *words]
    places = (folder, lab.node.socket_path, TREE, sys.prefix, sys.base_prefix)
    own = ["sh", "-c", SCRIPT, "sh", *map(str, places)]
    return subprocess.run(
        ["unshare", "--mount", "--propagation", "private", *own, *program],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_everything_works_in_a_debug_pod(lab: Lab, tmp_path: Path, container: str) -> None:
    for line, stdout in {
        "ps -o custom-columns=NAME:.metadata.name --no-headers": "main\n",
        "logs default/web": "started\n",
        "exec -s web cat /tmp/file": "hello\n",
        "cp -q --method node web:/tmp/file /tmp/copy": "",
        "image-pull-progress --progress plain": "",
    }.items():
        done = run(lab, tmp_path, *line.split())
        assert (done.returncode, done.stdout) == (0, stdout), done.stderr


def test_the_socket_is_below(lab: Lab, tmp_path: Path) -> None:
    done = run(lab, tmp_path, "--debug", "version")
    assert done.returncode == 0, done.stderr
    assert f"= no endpoint is configured; unix:///host{lab.node.socket_path}: " in done.stderr
    off = run(lab, tmp_path, "--host-root", "/", "version")
    assert off.returncode == 1
    assert "no such file: unix:///run/containerd/containerd.sock, " in off.stderr
