"""Rates and times left."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from pycrictl.pulls.meter import Speed
from pycrictl.pulls.state import LayerState, Phase, PullState, View
from tests.pulls.tracking import MIB, Report, Tracker, pull


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
    assert totals.resumed == 40 * MIB  # and 20 MiB arrived before the first report
    assert totals.rate == pytest.approx(2 * MIB)
    assert totals.eta_s == pytest.approx(16)


@pytest.mark.parametrize("phase", ["present", "done", ""])
def test_layers_that_are_there_at_first_sight_make_no_rate(phase: str) -> None:
    tracker = Tracker()
    pull(tracker, range(5))
    tracker.tell(Report("a", "m", 100 * MIB, 100 * MIB, phase=phase), now=5.0)
    totals = pull(tracker, range(5, 9)).sums
    assert totals.rate == pytest.approx(MIB)
    assert totals.resumed == 0


def test_a_retry_counts_what_it_downloads_again() -> None:
    tracker = Tracker()
    pull(tracker, range(10))
    tracker.tell(Report("a", "l", 0, 100 * MIB), now=10.0)
    assert tracker.view(10.0).sums.rate == pytest.approx(MIB)
    for second in range(11, 20):
        tracker.tell(Report("a", "l", (second - 10) * MIB, 100 * MIB), now=float(second))
        view = tracker.view(float(second))
    assert view.sums.rate == pytest.approx(MIB)


def test_a_rate_that_is_measured_anew() -> None:
    """After one of three pulls has ended, the overall rate no longer includes its bytes."""
    tracker = Tracker()

    def look(second: float, *images: str) -> View:
        for image in images:
            tracker.tell(Report(image, image, int(second * MIB), 100 * MIB), now=second)
        return tracker.view(second)

    for second in range(6):
        view = look(second, "a", "b", "c")
    assert view.sums.rate == 3 * MIB
    tracker.forget("c")
    tracker.measure_anew()
    view = tracker.view(5.0)
    assert (view.sums.rate, view.pulls["a"].sums.rate) == (None, MIB)
    look(6.0, "a", "b")
    assert look(7.0, "a", "b").sums.rate == 2 * MIB
    assert look(7.0).sums.eta_s is None  # unknown for three seconds, as at the start
    tracker.forget("b")
    assert tracker.view(7.0).sums.rate == MIB


def test_a_rate_is_measured_from_step_to_step() -> None:
    speed = Speed(8.0)
    speed.start(0.0)
    for tenth in range(1, 130):
        step = MIB if tenth % 40 == 0 else 0  # 1 MiB every four seconds
        speed.record(step, tenth / 10, kept=4)
    assert speed.rate == pytest.approx(MIB / 4)
    for second in range(13, 60):
        speed.record(0, float(second), kept=4)
    assert speed.rate is not None
    assert speed.rate < MIB / 12  # the next step is long overdue


def test_time_counts_only_while_something_is_open() -> None:
    speed = Speed(8.0)
    for second in range(60):
        speed.record(0 if 20 < second < 40 else MIB, float(second), is_open=not 20 < second < 40)
    assert speed.rate == pytest.approx(MIB)


# Whole pulls as by containerd: three parallel downloads, unpacked in order

STEP_S = 0.25
PACE = 100 * MIB
PARALLEL = 3


def pulled(layers: list[tuple[int, int]], rate: float) -> Iterator[list[Report]]:
    """Yield the reports of each quarter of a second; ``layers``: MiB packed and unpacked."""
    got, unpacked = [0.0] * len(layers), [0.0] * len(layers)
    sizes = [(packed * MIB, whole * MIB) for packed, whole in layers]
    while True:
        reports, is_blocked = [], False
        for number, (packed, whole) in enumerate(sizes):
            is_here = got[number] >= packed
            is_done = is_here and unpacked[number] >= whole
            phase = "done" if is_done else "downloading" if got[number] else "waiting"
            if is_here and not is_done:
                phase = "waiting" if is_blocked else "extracting"
                unpacked[number] += 0 if is_blocked else PACE * STEP_S
            is_blocked = is_blocked or not is_done
            of = whole if is_here else 0
            numbers = int(min(got[number], packed)), packed
            extracted = int(min(unpacked[number], whole))
            reports.append(Report("a", f"l{number}", *numbers, "", phase, 0, extracted, of))
        yield reports
        if is_done:
            return
        downloading = [n for n, (packed, _) in enumerate(sizes) if got[n] < packed][:PARALLEL]
        for number in downloading:
            got[number] += rate * STEP_S / len(downloading)


DEMO = [(2, 5), (12, 30), (6, 15), (3, 8), (10, 25)]


@pytest.mark.parametrize(
    ("layers", "rate"),
    [(DEMO, 4.5 * MIB), ([(100, 100)] * 5, 20 * MIB), ([(100, 500)] * 5, 20 * MIB)],
    ids=["demo", "incompressible", "compressible"],
)
def test_the_time_left_of_a_pull(layers: list[tuple[int, int]], rate: float) -> None:
    """Tested from halfway on; before that, the compression ratio of the layers is unknown."""
    tracker = Tracker()
    shown = []
    for step, reports in enumerate(pulled(layers, rate)):
        for report in reports:
            tracker.tell(report, now=step * STEP_S)
        shown.append(tracker.view(step * STEP_S).sums.eta_s)
    whole_s = (len(shown) - 1) * STEP_S
    for left_s in (whole_s / 2, whole_s / 4, 3.0):
        assert shown[int((whole_s - left_s) / STEP_S)] == pytest.approx(left_s, abs=2.0)


# Steps of 1 MiB, as containerd tells them


def stepped(kib_per_s: int, count: int, size_mib: int) -> Iterator[tuple[float, PullState, float]]:
    """Yield time, state and true time left; three layers are downloaded at once."""
    got, shown, moved = [0.0] * count, [0] * count, [0.0] * count
    size, now = size_mib * MIB, 0.0
    while open_ := [n for n in range(count) if got[n] < size][:3]:
        left_s = sum(size - one for one in got) / (kib_per_s * 1024)
        layers = tuple(
            LayerState(
                name=f"l{n}",
                phase=Phase.DONE if shown[n] == size else Phase.DOWNLOADING
                if n in open_ else Phase.WAITING,
                progress=shown[n],
                total=size,
                idle_s=now - moved[n] if n in open_ else 0.0,
                patience_s=1e9,
            )
            for n in range(count)
        )  # fmt: skip
        arriving = None if any(shown) else kib_per_s * 1024.0
        yield now, PullState(image="a", layers=layers, began_s=1000.0, arriving=arriving), left_s
        now += STEP_S
        weights = {n: 1.0 + 0.02 * (n % 3) for n in open_}
        for n in open_:
            part = weights[n] / sum(weights.values())
            got[n] = min(got[n] + kib_per_s * 1024 * STEP_S * part, size)
            whole = size if got[n] == size else int(got[n] // MIB) * MIB
            moved[n] = now if whole != shown[n] or not got[n] else moved[n]
            shown[n] = whole
        for n in range(count):
            moved[n] = now if n not in open_ else moved[n]


@pytest.mark.parametrize(
    ("kib_per_s", "count", "size_mib"),
    [*itertools.product([30, 100, 1000], [1, 3, 20], [24]), (30, 3, 8)],
)
def test_the_time_left_of_a_slow_pull_in_steps(kib_per_s: int, count: int, size_mib: int) -> None:
    tracker = Tracker()
    states = list(stepped(kib_per_s, count, max(size_mib // min(count, 12), 1)))
    for number, (now, state, left_s) in enumerate(states):
        tracker.apply(state, now=now)
        sums = tracker.view(now, 1000.0 + now).sums
        if number > len(states) / 4:
            step_s = MIB / (kib_per_s * 1024)  # the end of a layer is not seen before its last step
            assert sums.eta_s == pytest.approx(left_s, rel=0.3, abs=max(step_s / 4, 2.0)), now
            assert not sums.stalled_s
