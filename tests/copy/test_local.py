"""Copying whole trees, directly and by an archive: what is copied, and what never is."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from pycrictl.base.environ import raise_file_limit
from pycrictl.base.errors import CopyError
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Skipped
from pycrictl.copy.tree.commit import random_name
from tests.copy.hostile import archive, member
from tests.copy.trees import (
    KEEP,
    MIB,
    Archive,
    Copy,
    both_ways,
    by_archive,
    directly,
    listing,
    put_at,
)


@both_ways
def test_everything_is_kept_by_a_second_copy_too(copy: Copy, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "into").mkdir()
    for source, destination in ((tree, "into"), (tree, "into"), (f"{tree}/.", "into/tree")):
        if (sub := tmp_path / "into/tree/sub").exists():
            sub.chmod(0o750)  # as it is, only root writes to it
        summary = copy(source, tmp_path / destination, KEEP)
        assert listing(tmp_path / "into/tree") == listing(tree)
        assert summary == Summary(files=4, directories=3, links=1, size_bytes=MIB + 77 + 8)


@both_ways
def test_stages_are_not_copied(copy: Copy, tree: Path, tmp_path: Path) -> None:
    stage = tree / random_name().decode()
    stage.mkdir()
    skipped: list[Skipped] = []
    assert copy(tree, tmp_path / "new", on_skip=skipped.append).directories == 3
    assert skipped == []
    stage.rmdir()


@both_ways
def test_a_sparse_file(copy: Copy, tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(200 * MIB)
        os.pwrite(file.fileno(), b"x", 100 * MIB)
    copy(tmp_path / "sparse", tmp_path / "new")
    with (tmp_path / "new").open("rb") as file:
        status = os.fstat(file.fileno())
        assert status.st_size == 200 * MIB
        assert status.st_blocks * 512 < MIB
        assert os.pread(file.fileno(), 3, 100 * MIB - 1) == b"\0x\0"


def test_a_deep_tree(tmp_path: Path) -> None:
    raise_file_limit()  # as a copy does: one for each level
    deep, new = tmp_path / "d", tmp_path / "new"
    deep.joinpath(*["d"] * 512).mkdir(parents=True)
    with pytest.raises(CopyError, match="deep"):
        directly(deep, new)
    assert not new.exists()
    directly(deep / "d", new)
    assert new.joinpath(*["d"] * 511).is_dir()


# Without root

NOT_ROOT = "the owner of some entries could not be kept: not supported, or not permitted"


@pytest.mark.root
def test_directories_that_their_owner_cannot_write_to() -> None:
    """A user can copy a tree with read-only directories, and their modes are kept.

    Only root can keep other owners, which is said.
    """
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="pct-") as name:
        top = Path(name)
        (top / "tree/sub/empty").mkdir(parents=True)
        (top / "tree/sub/f").write_text("hello")
        (top / "tree/sub/empty").chmod(0o500)
        (top / "tree/sub").chmod(0o550)
        for path in (top, *top.rglob("*")):
            os.chown(path, 65534, 65534)
        pid = os.fork()
        if pid == 0:
            with suppress(BaseException):
                os.setgid(65534)
                os.setuid(65534)
                directly(top / "tree", top / "new", KEEP)
                directly(top / "tree/sub", top / "sub", KEEP)
                (top / "into/tree").mkdir(parents=True)
                directly(top / "tree", top / "into", KEEP)
                by_archive(top / "tree", top / "by-archive", KEEP)
                notes: list[str] = []
                of_root = Archive([archive(member(b"f"))], single=True)
                put_at(top / "of-root", of_root, KEEP, note=notes.append)
                own = Archive([archive(member(b"f", uid=65534, gid=65534))], single=True)
                put_at(top / "own", own, KEEP, note=notes.append)
                assert notes == [NOT_ROOT]
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        for copied in ("new", "into/tree", "by-archive"):
            assert listing(top / copied) == listing(top / "tree")
        assert listing(top / "sub") == listing(top / "tree/sub")
        assert (top / "new/sub/f").stat().st_uid == 65534
