"""The files of this very process, laid out as containers/image lays them out."""

from __future__ import annotations

import gzip
import os
import subprocess
from pathlib import Path

import pytest

from pycrictl.progress.crio import bigfiles


@pytest.mark.parametrize("name", ["container_images_storage4711", "storage815"])
def test_what_a_process_is_writing(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "1").write_bytes(b"x" * 10)
    with (folder / "2").open("wb") as two, (folder / "1").open("rb"):
        two.write(b"y" * 5)
        two.flush()
        opened = bigfiles.open_blobs(os.getpid())
        assert opened[str(folder)] == {2}
        files = bigfiles.read_folder(str(folder), opened[str(folder)])
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
        found = bigfiles.open_blobs(os.getpid())
    assert not [path for path in found if path.startswith(str(tmp_path))]
    assert bigfiles.read_folder(str(tmp_path / "storage12"), set()) == []


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    assert bigfiles.read_folder(str(tmp_path / "storage1"), set()) is None


def test_a_process_that_is_gone() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    with pytest.raises(ProcessLookupError):
        bigfiles.open_blobs(process.pid)
    assert bigfiles.root_of(process.pid) == ""
    assert bigfiles.root_of(os.getpid()) == ""


def test_files_are_known_by_how_they_begin_and_end(tmp_path: Path) -> None:
    (tmp_path / "1").write_bytes(gzip.compress(b"z" * 1000))
    (tmp_path / "2").write_bytes(b'{"config": {}}')
    (tmp_path / "3").write_bytes(b"")
    folder = str(tmp_path)
    assert [bigfiles.is_document(folder, n) for n in (1, 2, 3, 4)] == [False, True, False, False]
    trailers = [bigfiles.gzip_trailer(folder, n) for n in (1, 2, 3, 4)]
    assert trailers == [(1000).to_bytes(4, "little"), b"", b"", b""]
