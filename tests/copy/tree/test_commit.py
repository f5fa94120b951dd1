"""Copying over existing entries: all of it, or nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from pycrictl.base.errors import CopyError
from pycrictl.copy.tree.places import Root, open_destination
from tests.copy.hostile import FOLDER, archive, member, snapshot
from tests.copy.trees import Archive, Copy, both_ways, put_at


@pytest.mark.root
@both_ways
def test_what_is_special_stays(copy: Copy, tmp_path: Path) -> None:
    top = tmp_path / "d"
    (top / "inner").mkdir(parents=True)
    os.mknod(top / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mkfifo(top / "pipe")
    (top / "link").symlink_to("null")
    (top / "out").symlink_to("/proc/self/fd/1")
    (top / "inner/null").symlink_to("../null")
    for name in ("null", "pipe"):
        (tmp_path / "to" / name).mkdir(parents=True)
        (tmp_path / "to" / name / name).write_text("content")
    before = snapshot(top)
    null = tmp_path / "to/null/null"
    for source, target in (
        *((null, top / name) for name in ("null", "pipe", "link", "out", "")),
        *((f"{tmp_path}/to/{name}/.", top) for name in ("null", "pipe")),
    ):
        with pytest.raises(CopyError, match="is a device, pipe or socket"):
            copy(source, target)
        assert snapshot(top) == before
    # In a tree only the link itself is replaced; its target is not touched.
    copy(f"{tmp_path}/to/null/.", top / "inner")
    assert not (top / "inner/null").is_symlink()
    assert (top / "null").is_char_device()


def test_a_file_that_appears_meanwhile_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for name, entry in (("folder", member(b"x", FOLDER)), ("file", member(b"x"))):

        def coming(path: Path = tmp_path / name, entry: bytes = entry) -> Iterator[bytes]:
            yield archive(entry)
            path.write_text("somebody else's")

        with pytest.raises(CopyError, match="file exists"):
            put_at(tmp_path / name, Archive(coming(), single=True))
        assert (tmp_path / name).read_text() == "somebody else's"


def test_a_directory_that_appears_meanwhile_is_refused(tmp_path: Path) -> None:
    """The copy would belong in the new directory, but by then only its parent is open."""

    class Late(Root):
        def find(self, path: bytes, *, follow: bool) -> int:
            try:
                return super().find(path, follow=follow)
            finally:
                (tmp_path / "d").mkdir(exist_ok=True)

    with (
        pytest.raises(CopyError, match='/d" has just become a directory'),
        open_destination(Late(), bytes(tmp_path / "d")),
    ):
        pass
