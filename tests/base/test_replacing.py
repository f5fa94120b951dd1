"""Files that are replaced as a whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pycrictl.base.replacing import replacing


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_a_new_file_gets_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with replacing(str(tmp_path / "new")) as file:
            file.write(b"new")
            assert not (tmp_path / "new").exists()
    finally:
        os.umask(before)
    assert (tmp_path / "new").read_bytes() == b"new"
    assert mode_of(tmp_path / "new") == 0o640


def test_a_file_keeps_its_mode_and_its_links(tmp_path: Path) -> None:
    old, link = tmp_path / "old", tmp_path / "link"
    old.write_bytes(b"old")
    old.chmod(0o604)
    link.symlink_to("old")
    with replacing(str(link), mode=0o600) as file:
        file.write(b"new")
    assert (old.read_bytes(), mode_of(old), link.is_symlink()) == (b"new", 0o604, True)


def interrupted(path: Path) -> None:
    with replacing(str(path)) as file:
        file.write(b"new")
        raise KeyboardInterrupt


def test_an_error_leaves_the_old_file_alone(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path / "old")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with replacing(str(tmp_path / "pipe")) as file:
        file.write(b"new")
    assert os.read(reader, 10) == b"new"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
