"""What copies may take of a node's disk."""

from __future__ import annotations

import pytest

from pycrictl.agent.copies.spool import RESERVE_BYTES, SpoolSpace
from pycrictl.errors import Exhausted

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
