from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from pycrictl.copy.archive.spool import Spool
from pycrictl.errors import CopyError, NoSpace

MIB = 1 << 20


def content(spool: Spool) -> bytes:
    return b"".join(map(bytes, spool.pieces()))


@pytest.mark.parametrize("name", ["", "none", "file", "own"])
def test_where_temporary_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It is in the folder that TMPDIR names, if that is one to write to."""
    (tmp_path / "own").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.setenv("TMPDIR", str(tmp_path / name) if name else "")
    with Spool() as spool:
        folder = Path(f"/proc/self/fd/{spool.fd}").readlink().parent
    assert folder == (tmp_path / "own" if name == "own" else Path("/var/tmp"))


@pytest.mark.parametrize("sizes", [(), (1,), (512, MIB, 7), (200_000,) * 30])
def test_it_keeps_what_it_is_given(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    data = [os.urandom(size) for size in sizes]
    with Spool(str(tmp_path)) as spool:
        for piece in data:
            spool.write(piece)
        spool.finish()
        assert content(spool) == b"".join(data)
        assert (spool.size_bytes, spool.crc32) == (sum(sizes), zlib.crc32(b"".join(data)))
        assert list(tmp_path.iterdir()) == []
        fd = spool.fd
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_zeros_take_no_room(tmp_path: Path) -> None:
    with Spool(str(tmp_path)) as spool:
        for _ in range(64):
            spool.write(bytes(MIB))
        spool.finish()
        status = os.fstat(spool.fd)
        assert (status.st_size, status.st_blocks) == (64 * MIB, 0)
        assert spool.crc32 == zlib.crc32(bytes(64 * MIB))


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
        spool.write(b"x")
        spool.finish()
        assert content(spool) == b"x"
        assert list(tmp_path.iterdir()) == []


def full(spare_bytes: int) -> Callable[[int], object]:
    """A file system with so much room for others than root."""

    class Status:
        f_bavail = spare_bytes
        f_frsize = 1

    return lambda fd: Status


def test_the_reserve_of_the_disk_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fstatvfs", full(MIB - 1))
    with pytest.raises(NoSpace, match="not enough space"):
        Spool(str(tmp_path))
    monkeypatch.setattr(os, "fstatvfs", full(MIB))
    with Spool(str(tmp_path)) as spool:
        spool.write(bytes(7 * MIB))
        with pytest.raises(NoSpace):
            spool.write(bytes(MIB))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_or_quota_that_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def write(*_: object) -> int:
        raise OSError(number, "full")

    monkeypatch.setattr(os, "pwrite", write)
    with (
        Spool(str(tmp_path)) as spool,
        pytest.raises(NoSpace, match="there is not enough space for the copy in"),
    ):
        spool.write(b"x")


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(CopyError, match=r"cannot spool in .*: no such file or directory"):
        Spool(str(tmp_path / "none"))
