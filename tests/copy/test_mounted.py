"""Files and directories that are mounted only in the mount namespace of a container.

The kernel does not refuse to rename over them from outside: that would remove the mount.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pycrictl.base.errors import CopyError
from pycrictl.copy.tree.commit import COMMIT, Merge, sweep_root, write_note
from pycrictl.copy.tree.places import THIS_MACHINE
from pycrictl.copy.tree.rootfs import Directory
from tests.copy.hostile import snapshot
from tests.copy.trees import Copy, both_ways

pytestmark = pytest.mark.root

SCRIPT = """
mount --make-rprivate / && cd "$0" &&
mount --bind volume/hosts root/etc/hosts &&
mount --bind volume root/etc/volume &&
echo ready && exec cat
"""


class Container(NamedTuple):
    """A process in a mount namespace of its own.

    Attributes:
        root: its root directory, as seen from outside; ``etc/hosts`` and ``etc/volume`` are mounts.
        volume: the source of these mounts.
    """

    pid: int
    root: Path
    volume: Path

    def mounts(self) -> list[str]:
        text = Path(f"/proc/{self.pid}/mountinfo").read_text()
        places = [line.split()[4] for line in text.splitlines()]
        return [path for path in places if "/root/etc" in path]

    def state(self) -> tuple[object, ...]:
        return self.mounts(), snapshot(self.root), snapshot(self.volume)


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    for folder in ("root/etc/volume", "volume/inner"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("root/etc/hosts", "root/etc/other"):
        (tmp_path / file).write_text("below")
    (tmp_path / "volume/hosts").write_text("mounted")
    words = ("unshare", "--mount", "sh", "-c", SCRIPT, tmp_path)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        root = Path(f"/proc/{process.pid}/root{tmp_path}/root")
        container = Container(process.pid, root, tmp_path / "volume")
        assert len(container.mounts()) == 2
        yield container


@pytest.fixture
def source(tmp_path: Path) -> Path:
    top = tmp_path / "source"
    for folder in ("tree", "links"):
        (top / folder).mkdir(parents=True)
    for name in ("tree/hosts", "tree/another"):
        (top / name).write_text("new")
    (top / "links/hosts").symlink_to("nowhere")
    return top


def refused(copy: Copy, source: str | Path, target: Path, container: Container) -> CopyError:
    """Return the error of a copy that must be refused and change nothing."""
    before = container.state()
    with pytest.raises(CopyError) as info:
        copy(source, target)
    assert container.state() == before
    return info.value


MOUNTED = '/etc/hosts" is a mount point and cannot be replaced'


@both_ways
@pytest.mark.parametrize("mounted", ["tree/.", "tree/hosts", "links/.", "links/hosts"])
def test_a_mounted_file_stays(copy: Copy, container: Container, source: Path, mounted: str) -> None:
    target = container.root / ("etc/hosts" if mounted.endswith("hosts") else "etc")
    assert refused(copy, f"{source}/{mounted}", target, container).message.endswith(MOUNTED)


@both_ways
def test_a_file_that_was_mounted_meanwhile(
    copy: Copy, container: Container, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    etc = container.root / "etc"
    monkeypatch.setattr(Merge, "check", lambda _: None)
    for path in ("tree/.", "links/."):
        assert refused(copy, f"{source}/{path}", etc, container).message.endswith(MOUNTED)
    answers, is_mount_point = [False], Directory.is_mount_point
    monkeypatch.setattr(
        Directory,
        "is_mount_point",
        lambda self, name: answers.pop() if answers else is_mount_point(self, name),
    )
    assert refused(copy, source / "tree/hosts", etc, container).message.endswith(MOUNTED)
    assert answers == []


def test_a_merge_that_cannot_be_finished_stays(container: Container) -> None:
    """A killed program's stage is kept while it contains a file that cannot be moved."""
    stage = container.root / "etc/.pycrictl-0123456789abcdef"
    commit = stage / os.fsdecode(COMMIT)
    for folder in (stage, commit):
        folder.mkdir(mode=0o700)
    for name in ("hosts", "other"):
        (commit / name).write_text("new")
    mounts = container.mounts()
    os.close(write_note("", bytes(stage.parent), os.fsencode(stage.name)))
    sweep_root(THIS_MACHINE)
    assert (commit / "hosts").read_text() == "new"
    (commit / "hosts").unlink()
    sweep_root(THIS_MACHINE)
    assert not stage.exists()
    assert (container.root / "etc/other").read_text() == "new"
    assert container.mounts() == mounts


@both_ways
def test_a_directory_that_is_mounted(copy: Copy, container: Container, source: Path) -> None:
    """Nothing can be moved into it from a stage outside."""
    etc, top = container.root / "etc", source / "all"
    (top / "volume/inner").mkdir(parents=True)
    (top / "fresh").write_text("new")
    copy(f"{top}/.", etc)
    for name in ("file", "inner/file", "hosts"):
        (top / "volume" / name).write_text("new")
        error = refused(copy, f"{top}/.", etc, container)
        assert error.message == (
            f'another file system is mounted at "{etc}/volume", inside the destination'
        )
        assert error.hint == f'copy the files for "{etc}/volume" separately'
        (top / "volume" / name).unlink()
    (top / "volume/hosts").write_text("new")
    copy(top / "volume", etc)
    assert (container.volume / "hosts").read_text() == "new"
