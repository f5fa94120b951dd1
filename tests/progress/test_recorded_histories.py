"""Recorded pulls, looked at in random moments: progress never goes backwards and ends at 100 %."""

from __future__ import annotations

import itertools
import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycrictl.containerd.grpc_client import ContainerdClient
from pycrictl.progress.content_watcher import ContentWatcher
from pycrictl.pulls.model import COMPLETE, View
from pycrictl.pulls.tracker import Tracker
from pycrictl.wire.progress import Report
from tests.containerd.fakectd import FakeContainerd, Replay

DATA = Path(__file__).parent / "data"
STEP_S = 0.1

Moment = tuple[float, list[Report]]


class Reports:
    """Keeps what a watcher reports."""

    def __init__(self) -> None:
        self.latest: list[Report] = []

    def apply(
        self, report: Report, *, now: float, idle_s: float = 0.0, age_s: float | None = None
    ) -> None:
        self.latest.append(report)

    def forget(self, image: str) -> None:
        """An earlier pull of the same name: the trackers of these tests keep its layers."""


@cache
def history(name: str) -> list[Moment]:
    """What is reported of a recorded pull at each step."""
    moments: list[Moment] = []
    with tempfile.TemporaryDirectory() as folder, FakeContainerd(Path(folder)) as fake:
        watcher = ContentWatcher(ContainerdClient(fake.path))
        replay = Replay(fake, DATA / name)
        at_s = 0.0
        while at_s < replay.end + 1.0:
            reports = Reports()
            watcher.poll(reports, at_s, wall_s=replay.advance(at_s))
            moments.append((at_s, reports.latest))
            at_s += STEP_S
    return moments


def is_retried(before: View, after: View) -> bool:
    """Whether a layer has lost what it had: a pull was aborted, and another one began."""
    came = {(item.image, item.layer): item.progress for item in after.items}
    return any(item.progress > came[item.image, item.layer] for item in before.items)


@pytest.mark.parametrize(
    "name", ["pull-ctd2-unpack.jsonl", "pull-ctd2-concurrent.jsonl", "pull-ctd16-abort.jsonl"]
)
@settings(max_examples=70)
@given(data=st.data())
def test_progress_never_goes_backwards_and_ends_at_100(name: str, data: st.DataObject) -> None:
    moments = history(name)
    places = data.draw(st.sets(st.integers(0, len(moments) - 1), min_size=1, max_size=60))
    tracker = Tracker()
    views = []
    for place in sorted({*places, len(moments) - 1}):
        now, reports = moments[place]
        for report in reports:
            tracker.apply(report, now=now)
        views.append(tracker.view(now))
    for before, after in itertools.pairwise(views):
        if not is_retried(before, after):
            for image, totals in before.images.items():
                assert (totals.share or 0.0) <= (after.images[image].share or 0.0)
                assert totals.progress <= after.images[image].progress
    for view in views:
        sizes = {item.layer: item for item in view.items}
        assert view.totals.progress <= view.totals.total == sum(one.total for one in sizes.values())
        is_over = bool(view.items) and all(item.phase in COMPLETE for item in view.items)
        assert (view.totals.percent == 100.0) == is_over
