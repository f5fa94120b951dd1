"""Copies that fail, and sources that change meanwhile: what is left."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pycrictl.copy.tree.content import segments
from pycrictl.copy.tree.janitor import sweep_root
from pycrictl.copy.tree.places import LocalRoot
from pycrictl.copy.tree.rootfs import Directory
from pycrictl.errors import CopyError
from tests.copy.hostile import snapshot
from tests.copy.over_quota import exceeding_quota
from tests.copy.trees import (
    MIB,
    Copy,
    both_ways,
    directly,
    needs_root,
    nothing_is_left,
    stages_in,
    tree,
)

__all__ = ["nothing_is_left", "tree"]


@both_ways
@pytest.mark.parametrize("is_file", [True, False])
def test_nothing_is_left_of_a_killed_program(
    copy: Copy, tree: Path, tmp_path: Path, is_file: bool
) -> None:
    (tmp_path / "into").mkdir()
    (tmp_path / "into/f").write_text("old")
    source = tree / "f" if is_file else f"{tree}/."
    script = f"""
import time
from pathlib import Path
from pycrictl.copy.tree import content
from tests.copy.trees import {copy.__name__}

def stop(*_):
    print("writing", flush=True)
    time.sleep(100)

content.write_all = stop
content._WAYS = (stop,)
{copy.__name__}({str(source)!r}, {str(tmp_path / "into")!r})
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        assert len(stages_in(tmp_path / "into")) == 1
    finally:
        process.kill()
        process.communicate()
    sweep_root(LocalRoot())  # as the next copy does
    assert [path.name for path in (tmp_path / "into").iterdir()] == ["f"]
    assert (tmp_path / "into/f").read_text() == "old"


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


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with a small file, and with one for which there will be no room."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source/a").write_text("a")
    (tmp_path / "source/big").write_bytes(os.urandom(3 * MIB))
    return tmp_path / "source"


@needs_root
@both_ways
@pytest.mark.parametrize("is_file", [True, False])
def test_no_space_left(copy: Copy, source: Path, tmp_path: Path, is_file: bool) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", small], check=True)
    try:
        (small / "big").write_text("old")
        before = snapshot(small)
        with pytest.raises(CopyError, match="no space left") as info:
            copy(source / "big" if is_file else f"{source}/.", small)
        assert snapshot(small) == before
        assert info.value.message.startswith(f'cannot copy to "{small}')
    finally:
        subprocess.run(["umount", small], check=True)


@both_ways
@pytest.mark.parametrize("is_file", [True, False])
def test_a_quota_that_is_exceeded(copy: Copy, source: Path, tmp_path: Path, is_file: bool) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "big").write_text("old")
    before = snapshot(place)
    with pytest.raises(CopyError) as info:
        exceeding_quota(lambda: copy(source / "big" if is_file else f"{source}/.", place), MIB)
    shown = place if is_file else place / "big"
    assert info.value.message == f'cannot copy to "{shown}": disk quota exceeded'
    assert snapshot(place) == before


@both_ways
def test_a_file_too_large_for_the_limit(copy: Copy, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(os.urandom(100_000))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(CopyError, match='/g": file too large'):
            copy(tmp_path / "f", tmp_path / "g")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "g").exists()


@both_ways
def test_a_file_that_shrinks(copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_bytes(b"x" * 300_000)
    before = segments

    def shrink(fd: int, size_bytes: int) -> list[tuple[int, int]]:
        os.truncate(tmp_path / "f", 200_000)
        return before(fd, size_bytes)

    monkeypatch.setattr("pycrictl.copy.tree.content.segments", shrink)
    monkeypatch.setattr("pycrictl.copy.archive.pack.segments", shrink)
    with pytest.raises(CopyError, match="became shorter"):
        copy(tmp_path / "f", tmp_path / "g")
    assert not (tmp_path / "g").exists()


@both_ways
def test_a_file_that_grows_is_copied_as_it_was(copy: Copy, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 100)
    stop = threading.Event()

    def grow() -> None:
        with (tmp_path / "f").open("ab", buffering=0) as file:
            while not stop.wait(0.0001):  # else it grows as fast as it is copied
                file.write(b"x" * 100)

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        for _ in range(20):
            summary = copy(tmp_path / "f", tmp_path / "g")
            assert (tmp_path / "g").stat().st_size == summary.size_bytes
            assert set((tmp_path / "g").read_bytes()) == {ord("x")}
    finally:
        stop.set()
        thread.join()


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
        while (passed_s := time.monotonic() - begin) < 1 or (not done and passed_s < 30):
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
