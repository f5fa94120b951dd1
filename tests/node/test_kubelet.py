"""What the kubelet's process and files reveal about it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from pycrictl.base.errors import ConfigError
from pycrictl.node.kubelet import (
    Kubelet,
    configuration,
    find_kubelet,
    find_kubelet_config,
    host_name,
    read_document,
)
from tests.support.hostfiles import run_program


def test_the_command_line_of_the_running_kubelet(tmp_path: Path) -> None:
    run_program(tmp_path, 1, "/sbin/init")
    run_program(tmp_path, 20, "vim", "/etc/kubernetes/kubelet.conf")
    run_program(tmp_path, 3)  # a thread of the kernel
    (tmp_path / "proc/self").mkdir()
    words = "--kubeconfig=/etc/x.conf --config /etc/k.yaml --v 4 --hostname-override=Worker-1"
    run_program(tmp_path, 100, "/usr/bin/kubelet", *words.split())
    kubelet = find_kubelet(tmp_path)
    assert kubelet == Kubelet(100, "/etc/x.conf", "/etc/k.yaml", "Worker-1")
    assert host_name(kubelet) == "worker-1"


def test_a_kubelet_is_the_nodes_own_by_its_user_and_its_files(tmp_path: Path) -> None:
    run_program(tmp_path, 7, "kubelet", "--kubeconfig=/evil")
    assert find_kubelet(tmp_path).pid == 7
    link = tmp_path / "proc/7/ns/mnt"
    link.unlink()
    assert find_kubelet(tmp_path) == Kubelet()
    link.symlink_to("mnt:[2]")  # a container's
    assert find_kubelet(tmp_path) == Kubelet()
    run_program(tmp_path, 8, "kubelet")
    assert find_kubelet(tmp_path).pid == 8
    shutil.rmtree(tmp_path / "proc/8")
    link.unlink()
    link.symlink_to("mnt:[1]")
    (tmp_path / "proc/7/status").write_text("Uid:\t1000\t1000\t1000\t1000\n")
    assert find_kubelet(tmp_path) == Kubelet()


@pytest.mark.parametrize("kind", ["pipe", "device", "large"])
def test_what_a_kubelet_names_is_a_regular_file_of_a_mebibyte(tmp_path: Path, kind: str) -> None:
    named = tmp_path / "etc/k.yaml"
    named.parent.mkdir()
    if kind == "pipe":
        os.mkfifo(named)
    elif kind == "device":
        named.symlink_to("/dev/zero")
    else:
        with named.open("wb") as file:
            file.truncate(1 << 40)
    run_program(tmp_path, 7, "kubelet", "--config=/etc/k.yaml")
    kubelet = find_kubelet(tmp_path)
    assert configuration(kubelet, tmp_path) == {}
    with pytest.raises(ConfigError, match=r"k\.yaml"):
        find_kubelet_config(kubelet, tmp_path)


def test_no_kubelet(tmp_path: Path) -> None:
    assert find_kubelet(tmp_path) == Kubelet()
    assert host_name(Kubelet()) == os.uname().nodename.lower()


def test_the_configuration(tmp_path: Path) -> None:
    folder = tmp_path / "var/lib/kubelet"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("kind: KubeletConfiguration\n")
    assert configuration(Kubelet(), tmp_path) == {"kind": "KubeletConfiguration"}
    assert configuration(Kubelet(config="/missing"), tmp_path)
    (folder / "config.yaml").write_text("- a list")
    assert configuration(Kubelet(), tmp_path) == {}


@pytest.mark.parametrize("text", ["", "[1]", "a: [", "{", "a: *b"])
def test_what_is_not_a_mapping(tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(ConfigError, match='"/file'):
        read_document("/file", tmp_path)
