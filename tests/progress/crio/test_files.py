"""The files of this very process, laid out as containers/image lays them out."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pycrictl.progress.crio import files as crio_files


@pytest.mark.parametrize("name", ["container_images_storage4711", "storage815"])
def test_what_a_process_is_writing(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "1").write_bytes(b"x" * 10)
    with (folder / "2").open("wb") as two, (folder / "1").open("rb"):
        two.write(b"y" * 5)
        two.flush()
        opened = crio_files.open_blobs(os.getpid())
        assert opened[str(folder)] == {2}
        files = crio_files.read_folder(str(folder), opened[str(folder)])
        assert files is not None
        assert [file[:3] for file in files] == [(1, 10, False), (2, 5, True)]


def test_what_is_no_blob_is_left_out(tmp_path: Path) -> None:
    for name in ("storage1x", "storage", "mystorage1"):
        (tmp_path / name).mkdir()
    (tmp_path / "storage12").mkdir()
    with (
        (tmp_path / "storage1x" / "1").open("wb"),
        (tmp_path / "storage" / "1").open("wb"),
        (tmp_path / "mystorage1" / "1").open("wb"),
        (tmp_path / "storage12" / "lock").open("wb"),
    ):
        found = crio_files.open_blobs(os.getpid())
    assert not [path for path in found if path.startswith(str(tmp_path))]
    assert crio_files.read_folder(str(tmp_path / "storage12"), set()) == []


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    assert crio_files.read_folder(str(tmp_path / "storage1"), set()) is None


def test_a_process_that_is_gone() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    with pytest.raises(ProcessLookupError):
        crio_files.open_blobs(process.pid)
    assert crio_files.root_of(process.pid) == ""
    assert crio_files.root_of(os.getpid()) == ""


def test_the_images_config_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "1").write_bytes(b"\x1f\x8b")
    (tmp_path / "2").write_bytes(b'{"config": {}}')
    (tmp_path / "3").write_bytes(b"")
    found = crio_files.read_folder(str(tmp_path), set())
    assert [file.number for file in found or ()] == [1, 3]
