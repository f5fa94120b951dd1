"""Whole trees, directly and by an archive: what arrives, and what never does."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Skipped
from pycrictl.copy.tree.janitor import random_name
from pycrictl.errors import CopyError
from tests.copy.trees import (
    KEEP,
    MIB,
    Copy,
    both_ways,
    by_archive,
    directly,
    listing,
    needs_root,
    nothing_is_left,
    tree,
)

__all__ = ["nothing_is_left", "tree"]


@both_ways
def test_everything_is_kept_and_a_second_copy_changes_nothing(
    copy: Copy, tree: Path, tmp_path: Path
) -> None:
    (tmp_path / "into").mkdir()
    for source, destination in ((tree, "into"), (tree, "into"), (f"{tree}/.", "into/tree")):
        summary = copy(source, tmp_path / destination, KEEP)
        assert listing(tmp_path / "into/tree") == listing(tree)
        assert summary == Summary(files=4, directories=3, links=1, size_bytes=MIB + 77 + 8)


@both_ways
def test_links_at_both_ends(copy: Copy, tree: Path, tmp_path: Path) -> None:
    """Others, and what -L does, are told on the node."""
    (tmp_path / "to-tree").symlink_to("tree")
    (tmp_path / "to-nothing").symlink_to("/nonexistent")
    copy(f"{tmp_path}/to-tree/", tmp_path / "followed")
    assert (tmp_path / "followed/f").read_text() == "hello"
    with pytest.raises(CopyError, match="it points outside") as info:
        copy(tmp_path / "to-nothing", tmp_path / "m")
    assert "-L" in str(info.value.hint)
    copy(tree / "f", tmp_path / "to-nothing")  # replaced, not written through
    assert not (tmp_path / "to-nothing").is_symlink()
    assert (tmp_path / "to-nothing").read_text() == "hello"


@both_ways
def test_stages_are_not_copied(copy: Copy, tree: Path, tmp_path: Path) -> None:
    (tree / random_name().decode()).mkdir()
    skipped: list[Skipped] = []
    assert copy(tree, tmp_path / "new", on_skip=skipped.append).directories == 3
    assert skipped == []
    (next(tree.glob(".pycrictl-*"))).rmdir()


@both_ways
def test_wrong_sources(copy: Copy, tree: Path, tmp_path: Path) -> None:
    with pytest.raises(CopyError, match="no such file"):
        copy(tree / "nothing", tmp_path / "x")
    for wrong in (f"{tree}/f/", f"{tree}/f/."):
        with pytest.raises(CopyError, match=r"not a directory"):
            copy(wrong, tmp_path / "x")
    with pytest.raises(CopyError, match="there is no directory"):
        copy(tree, tmp_path / "no/where")
    with pytest.raises(CopyError, match="there is no directory"):
        copy(tree / "f", tree / "f/x")
    with pytest.raises(CopyError, match="file name too long"):
        copy(tree / "f", tmp_path / ("n" * 256))
    assert not (tmp_path / "x").exists()


@both_ways
def test_a_sparse_file(copy: Copy, tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(200 * MIB)
        file.seek(100 * MIB)
        file.write(b"x")
    copy(tmp_path / "sparse", tmp_path / "new")
    status = (tmp_path / "new").stat()
    assert status.st_size == 200 * MIB
    assert status.st_blocks * 512 < MIB
    with (tmp_path / "new").open("rb") as file:
        file.seek(100 * MIB - 1)
        assert file.read(3) == b"\0x\0"


def test_a_deep_tree(tmp_path: Path) -> None:
    deep = tmp_path / "deep"
    for count, is_accepted in ((511, True), (512, False)):
        inner = deep.joinpath(*["d"] * count)
        inner.mkdir(parents=True, exist_ok=True)
        if is_accepted:
            directly(deep, tmp_path / "new")
            assert (tmp_path / "new").joinpath(*["d"] * count).is_dir()
        else:
            with pytest.raises(CopyError, match="deep"):
                directly(deep, tmp_path / "new-2")
            assert not (tmp_path / "new-2").exists()


# Without root


@needs_root
def test_directories_that_their_owner_cannot_write_to() -> None:
    """Another user copies a tree with closed directories, and gets their modes."""
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
            status = 1
            with suppress(BaseException):
                os.setgid(65534)
                os.setuid(65534)
                directly(top / "tree", top / "new", KEEP)
                directly(top / "tree/sub", top / "sub", KEEP)
                (top / "into/tree").mkdir(parents=True)
                directly(top / "tree", top / "into", KEEP)
                by_archive(top / "tree", top / "by-archive", KEEP)
                status = 0
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        for copied in ("new", "into/tree", "by-archive"):
            assert listing(top / copied) == listing(top / "tree")
        assert listing(top / "sub") == listing(top / "tree/sub")
        assert (top / "new/sub/f").stat().st_uid == 65534
