"""The folder of the archives of sessions."""

from __future__ import annotations

from pathlib import Path

import pytest

from pycrictl.agent.copies.store import Store
from pycrictl.errors import ConfigError
from tests.agent.copies.spooled import spooled


def test_a_folder_with_other_files_is_left_as_it_is(tmp_path: Path) -> None:
    """Somebody has typed /etc."""
    (tmp_path / "hosts").write_text("content")
    tmp_path.chmod(0o755)
    archive = Store(str(tmp_path)).open_archive()
    archive.append(memoryview(b"secret"))
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in tmp_path.iterdir()] == ["hosts"]
    (unnamed,) = set(spooled(tmp_path)) - {tmp_path / "hosts"}
    assert unnamed.stat().st_mode & 0o777 == 0o600
    assert (archive.size_bytes, unnamed.read_bytes()) == (6, b"secret")
    archive.close()
    assert spooled(tmp_path) == [tmp_path / "hosts"]


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file/below", Path("/proc/sys")):
        with pytest.raises(ConfigError, match="cannot keep copies in"):
            Store(str(path))
    assert Store(str(tmp_path / "new/one")).free_bytes > 0
