from __future__ import annotations

import errno
import os
import zlib
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import pytest

from pycrictl.base.errors import CopyError, NoSpace
from pycrictl.copy.archive.archives import Spool
from tests.copy.trees import MIB


@pytest.mark.parametrize("name", ["", "none", "file", "own"])
def test_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """It is the one that TMPDIR names if it is writable, else /var/tmp."""
    (tmp_path / "own").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.setenv("TMPDIR", str(tmp_path / name) if name else "")
    with Spool() as spool:
        folder = Path(f"/proc/self/fd/{spool.fd}").readlink().parent
    assert folder == (tmp_path / "own" if name == "own" else Path("/var/tmp"))


@pytest.mark.parametrize(
    "data",
    [[], [b"x"], [*map(os.urandom, (512, MIB, 7))], [os.urandom(200_000)] * 30, [bytes(MIB)] * 64],
    ids=["nothing", "byte", "pieces", "many", "zeros"],
)
def test_it_keeps_what_it_is_given(tmp_path: Path, data: list[bytes]) -> None:
    whole = b"".join(data)
    with Spool(str(tmp_path)) as spool:
        spool.fill(data)
        assert b"".join(map(bytes, spool.pieces())) == whole
        assert (spool.size_bytes, spool.crc32) == (len(whole), zlib.crc32(whole))
        assert list(tmp_path.iterdir()) == []
        status = os.fstat(spool.fd)
        assert status.st_size == len(whole)
        assert whole.strip(b"\0") or status.st_blocks == 0  # zeros occupy no blocks


def test_without_unnamed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [OSError(errno.EOPNOTSUPP, "no"), DEFAULT]
    monkeypatch.setattr(os, "open", Mock(wraps=os.open, side_effect=answers))
    with Spool(str(tmp_path)) as spool:
        spool.fill([b"x"])
        assert b"".join(map(bytes, spool.pieces())) == b"x"
        assert list(tmp_path.iterdir()) == []


def test_the_reserve_of_the_disk_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Mock(f_bavail=MIB - 1, f_frsize=1)
    monkeypatch.setattr(os, "fstatvfs", lambda _: disk)
    with Spool(str(tmp_path)) as spool:
        with pytest.raises(NoSpace, match="not enough space"):
            spool.write(bytes(MIB))
        disk.f_bavail = MIB
        spool.write(bytes(MIB))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_or_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(os, "pwrite", Mock(side_effect=OSError(number, "full")))
    why = "there is not enough space for the copy in"
    with Spool(str(tmp_path)) as spool, pytest.raises(NoSpace, match=why):
        spool.write(b"x")


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(CopyError, match=r"cannot spool in .*: no such file or directory"):
        Spool(str(tmp_path / "none"))
