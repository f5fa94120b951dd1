"""Rates, times left and shares, for one image and for all."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycrictl.pulls.messages import sums_in, sums_json
from pycrictl.pulls.state import STALLED_S, LayerState, Phase, PullState, Sums, View
from pycrictl.pulls.tracker import UNPACKED_RATIO
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


def extracting(extracted: int, total: int = 400, *, image: str = "a", layer: str = "l") -> Report:
    return Report(
        image, layer, 100 * MIB, 100 * MIB, "", "extracting", 0, extracted * MIB, total * MIB
    )


def downloading(progress: int, *, image: str = "a", layer: str = "l") -> Report:
    return Report(image, layer, progress * MIB, 100 * MIB, phase="downloading")


def view_of(tracker: Tracker, now: float, *reports: Report) -> View:
    for report in reports:
        tracker.tell(report, now=now)
    return tracker.view(now)


def test_the_share_is_that_of_the_time_that_it_takes() -> None:
    tracker = Tracker()
    totals = view_of(tracker, 0.0, downloading(50)).sums
    assert totals.percent == 33  # assumed: 2.5 of 5 s to download, then 2.5 s to unpack
    assert (totals.extracted, totals.extracted_total) == (0, int(100 * MIB * UNPACKED_RATIO))
    assert totals.is_estimated
    totals = view_of(tracker, 1.0, extracting(0)).sums
    assert totals.percent == 33  # 2 s have passed, 4 s remain: it never falls
    assert (totals.extracted, totals.extracted_total) == (0, 400 * MIB)
    assert not totals.is_estimated
    # 100 MiB at 25 MiB/s, and half of 400 MiB at the assumed 100 MiB/s.
    assert view_of(tracker, 2.0, extracting(200)).sums.percent == 75
    assert view_of(tracker, 3.0, extracting(400)).sums.percent == 99
    done = extracting(400)._replace(phase="done")
    assert view_of(tracker, 4.0, done).sums.percent == 100


def test_a_time_that_would_be_wrong_is_not_said() -> None:
    tracker = Tracker()
    for second in range(5):
        totals = view_of(tracker, second, downloading(25 * second)).sums
    assert totals.eta_s is None  # all is downloaded, but the unpacked size is unknown
    assert totals.unpacking == "unpacking, 0 of 1 layer"
    totals = view_of(tracker, 9.0, extracting(400)._replace(phase="done")).sums
    assert totals.unpacking == ""


def test_the_speed_of_unpacking_is_that_of_the_time_in_which_something_is_unpacked() -> None:
    tracker = Tracker()
    for second in range(3):
        view_of(tracker, float(second), extracting(second * 200, layer="first"))
    done = extracting(400, layer="first")._replace(phase="done")
    for second in range(3, 12):
        view = view_of(tracker, float(second), done, downloading((second - 3) * 10, layer="second"))
    assert view.sums.rate == pytest.approx(10 * MIB)
    assert view.sums.eta_s == pytest.approx(2 + 400 / 200)


def test_a_small_layer_tells_nothing_of_the_speed_of_unpacking() -> None:
    """On a busy disk, each takes a second: many of them beside a large one made its ETA minutes."""
    tracker = Tracker()
    for second in range(10):
        small = Report("b", str(second), MIB, MIB, phase="extracting", extracted_total=MIB)
        view_of(tracker, second, small, downloading(second * 10))
        view_of(tracker, second + 0.5, small._replace(extracted=MIB), downloading(second * 10))
        view = view_of(
            tracker, second + 0.9, small._replace(phase="done"), downloading(second * 10)
        )
    # 10 MiB at 10 MiB/s, and then 250 MiB, as is assumed, at the assumed 100 MiB/s.
    assert view.pulls["a"].sums.eta_s == pytest.approx(1 + 2.5, abs=1.5)


def test_a_step_that_is_older_than_the_last_look() -> None:
    """A source may miss a step that falls into its poll, and tell it with the next one."""
    tracker = Tracker()
    for second in range(32):
        steps, idle_s = divmod(second, 10)
        report = Report("a", "l", steps * MIB, 10 * MIB, phase="downloading")
        tracker.tell(report, now=second, idle_s=idle_s or 1.02, began=-1e-3)
        view = tracker.view(second)
    assert view.sums.eta_s == pytest.approx(7 * 10 - 1, abs=4)


def test_what_another_pull_brings_counts_for_the_time_left() -> None:
    """Image b waits for a layer that image a's pull downloads; the reports of b lag behind."""
    tracker = Tracker()
    for second in range(6):
        view = view_of(
            tracker,
            float(second),
            Report("a", "shared", second * 10 * MIB, 100 * MIB),
            Report("b", "shared", 0, 100 * MIB),
            Report("a", "own", second * MIB, 100 * MIB),
        )
    assert view.pulls["b"].sums.eta_s == pytest.approx(5.0)
    assert view.pulls["b"].sums.rate == pytest.approx(10 * MIB)
    assert view.pulls["a"].sums.rate == pytest.approx(11 * MIB)
    assert view.sums.rate == pytest.approx(11 * MIB)
    assert view.sums.count == 2


# Rates


def test_rate_and_time_left() -> None:
    tracker = Tracker()
    assert pull(tracker, range(1)).sums.rate is None
    assert pull(tracker, range(1, 2)).sums.rate == pytest.approx(MIB)
    assert pull(tracker, range(2, 3)).sums.eta_s is None
    assert pull(tracker, range(3, 4)).sums.eta_s == pytest.approx(97)
    totals = pull(tracker, range(4, 21)).sums
    assert totals.rate == pytest.approx(MIB)
    assert totals.eta_s == pytest.approx(80)


def test_a_resumed_layer_counts_from_first_sight() -> None:
    tracker = Tracker()
    tracker.tell(Report("a", "l", 60 * MIB, 100 * MIB, resumed=40 * MIB), now=0.0)
    tracker.view(0.0)
    tracker.tell(Report("a", "l", 68 * MIB, 100 * MIB, resumed=40 * MIB), now=4.0)
    totals = tracker.view(4.0).sums
    assert totals.rate == pytest.approx(2 * MIB)
    assert totals.eta_s == pytest.approx(16)


@pytest.mark.parametrize("phase", ["present", "done", ""])
def test_layers_that_are_there_at_first_sight_make_no_rate(phase: str) -> None:
    tracker = Tracker()
    pull(tracker, range(5))
    tracker.tell(Report("a", "m", 100 * MIB, 100 * MIB, phase=phase), now=5.0)
    totals = pull(tracker, range(5, 9)).sums
    assert totals.rate == pytest.approx(MIB)


def test_a_rate_that_is_measured_anew() -> None:
    """After one of three pulls has ended, the overall rate no longer includes its bytes."""
    tracker = Tracker()

    def view_of(second: float, *images: str) -> View:
        for image in images:
            tracker.tell(Report(image, image, int(second * MIB), 100 * MIB), now=second)
        return tracker.view(second)

    for second in range(6):
        view = view_of(second, "a", "b", "c")
    assert view.sums.rate == 3 * MIB
    tracker.forget("c")
    tracker.measure_anew()
    view = tracker.view(5.0)
    assert (view.sums.rate, view.pulls["a"].sums.rate) == (None, MIB)
    view_of(6.0, "a", "b")
    assert view_of(7.0, "a", "b").sums.rate == 2 * MIB
    assert view_of(7.0).sums.eta_s is None  # unknown for three seconds, as at the start
    tracker.forget("b")
    assert tracker.view(7.0).sums.rate == MIB


# Steps of 1 MiB, as containerd tells them


STEP_S = 0.25


def stepped(kib_per_s: int, sizes: list[int]) -> Iterator[tuple[float, PullState, float]]:
    """Yield time, state and true time left; three layers are downloaded at once."""
    count, now = len(sizes), 0.0
    got, shown, moved = [0.0] * count, [0] * count, [0.0] * count
    while open_ := [n for n in range(count) if got[n] < sizes[n]][:3]:
        left_s = (sum(sizes) - sum(got)) / (kib_per_s * 1024)
        layers = tuple(
            LayerState(
                name=f"l{n}",
                phase=Phase.DONE if shown[n] == sizes[n] else Phase.DOWNLOADING
                if n in open_ else Phase.WAITING,
                progress=shown[n],
                total=sizes[n],
                idle_s=now - moved[n] if n in open_ else 0.0,
                patience_s=1e9,
            )
            for n in range(count)
        )  # fmt: skip
        yield now, PullState(image="a", layers=layers, began_s=1000.0), left_s
        now += STEP_S
        weights = {n: 1.0 + 0.02 * (n % 3) for n in open_}
        for n in open_:
            part = weights[n] / sum(weights.values())
            got[n] = min(got[n] + kib_per_s * 1024 * STEP_S * part, sizes[n])
            whole = sizes[n] if got[n] == sizes[n] else int(got[n] // MIB) * MIB
            moved[n] = now if whole != shown[n] or not got[n] else moved[n]
            shown[n] = whole
        for n in range(count):
            moved[n] = now if n not in open_ else moved[n]


@pytest.mark.parametrize(
    ("kib_per_s", "mib"),
    [
        *itertools.product([30, 100, 1000], [[24], [8] * 3, [2] * 20]),
        (100, [3.9, 3.8, 7.2]),  # the rate since the first step of three would be too high
        (30, [0.5, 1.2, 4.5, 1.2, 3.1]),
    ],
)
def test_the_time_left_of_a_slow_pull_in_steps(kib_per_s: int, mib: list[float]) -> None:
    tracker = Tracker()
    states = list(stepped(kib_per_s, [int(size * MIB) for size in mib]))
    for number, (now, state, left_s) in enumerate(states):
        tracker.apply(state, now=now)
        sums = tracker.view(now, 1000.0 + now).sums
        if number > len(states) / 4:
            step_s = MIB / (kib_per_s * 1024)  # the end of a layer is not seen before its last step
            assert sums.eta_s == pytest.approx(left_s, rel=0.3, abs=max(step_s / 4, 2.0)), now
            assert not sums.stalled_s


def test_who_joins_a_slow_pull_of_unknown_age_soon_knows_its_end() -> None:
    tracker = Tracker()
    for now, state, left_s in stepped(100, [20 * MIB] * 3):
        if now >= 25:
            tracker.apply(replace(state, began_s=0.0), now=now)
            eta_s = tracker.view(now, 1000.0 + now).sums.eta_s
            assert now < 35 or eta_s == pytest.approx(left_s, rel=0.15, abs=2.0), now
    assert eta_s == 0.0


# Any history


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[float, list[Report]]]:
    """Whole pulls of up to three images with shared layers, as a source reports them."""
    sizes = draw(st.lists(st.integers(1, 50), min_size=1, max_size=6))
    images = {
        image: draw(st.sets(st.sampled_from(range(len(sizes))), min_size=1))
        for image in ("a", "b", "c")[: draw(st.integers(1, 3))]
    }
    plans = [_life(draw, size) for size in sizes]
    moments = []
    now = 0.0
    for places in _interleaved(draw, [len(plan) for plan in plans]):
        now += draw(st.floats(0.0, 3.0))
        reports = [
            Report(image, f"l{number}", *plans[number][places[number]])
            for image, numbers in images.items()
            for number in sorted(numbers)
        ]
        moments.append((now, reports))
    return moments


def _life(draw: st.DrawFn, size: int) -> list[tuple[int, int, str, str, int, int, int]]:
    """Reports of a layer: progress, total, error, phase, place, unpacked, unpacked total."""
    if draw(st.booleans()) and draw(st.booleans()):
        return [(size, size, "", "present", 0, 0, 0)]
    unpacked = draw(st.integers(1, 200))
    shown = draw(st.sampled_from([0, unpacked]))
    offsets = sorted(draw(st.lists(st.integers(0, size), max_size=4)))
    extracted = sorted(draw(st.lists(st.integers(0, unpacked), max_size=4)))
    return [
        (0, size, "", "waiting", 0, 0, 0),
        *((offset, size, "", "downloading", 0, 0, 0) for offset in offsets),
        (size, size, "", "waiting", 0, 0, shown),
        *((size, size, "", "extracting", 0, done, shown) for done in extracted),
        (size, size, "", "done", 0, shown, shown),
    ]


def _interleaved(draw: st.DrawFn, lengths: list[int]) -> Iterator[list[int]]:
    places = [0] * len(lengths)
    yield list(places)
    while open_ := [number for number, place in enumerate(places) if place < lengths[number] - 1]:
        for number in draw(st.sets(st.sampled_from(open_), min_size=1)):
            places[number] += 1
        yield list(places)


@settings(max_examples=100)
@given(histories())
def test_progress_never_goes_backwards_and_ends_at_100(
    history: list[tuple[float, list[Report]]],
) -> None:
    tracker = Tracker()
    views = [view_of(tracker, now, *reports) for now, reports in history]
    for before, after in itertools.pairwise(views):
        assert before.sums.percent is not None
        assert after.sums.percent is not None
        assert before.sums.percent <= after.sums.percent
        assert before.sums.progress <= after.sums.progress
        assert before.sums.extracted <= after.sums.extracted
        for image, earlier in before.pulls.items():
            assert (earlier.sums.share or 0) <= (after.pulls[image].sums.share or 0)
    for view in views:
        sizes = {layer.name: layer for layer in layers(view)}
        assert view.sums.progress == sum(item.progress for item in sizes.values())
        assert view.sums.total == sum(item.total for item in sizes.values())
        is_over = all(item.phase in (Phase.DONE, Phase.PRESENT) for item in layers(view))
        assert (view.sums.percent == 100) == is_over
        for totals in (view.sums, *(shown.sums for shown in view.pulls.values())):
            assert totals.eta_s is None or totals.eta_s >= 0
            assert totals.extracted <= totals.extracted_total
    assert views[-1].sums.percent == 100
    assert views[-1].sums.progress == views[-1].sums.total


def test_a_pull_that_hangs_has_no_rate_and_no_end() -> None:
    tracker = Tracker()
    for second in range(6):
        report = Report("a", "l", 10 * (second + 1) * MIB, 100 * MIB)
        totals = view_of(tracker, second, report).sums
    assert totals.rate == pytest.approx(10 * MIB)
    assert totals.eta_s is not None
    totals = view_of(tracker, 5 + STALLED_S - 0.1).sums
    assert not totals.stalled_s
    totals = view_of(tracker, 5 + STALLED_S).sums
    assert (totals.stalled_s, totals.rate, totals.eta_s) == (STALLED_S, 0.0, None)
    totals = view_of(tracker, 60.0, extracting(0, layer="other")).sums
    assert totals.stalled_s == 0.0


def test_who_looks_once_sees_a_stall_that_began_before() -> None:
    tracker = Tracker()
    tracker.tell(downloading(10), now=100.0, idle_s=12.0, began=80.0)
    totals = tracker.view(100.0).sums
    assert (totals.stalled_s, totals.rate, totals.eta_s) == (12.0, 0.0, None)


def test_before_a_rate_was_measured_that_since_the_beginning_counts() -> None:
    tracker = Tracker()
    tracker.tell(downloading(40)._replace(resumed=20 * MIB), now=100.0, began=90.0)
    tracker.tell(Report("a", "there", 5, 5, phase="present"), now=100.0, began=90.0)
    totals = tracker.view(100.0).sums
    assert totals.rate == pytest.approx(2 * MIB)
    assert totals.eta_s is not None


@given(share=st.floats(0, 1), numbers=st.lists(st.integers(0, 2**53), min_size=4, max_size=4))
def test_sums_that_are_handed_on_are_the_same(share: float, numbers: list[int]) -> None:
    progress, total, extracted, count = numbers
    sums = Sums(
        progress=progress,
        total=total,
        done=count,
        count=count,
        rate=1000.25,
        eta_s=None,
        extracted=extracted,
        share=share,
        stalled_s=11.5,
    )
    read = sums_in(json.loads(json.dumps(sums_json(sums))))
    assert read is not None
    assert read.percent == sums.percent
    assert replace(read, share=share) == sums


@pytest.mark.parametrize("wrong", [None, [], {"progress": "5"}, {"share": float("nan")}])
def test_sums_that_are_none(wrong: object) -> None:
    read = sums_in(wrong)
    assert read is None or (read.progress, read.share) == (0, None)


# Views


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
        progress=180, total=390, done=2, count=6, failed=1, rate=None, eta_s=None,
        share=view.sums.share, has_unknown=True,
    )  # fmt: skip
    assert view.sums.percent == 46


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
    phases = []
    for phase in ("downloading", "waiting", "downloading", "extracting", "downloading"):
        tracker.tell(Report("a", "l", 100, 100, phase=phase), now=0.0)
        phases.append(str(only(tracker.view(0.0)).phase))
    assert phases == ["downloading", "waiting", "waiting", "extracting", "extracting"]
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


@pytest.mark.parametrize(
    ("eta_s", "shown"), [(None, None), (0.0, 0), (0.1, 1), (1.4, 1), (1.6, 2), (4.2, 4)]
)
def test_whole_seconds_left_are_the_nearest_and_0_only_at_the_end(
    eta_s: float | None, shown: int | None
) -> None:
    assert json.dumps(Sums(eta_s=eta_s).eta_whole_s) == json.dumps(shown)
