"""Single files and directories that are mounted in the mount namespace of a container only.

There is no refusal by the kernel for them: a rename from outside would take the mount away.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.tree.commit import Merge
from pycrictl.copy.tree.janitor import COMMIT, Note, sweep_root
from pycrictl.copy.tree.places import THIS_MACHINE
from pycrictl.copy.tree.rootfs import Directory
from pycrictl.errors import CopyError
from tests.copy.hostile import snapshot
from tests.copy.trees import (
    Copy,
    both_ways,
    needs_root,
    nothing_is_left,
)

__all__ = ["nothing_is_left"]

pytestmark = needs_root

SCRIPT = """
mount --make-rprivate / && cd "$0" &&
mount --bind volume/hosts root/etc/hosts &&
mount --bind volume root/etc/volume &&
echo ready && exec cat
"""


class Container:
    """A process in a mount namespace of its own.

    Attributes:
        root: its root directory, as seen from outside; ``etc/hosts`` and ``etc/volume`` are mounts.
        volume: where those come from.
    """

    def __init__(self, top: Path) -> None:
        for folder in ("root/etc/volume", "volume/inner"):
            (top / folder).mkdir(parents=True)
        for file in ("root/etc/hosts", "root/etc/other"):
            (top / file).write_text("below")
        self.volume = top / "volume"
        (self.volume / "hosts").write_text("mounted")
        self.process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", SCRIPT, top],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"
        self.root = Path(f"/proc/{self.process.pid}/root{top}/root")

    def mounts(self) -> list[str]:
        text = Path(f"/proc/{self.process.pid}/mountinfo").read_text()
        found = [line.split()[4] for line in text.splitlines()]
        return [path for path in found if "/root/etc" in path]

    def state(self) -> tuple[object, ...]:
        return self.mounts(), snapshot(self.root), snapshot(self.volume)


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    container = Container(tmp_path)
    assert len(container.mounts()) == 2
    yield container
    container.process.communicate()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    top = tmp_path / "source"
    (top / "tree").mkdir(parents=True)
    (top / "tree/hosts").write_text("new")
    (top / "tree/another").write_text("new")
    (top / "links").mkdir()
    (top / "links/hosts").symlink_to("nowhere")
    return top


@both_ways
@pytest.mark.parametrize(
    ("what", "where"),
    [
        ("tree/.", "etc"),
        ("tree/hosts", "etc/hosts"),
        ("links/.", "etc"),
        ("links/hosts", "etc/hosts"),
    ],
)
def test_a_file_that_is_mounted_stays(
    copy: Copy, container: Container, source: Path, what: str, where: str
) -> None:
    before = container.state()
    with pytest.raises(CopyError, match='/etc/hosts" is mounted there and cannot be replaced'):
        copy(f"{source}/{what}", container.root / where)
    assert container.state() == before
    copy(f"{source}/{what}", container.root / where, Rules(no_clobber=True))
    assert container.mounts() == before[0]
    assert (container.volume / "hosts").read_text() == "mounted"


@both_ways
def test_a_file_that_was_mounted_meanwhile(
    copy: Copy, container: Container, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = container.state()
    monkeypatch.setattr(Merge, "check", lambda _: None)
    for what in ("tree/.", "links/."):
        with pytest.raises(CopyError, match="is mounted there"):
            copy(f"{source}/{what}", container.root / "etc")
        assert container.state() == before
    answers, is_mount_point = [False], Directory.is_mount_point
    monkeypatch.setattr(
        Directory,
        "is_mount_point",
        lambda self, name: answers.pop() if answers else is_mount_point(self, name),
    )
    with pytest.raises(CopyError, match="is mounted there"):
        copy(source / "tree/hosts", container.root / "etc")
    assert container.state() == before


def test_a_merge_that_cannot_be_finished_stays(container: Container) -> None:
    """What a killed program has not moved is not removed with its stage."""
    stage = container.root / "etc/.pycrictl-0123456789abcdef"
    for folder in (stage, stage / os.fsdecode(COMMIT)):
        folder.mkdir(mode=0o700)
    (stage / "commit/hosts").write_text("new")
    (stage / "commit/other").write_text("new")
    mounts = container.mounts()
    Note("", bytes(container.root / "etc"), os.fsencode(stage.name)).close(is_removed=False)
    assert sweep_root(THIS_MACHINE) == 0
    assert container.mounts() == mounts
    assert (stage / "commit/hosts").read_text() == "new"
    (stage / "commit/hosts").unlink()
    assert sweep_root(THIS_MACHINE) == 1
    assert not stage.exists()
    assert (container.root / "etc/other").read_text() == "new"
    assert container.mounts() == mounts


@both_ways
def test_a_directory_that_is_mounted(copy: Copy, container: Container, source: Path) -> None:
    """What belongs there cannot be moved there from a stage; what is there already can stay."""
    (source / "all/volume/inner").mkdir(parents=True)
    (source / "all/fresh").write_text("new")
    copy(f"{source}/all/.", container.root / "etc")
    before = container.state()
    for name in ("volume/file", "volume/inner/file", "volume/hosts"):
        (source / "all" / name).write_text("new")
        with pytest.raises(CopyError) as info:
            copy(f"{source}/all/.", container.root / "etc")
        shown = f'"{container.root}/etc/volume"'
        assert info.value.message == (
            f"another file system is mounted at {shown}, which the copy reaches into"
        )
        assert info.value.hint == f"copy what belongs there to {shown} separately"
        (source / "all" / name).unlink()
        assert container.state() == before
    (source / "all/volume/hosts").write_text("new")
    copy(f"{source}/all/.", container.root / "etc", Rules(no_clobber=True))
    copy(source / "all/volume", container.root / "etc")
    assert (container.volume / "hosts").read_text() == "new"
