from __future__ import annotations

import bz2
import gzip
import lzma
import os
import tracemalloc
from collections.abc import Callable, Generator
from importlib import import_module

import pytest

from pycrictl.base.errors import CopyError, PycrictlError, StreamError
from pycrictl.copy.archive.decompress import decompressed
from tests.copy.hostile import FILE, archive, member
from tests.copy.trees import MIB

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
    with pytest.raises(CopyError, match=f"has the format {name}, which is not read here"):
        content(start.ljust(size_bytes, b"x"))


def test_a_python_without_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "bz2", None)
    with pytest.raises(PycrictlError, match="bzip2, which is not read here") as info:
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
