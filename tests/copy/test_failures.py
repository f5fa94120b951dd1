"""Copies that fail, and sources that change meanwhile: what is left."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from pycrictl.copy.tree.content import segments
from pycrictl.copy.tree.rootfs import Directory
from pycrictl.errors import CopyError
from tests.copy.trees import Copy, both_ways, directly, nothing_is_left, tree

__all__ = ["nothing_is_left", "tree"]


def test_ctrl_c_when_a_stage_was_just_made(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
@pytest.mark.parametrize("size_bytes", [200_000, 400_000], ids=["shrinks", "grows"])
def test_a_file_that_changes_its_size(
    copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    (tmp_path / "f").write_bytes(b"x" * 300_000)
    before = segments

    def change(fd: int, size_before_bytes: int) -> list[tuple[int, int]]:
        os.truncate(tmp_path / "f", size_bytes)
        return before(fd, size_before_bytes)

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
def test_a_tree_that_changes_all_the_time(copy: Copy, tmp_path: Path) -> None:
    (tmp_path / "tree/sub").mkdir(parents=True)
    stop = threading.Event()

    def change() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            path = tmp_path / f"tree/sub/{number % 50}"
            path.write_text("x" * 100)
            (tmp_path / f"tree/sub/{(number + 25) % 50}").unlink(missing_ok=True)
            (tmp_path / "tree/now").mkdir(exist_ok=True)
            (tmp_path / "tree/now").rmdir()

    thread = threading.Thread(target=change)
    thread.start()
    done = 0
    failures: set[str] = set()
    begin = time.monotonic()
    try:
        while (passed_s := time.monotonic() - begin) < 0.5 or (not done and passed_s < 30):
            try:
                copy(tmp_path / "tree", tmp_path / f"new-{done}")
                done += 1
            except CopyError as exc:
                failures.add(exc.message.rpartition(" became ")[2])
    finally:
        stop.set()
        thread.join()
    assert done > 0
    assert failures <= {"shorter while it was copied"}
