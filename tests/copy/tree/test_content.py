"""Copying the content of files in every way that the system has, and its holes."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from pycrictl.copy.tree import content
from pycrictl.copy.tree.content import SparseWriter, copy_content, segments
from tests.copy.trees import MIB


@pytest.mark.parametrize("way", content._WAYS, ids=lambda way: way.__name__)
def test_every_way_of_copying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Callable[..., int]
) -> None:
    unsupported = Mock(side_effect=OSError(errno.EXDEV, "unsupported"))
    before = content._WAYS.index(way)
    monkeypatch.setattr(content, "_WAYS", (*[unsupported] * before, way))
    data = os.urandom(MIB) + bytes(MIB) + os.urandom(300_001)
    (tmp_path / "f").write_bytes(data)
    told: list[int] = []
    with (tmp_path / "f").open("rb") as source, (tmp_path / "g").open("wb") as target:
        copy_content(source.fileno(), target.fileno(), len(data), shown=b"f", on_bytes=told.append)
    assert (tmp_path / "g").read_bytes() == data
    assert sum(told) == len(data)


def room_of(path: Path, pieces: list[bytes]) -> int:
    """Write pieces as from a stream; return how many bytes the file occupies on disk."""
    with path.open("wb") as file:
        writer = SparseWriter(file.fileno())
        for piece in pieces:
            writer.write(memoryview(piece))
        writer.finish()
    assert path.read_bytes() == b"".join(pieces)
    return path.stat().st_blocks * 512


def test_runs_of_every_length_are_written(tmp_path: Path) -> None:
    """No more room is reserved than is written."""
    data = os.urandom(2 * MIB)
    sizes = (1, 262_143, 262_144, 262_145, MIB + 7, 0, 2 * MIB)
    assert room_of(tmp_path / "f", [data[:size] for size in sizes]) < sum(sizes) + 65_536


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 200_000])
def test_holes_are_found_in_streams(tmp_path: Path, size: int) -> None:
    hole = 65_536
    data = os.urandom(hole) + bytes(3 * hole) + b"x" + bytes(size)
    pieces = [data[start : start + 2 * hole] for start in range(0, len(data), 2 * hole)]
    assert room_of(tmp_path / "f", pieces) < len(data) - 2 * hole


def test_segments_of_a_file_with_holes(tmp_path: Path) -> None:
    first, second = (MIB, MIB + 4096), (5 * MIB, 5 * MIB + 4096)
    with (tmp_path / "f").open("w+b") as file:
        file.truncate(10 * MIB)
        for start, _ in (first, second):
            os.pwrite(file.fileno(), b"x" * 4096, start)
        for size_bytes, expected in (
            (10 * MIB, [first, second]),
            (3 * MIB, [first]),
            (5 * MIB + 10, [first, (5 * MIB, 5 * MIB + 10)]),
            (0, []),
        ):
            assert segments(file.fileno(), size_bytes) == expected
