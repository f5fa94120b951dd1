"""Copies in which somebody is killed: at a few points of the many that ``kills`` can do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tools.torture.kills import METHODS, VICTIMS, Scene

if TYPE_CHECKING:
    from .lab import Lab


@pytest.mark.timeout(400)  # half a minute, if nobody else is at work
def test_nothing_is_half_done_when_somebody_is_killed(lab: Lab) -> None:
    with Scene(lab, seed=1) as scene:
        tallies = [
            scene.run(victim, method, points(victim)) for victim in VICTIMS for method in METHODS
        ]
    assert [(str(tally), tally.faults) for tally in tallies if tally.faults] == []
    assert all(tally.completed + tally.failed == points(tally.victim) for tally in tallies)
    # Not all kills came too late.
    assert any(tally.failed for tally in tallies if tally.victim == "client")


def points(victim: str) -> int:
    """How often somebody is killed, for each method."""
    return 2 if victim == "client" else 1
