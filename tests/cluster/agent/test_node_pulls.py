"""The single source of a node's pulls."""

from __future__ import annotations

from pycrictl.cluster.agent.node_pulls import pulls_in
from pycrictl.pulls.state import Phase
from tests.pulls.tracking import Report, Tracker
from tests.support.pull_objects import IMAGE


def test_what_was_complete_at_first_sight_does_not_run() -> None:
    tracker = Tracker()
    tracker.tell(Report(IMAGE, "", 0, 0, "", Phase.DONE), now=5.0)
    view = tracker.view(6.0)
    assert [one.is_running for one in pulls_in(view, ())] == [False]
    assert [one.is_running for one in pulls_in(view, {IMAGE})] == [True]
