"""What copies may take of a node's disk."""

from __future__ import annotations

import pytest

from pycrictl.agent.copies.spool import RESERVE_BYTES, SpoolSpace
from pycrictl.errors import Exhausted

MIB = 1 << 20


def test_what_is_held_counts_before_it_is_written() -> None:
    space = SpoolSpace(10 * MIB, lambda: 1 << 40)
    space.hold("a", 6 * MIB)
    with pytest.raises(Exhausted, match=r"12\.0 MiB of its disk, and may take 10\.0 MiB; try"):
        space.hold("b", 6 * MIB)
    space.hold("b", 4 * MIB)
    with pytest.raises(Exhausted):
        space.hold("a", 7 * MIB)  # one that grows
    assert space.held_bytes == 10 * MIB
    space.give("a")
    space.hold("b", 10 * MIB)
    assert space.held_bytes == 10 * MIB


def test_a_part_of_the_disk_stays_free_without_a_limit() -> None:
    free_bytes = RESERVE_BYTES + 10 * MIB
    space = SpoolSpace(0, lambda: free_bytes)
    space.hold("a", 6 * MIB)
    with pytest.raises(Exhausted, match="not enough space for the copy on the node's disk; try"):
        space.hold("b", 5 * MIB)
    space.wrote("a", 6 * MIB)
    free_bytes -= 6 * MIB
    space.hold("b", 4 * MIB)
    free_bytes -= MIB  # somebody else's
    with pytest.raises(Exhausted):
        space.hold("b", 5 * MIB)
    space.hold("b", 3 * MIB)  # less is always possible
