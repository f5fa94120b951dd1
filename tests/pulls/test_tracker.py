"""How a tracker turns reports into views."""

from __future__ import annotations

import pytest

from pycrictl.pulls.state import Phase, Sums
from tests.pulls.tracking import (
    MIB,
    Report,
    Tracker,
    changed,
    keys,
    layers,
    only,
    pull,
    see,
)

# Phases


@pytest.mark.parametrize(
    ("progress", "total", "error", "phase", "expected"),
    [
        (0, 100, "", "", Phase.WAITING),
        (1, 0, "", "", Phase.DOWNLOADING),
        (101, 100, "", "", Phase.DONE),
        (100, 100, "boom", "", Phase.FAILED),
        (100, 100, "", "extracting", Phase.EXTRACTING),
        (100, 100, "", "downloading", Phase.DOWNLOADING),
        (50, 100, "", "failed", Phase.FAILED),
        (50, 100, "boom", "done", Phase.FAILED),
        (50, 100, "", "verifying", Phase.DOWNLOADING),
    ],
)
def test_phase(progress: int, total: int, error: str, phase: str, expected: Phase) -> None:
    view = see(Report("a", "l", progress, total, error, phase))
    assert only(view).phase is expected


# The finest level, and order


def test_layers_hide_their_image() -> None:
    view = see(("a", "", 5, 10), ("a", "l", 3, 6), ("a", "", 9, 10), ("b", "", 1, 10))
    assert keys(view) == [("a", "l"), ("b", "")]
    assert (view.sums.progress, view.sums.total) == (4, 16)
    assert (view.sums.count, view.sums.to_come) == (1, 1)


# Totals


def test_sums() -> None:
    view = see(
        ("a", "waiting", 0, 100),
        ("a", "downloading", 30, 100),
        ("a", "done", 100, 100),
        ("a", "unknown", 7, 0),
        Report("a", "present", 40, 40, phase="present"),
        Report("a", "failed", 10, 50, "boom"),
    )
    assert view.sums == Sums(
        progress=180, total=390, done=2, count=6, failed=1, resumed=0, rate=None, eta_s=None,
        share=view.sums.share, has_unknown=True,
    )  # fmt: skip
    assert view.sums.percent == 46


def test_a_shared_layer_counts_once_as_far_as_it_came() -> None:
    view = see(
        ("a", "shared", 30, 100), ("b", "shared", 70, 100), ("c", "shared", 50, 100),
        ("a", "own", 1, 5),
    )  # fmt: skip
    assert len(layers(view)) == 4
    assert (view.sums.progress, view.sums.total, view.sums.count) == (71, 105, 2)


# Stalls


@pytest.mark.parametrize(
    ("report", "idle_s"),
    [
        (Report("a", "l", 6, 100), 10.0),
        (Report("a", "l", 4, 100), 10.0),
        (Report("a", "l", 5, 100, extracted=1), 10.0),
        (Report("a", "l", 5, 200), 60.0),
    ],
)
def test_what_counts_as_moving(report: Report, idle_s: float) -> None:
    tracker = Tracker()
    tracker.tell(Report("a", "l", 5, 100), now=0.0)
    tracker.tell(report, now=50.0)
    assert only(tracker.view(60.0)).idle_s == idle_s


def test_a_source_may_know_more_about_standing_still() -> None:
    tracker = Tracker()
    tracker.tell(Report("a", "l", 5, 100), now=100.0, idle_s=40.0)
    assert only(tracker.view(100.0)).idle_s == 40.0
    assert only(tracker.view(101.0)).idle_s == 41.0
    tracker.tell(Report("a", "l", 6, 100), now=110.0, idle_s=2.0)
    assert only(tracker.view(110.0)).idle_s == 2.0
    tracker.tell(Report("a", "l", 6, 100), now=120.0, idle_s=3.0)
    assert only(tracker.view(120.0)).idle_s == 3.0


# Changes


def test_changed() -> None:
    tracker = Tracker()
    assert changed(see(("a", "l", 1, 9), ("a", "m", 1, 9), tracker=tracker)) == [
        ("a", "l"),
        ("a", "m"),
    ]
    assert changed(see(("a", "l", 1, 9), ("a", "m", 2, 9), tracker=tracker, now=1)) == [("a", "m")]
    assert tracker.view(9.0).changed == ()
    assert changed(tracker.view(60.0)) == [("a", "l"), ("a", "m")], "a stall begins"
    assert tracker.view(61.0).changed == ()
    waiting = Report("a", "l", 1, 9, phase="waiting")
    assert changed(see(waiting, tracker=tracker, now=61.0)) == [("a", "l")]


def test_what_has_all_its_bytes_does_not_download_again() -> None:
    tracker = Tracker()
    found = []
    for phase in ("downloading", "waiting", "downloading", "extracting", "downloading"):
        tracker.tell(Report("a", "l", 100, 100, phase=phase), now=0.0)
        found.append(str(only(tracker.view(0.0)).phase))
    assert found == ["downloading", "waiting", "waiting", "extracting", "extracting"]
    tracker.tell(Report("a", "l", 10, 100, phase="downloading"), now=1.0)
    assert only(tracker.view(1.0)).phase is Phase.DOWNLOADING  # it is downloaded again


# Limits


def test_items_beyond_the_limit_are_dropped() -> None:
    tracker = Tracker(max_layers=3)
    view = see(*[("a", f"l{number}", 1, 9) for number in range(5)], tracker=tracker)
    assert len(layers(view)) == 3
    view = see(("a", "l0", 5, 9), ("a", "l4", 5, 9), tracker=tracker)
    assert (len(layers(view)), layers(view)[0].progress) == (3, 5)


def test_a_forgotten_image_begins_anew() -> None:
    tracker = Tracker()
    pull(tracker, range(5))
    tracker.forget("a")
    assert not tracker.view(5.0).pulls
    view = see(("a", "l", 90 * MIB, 100 * MIB), tracker=tracker, now=6.0)
    assert changed(view) == [("a", "l")]
    assert view.sums.rate is None
