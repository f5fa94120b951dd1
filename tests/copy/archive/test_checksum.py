"""The checksum of pieces and of parts of files, as zlib has it."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest

from pycrictl.copy.archive import checksum as module
from pycrictl.copy.archive.checksum import crc32_of_file
from pycrictl.errors import CopyError

SIZES = (0, 1, 511, 4_194_303, 4_194_304, 4_194_305, 5_000_001)


@pytest.fixture(params=["shared", "alone"], autouse=True)
def _processors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where two processors share the work, and where the library for that is missing."""
    if request.param == "alone":
        monkeypatch.setattr(module, "crc32", zlib.crc32)
        monkeypatch.setattr(module, "_combine", None)


@pytest.mark.parametrize("size", SIZES)
def test_parts_of_all_sizes(tmp_path: Path, size: int) -> None:
    data = os.urandom(size + 5000)
    (tmp_path / "f").write_bytes(data)
    with (tmp_path / "f").open("rb") as file:
        value = crc32_of_file(file.fileno(), 5000, size, zlib.crc32(b"before"))
        assert value == zlib.crc32(b"before" + data[5000:])
        assert crc32_of_file(file.fileno(), 0, size + 5000, value) == zlib.crc32(data, value)


@pytest.mark.parametrize("missing", [1, 2_000_000, 4_500_000])
def test_a_part_that_is_not_all_there(tmp_path: Path, missing: int) -> None:
    (tmp_path / "f").write_bytes(bytes(5_000_000 - missing))
    with (tmp_path / "f").open("rb") as file:
        with pytest.raises(CopyError, match="a file became shorter while it was copied"):
            crc32_of_file(file.fileno(), 0, 5_000_000)
        # Nothing reads on behind the caller's back, and the next part is as good as any.
        value = crc32_of_file(file.fileno(), 0, 5_000_000 - missing)
    assert value == zlib.crc32(bytes(5_000_000 - missing))
