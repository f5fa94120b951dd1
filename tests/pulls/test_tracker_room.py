"""How much a tracker keeps, and what that costs."""

from __future__ import annotations

import tracemalloc

from pycrictl.pulls.tracker import Tracker
from pycrictl.wire.progress import Report
from tests.pulls.tracking import MIB, keys, pull, see


def test_items_beyond_the_limit_are_dropped_and_counted() -> None:
    tracker = Tracker(max_items=3)
    view = see(*[("a", f"l{number}", 1, 9) for number in range(5)], tracker=tracker)
    assert len(view.items) == 3
    assert view.dropped == 2
    view = see(("a", "l0", 5, 9), ("a", "l4", 5, 9), tracker=tracker)
    assert view.items[0].progress == 5
    assert view.dropped == 3


def test_long_names_need_more_room() -> None:
    tracker = Tracker(max_items=10)
    view = see(*[("a", str(number) * 4000, 1, 9) for number in range(10)], tracker=tracker)
    assert (len(view.items), view.dropped) == (1, 9)
    view = see(("a", "short", 1, 9), tracker=tracker)
    assert (len(view.items), view.dropped) == (2, 9)


def test_forgotten_images_make_room() -> None:
    tracker = Tracker(max_items=3)
    see(("a", "shared", 1, 9), ("a", "l", 1, 9), ("b", "shared", 1, 9), tracker=tracker)
    tracker.forget("a")
    tracker.forget("unknown")
    view = see(("c", "m", 1, 9), ("c", "n", 1, 9), ("c", "o", 1, 9), tracker=tracker)
    assert keys(view.items) == [("b", "shared"), ("c", "m"), ("c", "n")]
    assert view.dropped == 1


def test_a_forgotten_image_begins_anew() -> None:
    tracker = Tracker()
    pull(tracker, range(5))
    tracker.forget("a")
    assert tracker.view(5.0).items == ()
    view = see(("a", "l", 90 * MIB, 100 * MIB), tracker=tracker, now=6.0)
    assert keys(view.changed) == [("a", "l")]
    assert view.totals.rate is None


def test_forgetting_gives_back_all_room() -> None:
    tracker = Tracker(max_items=4)
    for _ in range(100):
        see(("a" * 500, "l" * 500, 1, 9), ("b", "l" * 500, 1, 9), tracker=tracker)
        tracker.forget("a" * 500)
        tracker.forget("b")
    assert tracker.view(0.0).dropped == 0


def test_the_longest_names_fit_into_memory() -> None:
    tracker = Tracker()
    tracemalloc.start()
    try:
        for number in range(10_000):
            tracker.apply(Report("a", f"{number:04096}", 1, 9, "e" * 4096), now=0.0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 1000 < len(tracker.view(0.0).items) < 2000
    assert peak < 16 * MIB
