"""Writing into a file that stays where it is: its old content or the new, whatever goes wrong."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pycrictl.copy.tree import in_place
from pycrictl.copy.tree.content import write_all
from pycrictl.errors import CopyError
from tests.copy.trees import MIB, needs_root, nothing_is_left

__all__ = ["nothing_is_left"]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of two mebibytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


def write(source: Path, target: Path) -> None:
    with source.open("rb") as new, target.open("r+b") as old:
        in_place._overwrite(new.fileno(), old.fileno(), shown=bytes(target))


def sparse(path: Path, size_bytes: int, *pieces: tuple[int, bytes]) -> bytes:
    with path.open("wb") as file:
        for position, data in pieces:
            file.seek(position)
            file.write(data)
        file.truncate(size_bytes)
    return path.read_bytes()


@pytest.mark.parametrize(
    "new",
    [
        (0, []),
        (5, [(0, b"short")]),
        (MIB, [(0, os.urandom(MIB))]),
        (5 * MIB + 5, [(0, b"a"), (2 * MIB, os.urandom(70_000)), (5 * MIB, b"b")]),
    ],
    ids=["empty", "short", "full", "sparse"],
)
@pytest.mark.parametrize(
    "old",
    [(0, []), (3 * MIB, [(0, os.urandom(3 * MIB))]), (7 * MIB, [(6 * MIB, b"old")])],
    ids=["over nothing", "over data", "over holes"],
)
def test_contents(
    tmp_path: Path,
    new: tuple[int, list[tuple[int, bytes]]],
    old: tuple[int, list[tuple[int, bytes]]],
) -> None:
    data = sparse(tmp_path / "new", new[0], *new[1])
    sparse(tmp_path / "old", old[0], *old[1])
    inode = (tmp_path / "old").stat().st_ino
    write(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old").read_bytes() == data
    assert (tmp_path / "old").stat().st_ino == inode


@needs_root
def test_a_disk_that_is_full(tmp_path: Path, small: Path) -> None:
    old = sparse(small / "old", MIB, (0, os.urandom(200_000)), (MIB - 5, b"last"))
    (tmp_path / "new").write_bytes(os.urandom(3 * MIB))
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / "new", small / "old")
    assert (small / "old").read_bytes() == old


@pytest.mark.parametrize("problem", [OSError(errno.EIO, "disk"), KeyboardInterrupt()])
def test_an_error_in_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: BaseException
) -> None:
    old = sparse(tmp_path / "old", 3 * MIB, (MIB, os.urandom(MIB)))
    (tmp_path / "new").write_bytes(os.urandom(5 * MIB))
    _fail_at(monkeypatch, 4, problem)
    with pytest.raises(type(problem)):
        write(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old").read_bytes() == old


def _fail_at(monkeypatch: pytest.MonkeyPatch, last: int, problem: BaseException) -> None:
    steps = 0

    def failing(target: int, data: bytes, position: int) -> None:
        nonlocal steps
        steps += 1
        if steps == last:
            raise problem
        write_all(target, data, position)

    monkeypatch.setattr(in_place, "write_all", failing)


@needs_root
def test_no_room_for_the_old_content(
    tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_place, "DEFAULT_FOLDER", str(small))
    old = sparse(tmp_path / "old", 3 * MIB, (0, os.urandom(3 * MIB)))
    (tmp_path / "new").write_text("new")
    with pytest.raises(CopyError, match="cannot set the old content aside in") as info:
        write(tmp_path / "new", tmp_path / "old")
    assert "no space left" in info.value.message
    assert (tmp_path / "old").read_bytes() == old
