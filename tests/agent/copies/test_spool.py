"""What copies may take of a node's disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from pycrictl.agent.copies.spool import RESERVE_BYTES, SpoolSpace, check_folder
from pycrictl.errors import ConfigError, Exhausted

MIB = 1 << 20


def test_space_is_held_as_bytes_arrive() -> None:
    space = SpoolSpace(10 * MIB, lambda: 1 << 40)
    space.check(10 * MIB)
    with pytest.raises(Exhausted, match=r"11\.0 MiB of its disk, and may take 10\.0 MiB; try"):
        space.check(11 * MIB)  # it can never fit
    space.hold("a", "jane", 6 * MIB)
    space.check(10 * MIB)  # others may be over until its bytes come
    with pytest.raises(Exhausted, match=r"12\.0 MiB of its disk, and may take 10\.0 MiB; try"):
        space.hold("b", "joe", 6 * MIB)
    space.hold("b", "joe", 4 * MIB)
    with pytest.raises(Exhausted):
        space.hold("a", "jane", 7 * MIB)  # one that grows
    assert (space.held_bytes, space.held_by("jane"), space.held_by("joe")) == (
        *(10 * MIB, 6 * MIB, 4 * MIB),
    )
    space.give("a")
    space.hold("b", "joe", 10 * MIB)
    assert space.held_bytes == 10 * MIB


def test_a_part_of_the_disk_stays_free_without_a_limit() -> None:
    free_bytes = RESERVE_BYTES + 10 * MIB
    space = SpoolSpace(0, lambda: free_bytes)
    space.hold("a", "jane", 6 * MIB)
    free_bytes -= 6 * MIB
    space.check(10 * MIB)
    with pytest.raises(Exhausted, match="not enough space for the copy on the node's disk; try"):
        space.check(11 * MIB)
    with pytest.raises(Exhausted, match="not enough space for the copy on the node's disk; try"):
        space.hold("b", "joe", 5 * MIB)
    space.hold("b", "joe", 4 * MIB)
    space.hold("b", "joe", 3 * MIB)  # less is always possible


def test_a_folder_with_other_files_is_left_as_it_is(tmp_path: Path) -> None:
    """Somebody has typed /etc."""
    (tmp_path / "hosts").write_text("content")
    tmp_path.chmod(0o755)
    check_folder(str(tmp_path))
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in tmp_path.iterdir()] == ["hosts"]


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file/below", Path("/proc/sys")):
        with pytest.raises(ConfigError, match="cannot keep copies in"):
            check_folder(str(path))
