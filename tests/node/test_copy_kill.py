"""Copies in which somebody is killed: at a few points of the many that ``kills`` can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tools.torture.kills import METHODS, VICTIMS, Scene

if TYPE_CHECKING:
    from .lab import Lab

POINTS: Final = 2
"""How often each victim is killed, for each method."""


@pytest.mark.timeout(400)  # half a minute, if nobody else is at work
def test_nothing_is_half_done_when_somebody_is_killed(lab: Lab) -> None:
    with Scene(lab, seed=1) as scene:
        tallies = [scene.run(victim, method, POINTS) for victim in VICTIMS for method in METHODS]
    assert [(str(tally), tally.faults) for tally in tallies if tally.faults] == []
    assert all(tally.completed + tally.failed == POINTS for tally in tallies)
    # Not all kills came too late.
    assert any(tally.failed for tally in tallies if tally.victim == "client")
