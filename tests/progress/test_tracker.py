from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.progress.tracker import MAX_ERROR, Item, Phase, Totals, Tracker, View
from pycrictl.wire.progress import Report

MIB = 2**20
FINISHED = {Phase.DONE, Phase.PRESENT, Phase.FAILED}


def see(
    *reports: Report | tuple[str, str, int, int], tracker: Tracker | None = None, now: float = 0.0
) -> View:
    """Apply reports all at once; return what is to be seen."""
    tracker = tracker or Tracker()
    for report in reports:
        tracker.apply(*report, now=now)
    return tracker.view(now)


def only(view: View) -> Item:
    (item,) = view.items
    return item


def keys(items: Iterable[Item]) -> list[tuple[str, str]]:
    return [(item.image, item.layer) for item in items]


# Phases


@pytest.mark.parametrize(
    ("progress", "total", "error", "phase", "expected"),
    [
        (0, 100, "", "", Phase.WAITING),
        (0, 0, "", "", Phase.WAITING),
        (-1, -1, "", "", Phase.WAITING),
        (1, 100, "", "", Phase.DOWNLOADING),
        (1, 0, "", "", Phase.DOWNLOADING),
        (1, -1, "", "", Phase.DOWNLOADING),
        (100, 100, "", "", Phase.DONE),
        (101, 100, "", "", Phase.DONE),
        (1, 100, "boom", "", Phase.FAILED),
        (100, 100, "boom", "", Phase.FAILED),
        (100, 100, "", "extracting", Phase.EXTRACTING),
        (100, 100, "", "downloading", Phase.DOWNLOADING),
        (0, 100, "", "downloading", Phase.DOWNLOADING),
        (50, 100, "", "waiting", Phase.WAITING),
        (100, 100, "", "present", Phase.PRESENT),
        (50, 100, "", "failed", Phase.FAILED),
        (50, 100, "boom", "downloading", Phase.FAILED),
        (50, 100, "boom", "done", Phase.FAILED),
        (50, 100, "", "verifying", Phase.DOWNLOADING),
        (50, 100, "", "DONE", Phase.DOWNLOADING),
    ],
)
def test_phase(progress: int, total: int, error: str, phase: str, expected: Phase) -> None:
    view = see(Report("a", "l", progress, total, error, phase))
    assert only(view).phase is expected


def test_a_failed_item_comes_alive_again() -> None:
    tracker = Tracker()
    failed = see(Report("a", "l", 5, 10, "boom"), tracker=tracker)
    assert (only(failed).phase, only(failed).error) == (Phase.FAILED, "boom")
    assert failed.totals.failed == 1
    alive = see(("a", "l", 6, 10), tracker=tracker)
    assert (only(alive).phase, only(alive).error) == (Phase.DOWNLOADING, "")
    assert alive.totals.failed == 0


def test_an_error_without_numbers_leaves_the_numbers() -> None:
    view = see(("a", "l", 5, 10), Report("a", "l", 0, 0, "boom"))
    assert (only(view).progress, only(view).total) == (5, 10)


def test_an_error_with_numbers_brings_them() -> None:
    view = see(("a", "l", 5, 10), Report("a", "l", 7, 10, "boom"))
    assert (only(view).progress, only(view).total) == (7, 10)


def test_a_long_error_is_cut() -> None:
    assert only(see(Report("a", "l", 1, 2, "x" * 5000))).error == "x" * MAX_ERROR


# Numbers


@pytest.mark.parametrize(
    ("reported", "shown"),
    [
        ((-5, 10), (0, 10)),
        ((5, -10), (5, 0)),
        ((5, 0), (5, 0)),
        ((-5, -10), (0, 0)),
        ((15, 10), (15, 15)),
    ],
)
def test_numbers_make_sense_together(reported: tuple[int, int], shown: tuple[int, int]) -> None:
    item = only(see(("a", "l", *reported)))
    assert (item.progress, item.total) == shown


@pytest.mark.parametrize("phase", ["done", "present"])
def test_a_finished_item_is_whole(phase: str) -> None:
    view = see(Report("a", "l", 0, 10, phase=phase), Report("a", "m", 4, 0, phase=phase))
    assert [(item.progress, item.total) for item in view.items] == [(10, 10), (4, 4)]
    assert view.totals.percent == 100.0


def test_progress_may_fall_and_total_may_grow() -> None:
    tracker = Tracker()
    see(("a", "l", 50, 100), tracker=tracker)
    item = only(see(("a", "l", 3, 200), tracker=tracker))
    assert (item.progress, item.total, item.phase) == (3, 200, Phase.DOWNLOADING)


def test_additional_numbers_are_shown() -> None:
    item = only(see(Report("a", "l", 5, 10, "", "waiting", 3, 7, 20)))
    assert (item.queue_position, item.extracted, item.extracted_total) == (3, 7, 20)


def test_additional_numbers_make_sense_together() -> None:
    view = see(
        Report("a", "l", 5, 10, "", "", -3, -7, -20),
        Report("a", "m", 5, 10, "", "", 0, 30, 20),
        Report("a", "n", 5, 10, "", "", 0, 30, 0),
    )
    assert [item.queue_position for item in view.items] == [0, 0, 0]
    assert [item.extracted for item in view.items] == [0, 30, 30]
    assert [item.extracted_total for item in view.items] == [0, 30, 0]


# The finest level, and order


def test_layers_hide_their_image() -> None:
    view = see(("a", "", 5, 10), ("a", "l", 3, 6), ("a", "", 9, 10), ("b", "", 1, 10))
    assert keys(view.items) == [("a", "l"), ("b", "")]
    assert (view.totals.progress, view.totals.total, view.totals.count) == (4, 16, 2)


def test_anything_hides_the_pod() -> None:
    tracker = Tracker()
    assert keys(see(("", "", 5, 10), tracker=tracker).items) == [("", "")]
    assert keys(see(("a", "", 1, 5), tracker=tracker).items) == [("a", "")]
    assert keys(see(("a", "l", 1, 5), tracker=tracker).items) == [("a", "l")]
    assert keys(see(("", "", 9, 10), tracker=tracker).items) == [("a", "l")]


def test_layers_without_an_image_hide_the_pod() -> None:
    assert keys(see(("", "", 5, 10), ("", "l", 1, 5)).items) == [("", "l")]


def test_order_is_of_first_appearance() -> None:
    view = see(
        ("b", "2", 0, 9), ("a", "9", 0, 9), ("b", "1", 0, 9), ("a", "8", 0, 9), ("b", "2", 5, 9)
    )
    assert keys(view.items) == [("b", "2"), ("b", "1"), ("a", "9"), ("a", "8")]


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
    assert view.totals == Totals(
        progress=180, total=390, done=2, count=6, failed=1, resumed=187, rate=None, eta_s=None
    )
    assert view.totals.percent == pytest.approx(180 / 390 * 100)


def test_nothing_at_all() -> None:
    view = Tracker().view(5.0)
    assert view == View((), (), Totals(0, 0, 0, 0, 0, 0, None, None), 5.0, 0)
    assert view.totals.percent is None


def test_a_shared_layer_counts_once_as_far_as_it_came() -> None:
    view = see(
        ("a", "shared", 30, 100), ("b", "shared", 70, 100), ("c", "shared", 50, 100),
        ("a", "own", 1, 5),
    )  # fmt: skip
    assert len(view.items) == 4
    assert (view.totals.progress, view.totals.total, view.totals.count) == (71, 105, 2)


def test_a_shared_layer_that_is_there_counts_as_done() -> None:
    view = see(
        Report("a", "shared", 30, 100, "boom"), Report("b", "shared", 0, 100, phase="present")
    )
    assert (view.totals.done, view.totals.failed, view.totals.count) == (1, 0, 1)
    assert view.totals.percent == 100.0


def test_a_shared_layer_that_goes_on_elsewhere_has_not_failed() -> None:
    view = see(Report("a", "shared", 30, 100, "boom"), ("b", "shared", 30, 100))
    assert (view.totals.done, view.totals.failed) == (0, 0)


def test_equal_images_without_layers_are_not_shared() -> None:
    view = see(("a", "", 30, 100), ("b", "", 30, 100))
    assert (view.totals.progress, view.totals.total, view.totals.count) == (60, 200, 2)


# Rate and time left


def pull(tracker: Tracker, seconds: range, *, layer: str = "l", per_s: int = MIB) -> View:
    """Report a layer of 100 MiB once a second; return the last view."""
    for second in seconds:
        tracker.apply("a", layer, second * per_s, 100 * MIB, now=float(second))
        view = tracker.view(float(second))
    return view


def test_rate_and_time_left() -> None:
    tracker = Tracker()
    assert pull(tracker, range(1)).totals.rate is None
    assert pull(tracker, range(1, 2)).totals.rate == pytest.approx(MIB)
    assert pull(tracker, range(2, 3)).totals.eta_s is None
    assert pull(tracker, range(3, 4)).totals.eta_s == pytest.approx(97)
    totals = pull(tracker, range(4, 21)).totals
    assert totals.rate == pytest.approx(MIB)
    assert totals.eta_s == pytest.approx(80)


def test_a_resumed_layer_counts_from_first_sight() -> None:
    tracker = Tracker()
    tracker.apply("a", "l", 60 * MIB, 100 * MIB, now=0.0)
    tracker.view(0.0)
    tracker.apply("a", "l", 68 * MIB, 100 * MIB, now=4.0)
    totals = tracker.view(4.0).totals
    assert totals.resumed == 60 * MIB
    assert totals.rate == pytest.approx(2 * MIB)
    assert totals.eta_s == pytest.approx(16)


def test_first_sight_is_the_first_report_not_the_first_view() -> None:
    tracker = Tracker()
    tracker.apply("a", "l", 60 * MIB, 100 * MIB, now=0.0)
    tracker.apply("a", "l", 68 * MIB, 100 * MIB, now=4.0)
    totals = tracker.view(4.0).totals
    assert totals.resumed == 60 * MIB
    assert totals.rate == pytest.approx(2 * MIB)


@pytest.mark.parametrize("phase", ["present", "done", ""])
def test_layers_that_are_there_at_first_sight_make_no_rate(phase: str) -> None:
    tracker = Tracker()
    pull(tracker, range(5))
    tracker.apply("a", "m", 100 * MIB, 100 * MIB, phase=phase, now=5.0)
    totals = pull(tracker, range(5, 9)).totals
    assert totals.rate == pytest.approx(MIB)
    assert totals.resumed == 100 * MIB


def test_layers_that_turn_out_to_be_there_make_no_rate() -> None:
    tracker = Tracker()
    tracker.apply("a", "m", 0, 100 * MIB, now=0.0)
    pull(tracker, range(5))
    tracker.apply("a", "m", 0, 100 * MIB, phase="present", now=5.0)
    totals = pull(tracker, range(5, 9)).totals
    assert totals.rate == pytest.approx(MIB)
    assert totals.resumed == 100 * MIB
    assert totals.done == 1


def test_a_retry_counts_what_it_downloads_again() -> None:
    tracker = Tracker()
    pull(tracker, range(10))
    tracker.apply("a", "l", 0, 100 * MIB, now=10.0)
    assert tracker.view(10.0).totals.rate == pytest.approx(0.875 * MIB)
    for second in range(11, 20):
        tracker.apply("a", "l", (second - 10) * MIB, 100 * MIB, now=float(second))
        view = tracker.view(float(second))
    assert view.totals.rate == pytest.approx(MIB)


def test_a_retry_from_nothing_has_resumed_nothing() -> None:
    tracker = Tracker()
    see(("a", "l", 50, 100), tracker=tracker)
    assert see(("a", "l", 0, 100), tracker=tracker).totals.resumed == 0
    assert see(("a", "l", 80, 100), tracker=tracker).totals.resumed == 0


def test_shared_layers_make_no_double_rate() -> None:
    tracker = Tracker()
    for second in range(10):
        for image in ("a", "b"):
            tracker.apply(image, "l", second * MIB, 100 * MIB, now=float(second))
        view = tracker.view(float(second))
    assert view.totals.rate == pytest.approx(MIB)
    assert view.totals.resumed == 0


def test_coarser_reports_make_no_rate() -> None:
    tracker = Tracker()
    for second in range(10):
        tracker.apply("a", "l", second * MIB, 100 * MIB, now=float(second))
        tracker.apply("a", "", second * MIB, 100 * MIB, now=float(second))
        tracker.apply("", "", second * MIB, 100 * MIB, now=float(second))
        view = tracker.view(float(second))
    assert view.totals.rate == pytest.approx(MIB)


def test_no_time_left_is_told_of_a_standstill() -> None:
    tracker = Tracker()
    pull(tracker, range(10))
    totals = pull(tracker, range(10, 40), per_s=0).totals
    assert totals.rate == 0.0
    assert totals.eta_s is None


def test_no_time_left_is_told_while_a_total_is_unknown() -> None:
    tracker = Tracker()
    tracker.apply("a", "m", 5, 0, now=0.0)
    assert pull(tracker, range(10)).totals.eta_s is None
    tracker.apply("a", "m", 5, 0, "boom", now=10.0)
    assert pull(tracker, range(10, 12)).totals.eta_s == pytest.approx(89)


def test_nothing_is_left_of_failed_items() -> None:
    tracker = Tracker()
    tracker.apply("a", "m", 5, 10**9, "boom", now=0.0)
    assert pull(tracker, range(11)).totals.eta_s == pytest.approx(90)


# Standing still


def test_idle() -> None:
    tracker = Tracker()
    tracker.apply("a", "l", 5, 100, now=10.0)
    assert only(tracker.view(10.0)).idle_s == 0.0
    tracker.apply("a", "l", 5, 100, now=15.0)
    assert only(tracker.view(40.0)).idle_s == 30.0
    tracker.apply("a", "l", 6, 100, now=41.0)
    assert only(tracker.view(41.5)).idle_s == 0.5


@pytest.mark.parametrize(
    "moved",
    [
        Report("a", "l", 4, 100, phase="waiting"),
        Report("a", "l", 5, 100, phase="downloading"),
        Report("a", "l", 5, 100, phase="waiting", extracted=1),
    ],
)
def test_what_counts_as_moving(moved: Report) -> None:
    tracker = Tracker()
    tracker.apply("a", "l", 5, 100, phase="waiting", now=0.0)
    tracker.apply(*moved, now=50.0)
    assert only(tracker.view(60.0)).idle_s == 10.0


def test_what_does_not_count_as_moving() -> None:
    tracker = Tracker()
    tracker.apply("a", "l", 5, 100, phase="waiting", now=0.0)
    tracker.apply("a", "l", 5, 200, phase="waiting", queue_position=2, now=50.0)
    assert only(tracker.view(60.0)).idle_s == 60.0


@pytest.mark.parametrize(
    "report",
    [
        Report("a", "l", 100, 100),
        Report("a", "l", 5, 100, phase="present"),
        Report("a", "l", 5, 100, "boom"),
    ],
)
def test_a_finished_item_is_not_idle(report: Report) -> None:
    tracker = Tracker()
    tracker.apply(*report, now=0.0)
    assert only(tracker.view(60.0)).idle_s == 0.0


def test_a_source_may_know_more_about_standing_still() -> None:
    tracker = Tracker()
    tracker.apply("a", "l", 5, 100, now=100.0, idle_s=40.0)
    assert only(tracker.view(100.0)).idle_s == 40.0
    tracker.apply("a", "l", 5, 100, now=101.0)
    assert only(tracker.view(101.0)).idle_s == 41.0
    tracker.apply("a", "l", 6, 100, now=110.0, idle_s=2.0)
    assert only(tracker.view(110.0)).idle_s == 2.0
    tracker.apply("a", "l", 6, 100, now=120.0, idle_s=3.0)
    assert only(tracker.view(120.0)).idle_s == 12.0


# What changed


def test_changed() -> None:
    tracker = Tracker()
    assert keys(see(("a", "l", 1, 9), ("a", "m", 1, 9), tracker=tracker).changed) == [
        ("a", "l"),
        ("a", "m"),
    ]
    assert keys(see(("a", "l", 1, 9), ("a", "m", 2, 9), tracker=tracker, now=1).changed) == [
        ("a", "m")
    ]
    assert tracker.view(60.0).changed == ()
    assert keys(see(Report("a", "l", 1, 9, phase="waiting"), tracker=tracker).changed) == [
        ("a", "l")
    ]


def test_hidden_items_do_not_change() -> None:
    tracker = Tracker()
    see(("a", "l", 1, 9), tracker=tracker)
    assert see(("a", "", 5, 9), ("", "", 5, 9), tracker=tracker).changed == ()


def test_what_an_unchanged_finished_item_costs() -> None:
    tracker = Tracker()
    first = see(("a", "l", 9, 9), tracker=tracker)
    assert only(tracker.view(1.0)) is only(first)


# Room


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
    assert view.totals.resumed == 90 * MIB
    assert keys(view.changed) == [("a", "l")]
    rate = view.totals.rate
    assert rate is not None
    assert rate <= MIB


def test_a_rate_that_is_measured_anew() -> None:
    tracker = Tracker()
    assert pull(tracker, range(6)).totals.rate == MIB
    tracker.measure_anew()
    assert tracker.view(5.0).totals.rate is None
    tracker.apply("a", "l", 9 * MIB, 100 * MIB, now=6.0)
    tracker.view(6.0)
    tracker.apply("a", "l", 12 * MIB, 100 * MIB, now=7.0)
    totals = tracker.view(7.0).totals
    assert totals.rate == 3.5 * MIB
    assert totals.eta_s is None  # for three seconds, as at the start


@pytest.mark.parametrize("phase", Phase)
def test_a_finished_item_has_arrived_or_failed(phase: Phase) -> None:
    item = only(see(Report("a", "l", 1, 9, phase=phase)))
    assert item.is_finished == (phase in FINISHED)


def test_forgetting_gives_back_all_room() -> None:
    tracker = Tracker(max_items=4)
    for _ in range(100):
        see(("a" * 500, "l" * 500, 1, 9), ("b", "l" * 500, 1, 9), tracker=tracker)
        tracker.forget("a" * 500)
        tracker.forget("b")
    assert tracker.view(0.0).dropped == 0


def test_a_million_layers_are_no_burden() -> None:
    tracker = Tracker()
    padding = "x" * 60
    blocks = 0
    for number in range(1_000_000):
        tracker.apply("a", f"sha256:{padding}{number}", 1, 9, now=0.0)
        if number == 10_000:
            blocks = sys.getallocatedblocks()
    assert sys.getallocatedblocks() - blocks < 1000
    view = tracker.view(0.0)
    assert len(view.items) == 10_000
    assert view.dropped == 990_000


def test_the_longest_names_fit_into_memory() -> None:
    tracker = Tracker()
    tracemalloc.start()
    try:
        for number in range(10_000):
            tracker.apply("a", f"{number:04096}", 1, 9, "e" * 4096, now=0.0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 1000 < len(tracker.view(0.0).items) < 2000
    assert peak < 16 * MIB


def test_a_view_of_many_items_is_quick() -> None:
    tracker = Tracker()
    for number in range(10_000):
        tracker.apply(f"image{number % 100}", f"layer{number}", 1, 9, now=0.0)
    tracker.view(0.0)
    start = time.process_time()
    tracker.view(0.25)
    assert time.process_time() - start < 2.0  # a guard against more than linear, not a benchmark


# Whatever comes

few_names = st.sampled_from(["", "a", "b", "c"])
numbers = st.integers(-5, 30) | st.sampled_from([2**63 - 1, -(2**63)])
phases = st.sampled_from(["", "odd", *Phase])
any_reports = st.builds(
    Report, few_names, few_names, numbers, numbers, st.sampled_from(["", "boom"]), phases,
    numbers, numbers, numbers,
)  # fmt: skip
# A report and the time after it; every so often the tracker is looked at.
histories = st.lists(st.tuples(any_reports, st.floats(0.0, 5.0), st.booleans()), max_size=60)


def views_of(history: list[tuple[Report, float, bool]], tracker: Tracker) -> list[View]:
    now = 0.0
    views = []
    for report, pause_s, is_viewed in history:
        tracker.apply(*report, now=now)
        now += pause_s
        if is_viewed:
            views.append(tracker.view(now))
    return [*views, tracker.view(now)]


@given(histories)
def test_numbers_are_always_sensible(history: list[tuple[Report, float, bool]]) -> None:
    for view in views_of(history, Tracker(max_items=8)):
        for item in view.items:
            assert item.progress >= 0
            assert item.total == 0 or item.total >= item.progress
            assert item.extracted >= 0
            assert item.extracted_total == 0 or item.extracted_total >= item.extracted
            assert item.queue_position >= 0
            assert item.idle_s >= 0.0
            assert item.idle_s == 0.0 or item.phase not in FINISHED
        totals = view.totals
        assert 0 <= totals.progress <= totals.total
        assert totals.percent is None or 0.0 <= totals.percent <= 100.0
        assert 0 <= totals.done + totals.failed <= totals.count <= len(view.items)
        assert totals.resumed >= 0
        assert totals.rate is None or totals.rate >= 0.0
        assert totals.eta_s is None or totals.eta_s >= 0.0
        assert view.dropped >= 0


@given(histories)
def test_only_the_finest_level_is_shown(history: list[tuple[Report, float, bool]]) -> None:
    view = views_of(history, Tracker())[-1]
    reported = {(report.image, report.layer) for report, _, _ in history}
    with_layers = {image for image, layer in reported if layer}
    expected = {
        (image, layer)
        for image, layer in reported
        if layer or (image not in with_layers and (image or reported == {("", "")}))
    }
    assert set(keys(view.items)) == expected
    assert len(view.items) == len(expected)
    without_layer = [image for image, layer in expected if not layer]
    layers = {layer for _, layer in expected if layer}
    assert view.totals.count == len(layers) + len(without_layer)


@given(histories)
def test_what_changed_adds_up_to_the_last_view(history: list[tuple[Report, float, bool]]) -> None:
    known: dict[tuple[str, str], Item] = {}
    views = views_of(history, Tracker())
    for view in views:
        for item in view.changed:
            known[item.image, item.layer] = item
    for item in views[-1].items:
        told = known[item.image, item.layer]
        for field in Item.__slots__:
            assert field == "idle_s" or getattr(told, field) == getattr(item, field)


@given(histories)
def test_views_in_between_make_no_difference(history: list[tuple[Report, float, bool]]) -> None:
    seldom = [(report, pause_s, False) for report, pause_s, _ in history]
    often = [(report, pause_s, True) for report, pause_s, _ in history]
    assert views_of(seldom, Tracker())[-1].items == views_of(often, Tracker())[-1].items
