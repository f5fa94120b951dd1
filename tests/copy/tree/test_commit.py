"""Copies over what is there already: all of it, or nothing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pycrictl.copy.archive.arrival import Arrival
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.tree.commit import Merge
from pycrictl.copy.tree.places import open_destination
from pycrictl.copy.tree.rootfs import Directory
from pycrictl.errors import CopyError
from pycrictl.wire.tar.header import Entry, EntryType
from tests.copy.hostile import snapshot
from tests.copy.trees import LOCAL, PLAIN, Copy, both_ways, directly, ignore, nothing_is_left, tree

__all__ = ["nothing_is_left", "tree"]


@both_ways
def test_no_clobber(copy: Copy, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "into/tree/sub").mkdir(parents=True)
    (tmp_path / "into/tree/f").write_text("kept")
    (tmp_path / "into/tree/sub/up").symlink_to("kept")
    summary = copy(tree, tmp_path / "into", Rules(no_clobber=True))
    assert (tmp_path / "into/tree/f").read_text() == "kept"
    assert (tmp_path / "into/tree/sub/up").readlink() == Path("kept")
    assert (tmp_path / "into/tree/sub/hard").read_text() == "hello"
    assert summary.kept == 2
    anew = copy(tree, tmp_path / "anew")
    assert (summary.files, summary.links) == (anew.files - 1, anew.links - 1)
    # "f" was kept, but its content came under its other name.
    assert summary.size_bytes == anew.size_bytes
    again = copy(tree, tmp_path / "into", Rules(no_clobber=True))
    assert (again.files, again.links, again.kept) == (0, 0, anew.files + anew.links)
    assert again.size_bytes == 0
    assert copy(tree / "f", tmp_path / "into/tree/f", Rules(no_clobber=True)).kept == 1
    assert (tmp_path / "into/tree/f").read_text() == "kept"


@both_ways
@pytest.mark.parametrize("in_the_way", ["file", "directory"])
def test_nothing_happens_where_something_is_in_the_way(
    copy: Copy, tree: Path, tmp_path: Path, in_the_way: str
) -> None:
    (tmp_path / "into/tree/sub").mkdir(parents=True)
    (tmp_path / "into/tree/f").write_text("old")
    if in_the_way == "file":
        (tmp_path / "into/tree/sub/empty").write_text("a file")
    else:
        (tmp_path / "into/tree/sub/big").mkdir()
    before = snapshot(tmp_path / "into")
    with pytest.raises(CopyError, match="cannot copy a"):
        copy(tree, tmp_path / "into")
    assert snapshot(tmp_path / "into") == before


@pytest.mark.parametrize("can", ["link", "move"])
def test_a_merge_that_fails_halfway_is_taken_back(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can: str
) -> None:
    """The last step of a merge fails, as when the destination changes meanwhile."""
    into = tmp_path / "into/tree"
    (into / "sub").mkdir(parents=True)
    for name in ("f", "sub/big", "sub/up"):
        (into / name).write_text("old")
    before = snapshot(tmp_path / "into")
    move, moves, last = Directory.move, 0, 0

    def failing(
        self: Directory, name: bytes, to: Directory, to_name: bytes, *, flags: int = 0
    ) -> None:
        if flags and can == "move":
            raise OSError(errno.EINVAL, "flags")
        nonlocal moves
        moves += 1
        if moves == last:
            raise OSError(errno.EIO, "disk")
        move(self, name, to, to_name, flags=flags)

    link = Directory.link

    def of_others(self: Directory, source: Directory, source_name: bytes, name: bytes) -> None:
        if name.startswith(b"old-"):
            raise OSError(errno.EPERM, "links")
        link(self, source, source_name, name)

    monkeypatch.setattr(Directory, "move", failing)
    if can != "link":
        monkeypatch.setattr(Directory, "link", of_others)
    for step in range(1, 5):
        moves, last = 0, step
        with pytest.raises(CopyError, match="input/output error"):
            directly(tree, tmp_path / "into")
        assert snapshot(tmp_path / "into") == before
    last = 0
    directly(tree, tmp_path / "into")
    assert (into / "f").read_text() == "hello"
    assert (into / "sub/up").readlink() == Path("../f")


def test_ctrl_c_in_the_middle_of_a_merge(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "into/tree").mkdir(parents=True)
    (tmp_path / "into/tree/f").write_text("old")
    before = snapshot(tmp_path / "into")
    merge = Merge._replace

    def interrupted(self: Merge, *arguments: object) -> None:
        merge(self, *arguments)  # type: ignore[arg-type]  # any
        raise KeyboardInterrupt

    monkeypatch.setattr(Merge, "_replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        directly(tree, tmp_path / "into")
    assert snapshot(tmp_path / "into") == before


def test_a_file_that_appears_meanwhile_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for is_folder in (True, False):
        name = "folder" if is_folder else "file"
        with (
            open_destination(LOCAL, os.fsencode(tmp_path / name)) as place,
            Arrival(place, PLAIN, on_skip=ignore) as arrival,
        ):
            arrival.begin(Entry(b"x", EntryType.DIRECTORY if is_folder else EntryType.FILE))
            arrival.end()
            (tmp_path / name).write_text("somebody else's")
            with pytest.raises(CopyError, match="file exists"):
                arrival.commit()
        assert (tmp_path / name).read_text() == "somebody else's"
