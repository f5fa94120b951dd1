"""Copies on the node itself, with containers of the real containerd."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.copy import ends, on_node
from pycrictl.copy.on_node import OnNode
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Skipped
from pycrictl.copy.tree.walk import Watch
from pycrictl.cri.calls.client import CriClient
from pycrictl.errors import CopyError
from tests.copy.trees import PLAIN, ignore

from .lab import MIB

if TYPE_CHECKING:
    from .lab import Lab

MTIME_NS = 1_700_000_000_123_456_789


class Container:
    """A running container, and copies from and to it."""

    def __init__(self, client: CriClient, container_id: str) -> None:
        self.id = container_id
        self.locate = partial(on_node.locate, client, container_id)
        self.method = OnNode(self.locate)
        self.skipped: list[Skipped] = []
        self.watch = Watch(ignore, self.skipped.append)

    @property
    def root(self) -> Path:
        return Path(f"/proc/{self.locate().pid}/root")

    def copy_from(self, path: str, local: Path, *, follow: bool = False) -> Summary:
        return ends.copy_from(
            self.method, os.fsencode(path), os.fsencode(local), PLAIN, self.watch, follow=follow
        )

    def copy_to(self, local: Path | str, path: str) -> Summary:
        return ends.copy_to(self.method, os.fsencode(local), os.fsencode(path), PLAIN, self.watch)


@pytest.fixture
def client(lab: Lab) -> Iterator[CriClient]:
    with CriClient(str(lab.node.socket_path), timeout_s=10) as client:
        yield client


def start(lab: Lab, client: CriClient, *mounts: cri_pb2.Mount) -> Container:
    kubelet = lab.node.kubelet
    image = lab.reference(lab.busybox)
    kubelet.pull(image)
    container_id = kubelet.create_container(kubelet.run_pod("copy"), image, mounts=mounts)
    kubelet.start_container(container_id)
    return Container(client, container_id)


@pytest.fixture
def container(lab: Lab, client: CriClient) -> Container:
    return start(lab, client)


def make_tree(top: Path) -> None:
    """All that can be copied, below ``top``."""
    (top / "empty").mkdir(parents=True)
    (top / "sub/deeper").mkdir(parents=True)
    for name, content in {
        "f": b"hello",
        "nothing": b"",
        "with space": b"1",
        "new\nline": b"2",
        os.fsdecode(b"\xff\xfe"): b"3",
        "-rf": b"4",
        "n" * 255: b"5",
        "sub/deeper/big": os.urandom(3 * MIB + 1),
    }.items():
        (top / name).write_bytes(content)
    (top / "sub/hard").hardlink_to(top / "f")
    (top / "link").symlink_to("sub/deeper")
    (top / "sub/up").symlink_to("../f")
    (top / "f").chmod(0o640)
    (top / "with space").chmod(0o4755)
    os.chown(top / "-rf", 12, 34)
    (top / "sub").chmod(0o555)
    (top / "empty").chmod(0o700)
    for path in (*top.rglob("*"), top):
        os.utime(path, ns=(MTIME_NS, MTIME_NS), follow_symlinks=False)


def test_file_systems_of_the_kernel(container: Container, folder: Path) -> None:
    (folder / "f").write_text("1")
    (folder / "d").mkdir()
    (folder / "d/core_pattern").write_text("|/evil")
    root = container.root
    (root / "proc-link").symlink_to("/proc/sys/kernel")
    (root / "file-link").symlink_to("/proc/sys/kernel/core_pattern")
    (root / "self-link").symlink_to("/proc/self/root")
    (root / "one-link").symlink_to("/proc/1/root/root")
    for path in ("/proc/sys/kernel", "/proc-link", "/sys", "/sys/kernel", "/dev/pts", "/proc"):
        with pytest.raises(CopyError, match="is on"):
            container.copy_to(folder / "f", path)
    pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    for path in ("/proc-link/", "/proc/sys/kernel/core_pattern", "/one-link", "/self-link/tmp"):
        with pytest.raises(CopyError):
            container.copy_to(folder / "d/core_pattern", path)
    # A link to a file is replaced, and not written through.
    container.copy_to(folder / "d/core_pattern", "/file-link")
    assert (root / "file-link").read_text() == "|/evil"
    assert not (root / "file-link").is_symlink()
    assert Path("/proc/sys/kernel/core_pattern").read_text() == pattern
    for path in ("/proc/1/mem", "/proc/1/environ", "/proc/kmsg", "/proc", "/sys/kernel"):
        with pytest.raises(CopyError, match="is on"):
            container.copy_from(path, folder / "out")
    for path in ("/dev/null", "/dev/zero"):
        with pytest.raises(CopyError, match="never copied"):
            container.copy_from(path, folder / "out")
    assert not (folder / "out").exists()
    summary = container.copy_from("/", folder / "all")
    assert summary.files > 2
    rules = {each.path: each.rule for each in container.skipped}
    assert rules[b"./proc"] == rules[b"./sys"] == "kernel-file-system"
    assert rules[b"./dev/null"] == "special"
    assert rules[b"./one-link"] == "outward-link"


def test_trees_that_reach_into_file_systems_of_the_kernel(
    lab: Lab, client: CriClient, folder: Path
) -> None:
    """Through directories that are there, or under another name: nothing is written."""
    mount = cri_pb2.Mount(host_path="/proc/sys/kernel", container_path="/volume")
    container = start(lab, client, mount)
    root = container.root
    (root / "tmp/kept").write_text("1")
    pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    for number, path in enumerate(
        ("proc/sys/kernel/core_pattern", "sys/power/state", "volume/core_pattern", "dev/pts/x")
    ):
        tree = folder / str(number)
        (tree / path).parent.mkdir(parents=True)
        (tree / path).write_text("|/evil")
        (tree / "tmp").mkdir()
        (tree / "tmp/new").write_text("2")
        with pytest.raises(CopyError, match="is on"):
            container.copy_to(f"{tree}/.", "/")
        assert [path.name for path in (root / "tmp").iterdir()] == ["kept"]
        assert list(root.glob(".pycrictl-*")) == []
    assert Path("/proc/sys/kernel/core_pattern").read_text() == pattern


def test_links_of_the_container_stay_in_it(container: Container, folder: Path) -> None:
    (folder / "f").write_text("new")
    root = container.root
    (folder / "host").mkdir()
    (folder / "host/file").write_text("of the node")
    (root / "root/abs").symlink_to(folder / "host")
    (root / "root/rel").symlink_to("../../../../../../.." + str(folder / "host"))
    for link in ("abs", "rel"):
        with pytest.raises(CopyError, match="no such file"):
            container.copy_from(f"/root/{link}/file", folder / "out")
        with pytest.raises(CopyError, match="no such file"):
            container.copy_from(f"/root/{link}", folder / "out", follow=True)
        with pytest.raises(CopyError, match="was not copied"):
            container.copy_from("/root/abs", folder / "out")
        with pytest.raises(CopyError, match="no directory"):
            container.copy_to(folder / "f", f"/root/{link}/file")
    inside = root / str(folder / "host").lstrip("/")
    inside.mkdir(parents=True)
    container.copy_to(folder / "f", "/root/rel/file")
    assert (inside / "file").read_text() == "new"
    assert (folder / "host/file").read_text() == "of the node"
    container.copy_from("/root/abs/file", folder / "out")
    assert (folder / "out").read_text() == "new"
