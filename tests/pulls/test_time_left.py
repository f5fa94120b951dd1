"""The time left of whole pulls of containerd: three downloads at once, unpacked in order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pycrictl.pulls.tracker import Tracker
from pycrictl.wire.progress import Report
from tests.pulls.tracking import MIB

STEP_S = 0.25
PACE = 100 * MIB
PARALLEL = 3


def pull(layers: list[tuple[int, int]], rate: float) -> Iterator[list[Report]]:
    """Yield what is reported every quarter of a second of layers of so many MiB, and unpacked."""
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
    """From its half on; before that nobody knows what its layers shrink by."""
    tracker = Tracker()
    shown = []
    for step, reports in enumerate(pull(layers, rate)):
        for report in reports:
            tracker.apply(report, now=step * STEP_S)
        shown.append(tracker.view(step * STEP_S).totals.eta_s)
    whole_s = (len(shown) - 1) * STEP_S
    for left_s in (whole_s / 2, whole_s / 4, 3.0):
        assert shown[int((whole_s - left_s) / STEP_S)] == pytest.approx(left_s, abs=2.0)
