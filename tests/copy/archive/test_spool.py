from __future__ import annotations

import errno
import os
import zlib
from pathlib import Path
from unittest.mock import Mock

import pytest

from pycrictl.copy.archive.spool import Spool
from pycrictl.errors import CopyError, NoSpace
from tests.copy.trees import MIB


@pytest.mark.parametrize("name", ["", "none", "file", "own"])
def test_where_temporary_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """They are in the folder that TMPDIR names if it is writable, else in /var/tmp."""
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


def test_where_files_without_names_are_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def without(path: str, flags: int, *mode: int, **others: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "no")
        return real(path, flags, *mode, **others)

    monkeypatch.setattr(os, "open", without)
    with Spool(str(tmp_path)) as spool:
        spool.fill([b"x"])
        assert b"".join(map(bytes, spool.pieces())) == b"x"
        assert list(tmp_path.iterdir()) == []


def test_the_reserve_of_the_disk_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Mock(f_bavail=MIB - 1, f_frsize=1)
    monkeypatch.setattr(os, "fstatvfs", lambda _: disk)
    with pytest.raises(NoSpace, match="not enough space"):
        Spool(str(tmp_path))
    disk.f_bavail = MIB
    with Spool(str(tmp_path)) as spool:
        spool.write(bytes(7 * MIB))
        with pytest.raises(NoSpace):
            spool.write(bytes(MIB))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_or_quota_that_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "pwrite", Mock(side_effect=OSError(number, "full")))
    with (
        Spool(str(tmp_path)) as spool,
        pytest.raises(NoSpace, match="there is not enough space for the copy in"),
    ):
        spool.write(b"x")


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(CopyError, match=r"cannot spool in .*: no such file or directory"):
        Spool(str(tmp_path / "none"))
