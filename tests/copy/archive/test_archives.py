from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import os
import tracemalloc
import zlib
from collections.abc import Callable, Generator
from importlib import import_module
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import pytest

from pycrictl.base.errors import CopyError, NoSpace, PycrictlError, StreamError
from pycrictl.copy.archive.archives import Spool, decompressed
from tests.copy.hostile import FILE, archive, member
from tests.copy.trees import MIB


@pytest.mark.parametrize("name", ["", "own"])
def test_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """It is the one that TMPDIR names, else /var/tmp."""
    (tmp_path / "own").mkdir()
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


# Compressed archives

PLAIN = archive(member(b"f", FILE, os.urandom(300_000) + bytes(MIB)))
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}
try:
    COMPRESS["zstd"] = import_module("compression.zstd").compress
except ImportError:
    pass
formats = pytest.mark.parametrize("name", COMPRESS)


def content(data: bytes, piece_bytes: int = 100_000) -> bytes:
    def pieces() -> Generator[memoryview, None, None]:
        for start in range(0, len(data), piece_bytes):
            yield memoryview(data[start : start + piece_bytes])

    return b"".join(map(bytes, decompressed(pieces())))


@formats
@pytest.mark.parametrize("piece_bytes", [1, 4096, 10 * MIB])
def test_pieces_of_any_size(name: str, piece_bytes: int) -> None:
    small = archive(member(b"f", FILE, b"content"))
    assert len(COMPRESS[name](small)) < 512
    for data in (small, PLAIN) if piece_bytes > 1 else (small,):
        assert content(data, piece_bytes) == data
        assert content(COMPRESS[name](data), piece_bytes) == data


@formats
def test_several_members_and_padding(name: str) -> None:
    """As pigz, pbzip2 and pixz make them, and tar pads gzip for a tape."""
    compress = COMPRESS[name]
    data = compress(PLAIN[:1000]) + compress(b"") + compress(PLAIN[1000:])
    data += bytes(10_240 if name == "gzip" else 0)
    for piece_bytes in (4096, 10 * MIB):
        assert content(data, piece_bytes) == PLAIN


@formats
def test_damage(name: str) -> None:
    data = COMPRESS[name](PLAIN)
    half = len(data) // 2
    flipped = data[:half] + bytes((data[half] ^ 1,)) + data[half + 1 :]
    for bad in (data[:-1], data[:half], data[:20], flipped):
        with pytest.raises(StreamError, match=rf"ends too early \({name}|damaged \({name}\): "):
            content(bad)


@pytest.mark.parametrize(
    ("start", "name"),
    [(b"PK\x03\x04", "zip"), (b"7z\xbc\xaf\x27\x1c", "7z"), (b"Rar!\x1a\x07", "rar")],
)
@pytest.mark.parametrize("size_bytes", [10, 5000])
def test_formats_that_are_named(start: bytes, name: str, size_bytes: int) -> None:
    with pytest.raises(CopyError, match=f"has the format {name}, which is not supported here"):
        content(start.ljust(size_bytes, b"x"))


def test_a_python_without_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "bz2", None)
    with pytest.raises(PycrictlError, match="bzip2, which is not supported here") as info:
        content(COMPRESS["bzip2"](PLAIN))
    assert info.value.hint == "pipe a tar archive, plain or compressed with gzip or xz"


@pytest.mark.slow
@formats
def test_a_bomb_takes_no_memory(name: str) -> None:
    data = COMPRESS[name](bytes(200 * MIB))
    tracemalloc.start()
    try:
        total = sum(map(len, decompressed(piece for piece in [memoryview(data)])))
        assert tracemalloc.get_traced_memory()[1] < 40 * MIB
    finally:
        tracemalloc.stop()
    assert total == 200 * MIB
