"""Copies that fail, and sources that change meanwhile: no partial copy remains."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from pycrictl.base.errors import CopyError
from pycrictl.copy.rules.policy import Skipped
from pycrictl.copy.tree import content
from pycrictl.copy.tree.content import segments
from pycrictl.copy.tree.rootfs import Directory
from tests.copy.trees import Copy, both_ways, contents, directly


def test_ctrl_c_at_a_new_stage(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "into").mkdir()
    make = Directory.make

    def interrupted(self: Directory, name: bytes) -> Directory:
        make(self, name).close()
        raise KeyboardInterrupt

    monkeypatch.setattr(Directory, "make", interrupted)
    with pytest.raises(KeyboardInterrupt):
        directly(tree, tmp_path / "into")
    assert list((tmp_path / "into").iterdir()) == []


@both_ways
def test_a_disk_that_fails(copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only an "unsupported" error makes the next way of copying run; this one ends the copy."""
    broken = Mock(side_effect=OSError(errno.EIO, "disk"))
    monkeypatch.setattr(os, "preadv", broken)
    monkeypatch.setattr(content, "_WAYS", (broken, *content._WAYS))
    (tmp_path / "f").write_bytes(bytes(content.SMALL_BYTES + 1))
    with pytest.raises(CopyError, match='cannot copy "f": input/output error'):
        copy(tmp_path / "f", tmp_path / "g")
    assert not (tmp_path / "g").exists()


@both_ways
@pytest.mark.parametrize("size_bytes", [200_000, 400_000], ids=["shrinks", "grows"])
def test_a_file_that_changes_its_size(
    copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    (tmp_path / "f").write_bytes(b"x" * 300_000)

    def change(fd: int, size_before_bytes: int) -> list[tuple[int, int]]:
        os.truncate(tmp_path / "f", size_bytes)
        return segments(fd, size_before_bytes)

    monkeypatch.setattr("pycrictl.copy.tree.content.segments", change)
    monkeypatch.setattr("pycrictl.copy.archive.pack.segments", change)
    if size_bytes > 300_000:
        copy(tmp_path / "f", tmp_path / "g")
        assert (tmp_path / "g").read_bytes() == b"x" * 300_000
        return
    with pytest.raises(CopyError, match="became shorter"):
        copy(tmp_path / "f", tmp_path / "g")
    assert not (tmp_path / "g").exists()


@both_ways
def test_a_file_that_vanishes(copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d").mkdir()
    for name in ("gone", "stays"):
        (tmp_path / "d" / name).write_text("1")
    pin, skipped = Directory.pin, list[Skipped]()

    def vanishing(self: Directory, name: bytes) -> int:
        (tmp_path / "d/gone").unlink(missing_ok=True)
        return pin(self, name)

    monkeypatch.setattr(Directory, "pin", vanishing)
    copy(tmp_path / "d", tmp_path / "new", on_skip=skipped.append)
    assert contents(tmp_path / "new") == {"stays": "1"}
    assert [(left_out.path, left_out.rule) for left_out in skipped] == [(b"d/gone", "vanished")]
