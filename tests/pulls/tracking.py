"""Helpers that feed reports into a tracker and read its views."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pycrictl.pulls.model import Phase, PullItem, Totals, View
from pycrictl.pulls.tracker import Tracker
from pycrictl.wire.progress import Report

MIB = 2**20
FINISHED = {Phase.DONE, Phase.PRESENT, Phase.FAILED}


def see(
    *reports: Report | tuple[str, str, int, int], tracker: Tracker | None = None, now: float = 0.0
) -> View:
    """Apply all reports at the same time; return the view."""
    tracker = tracker or Tracker()
    for report in reports:
        tracker.apply(Report(*report), now=now)
    return tracker.view(now)


def sums(
    progress: int, total: int, rate: float | None = None, eta_s: float | None = None, **more: float
) -> Totals:
    """Return the totals of a pull that only downloads; ``more`` overrides fields."""
    found = Totals(progress, total, 0, 1, 0, 0, rate, eta_s, share=progress / total)
    return replace(found, **more)  # type: ignore[arg-type]  # checked where it is used


def only(view: View) -> PullItem:
    (item,) = view.items
    return item


def keys(items: Iterable[PullItem]) -> list[tuple[str, str]]:
    return [(item.image, item.layer) for item in items]


def pull(tracker: Tracker, seconds: range, *, layer: str = "l", per_s: int = MIB) -> View:
    """Report a layer of 100 MiB once a second; return the last view."""
    for second in seconds:
        tracker.apply(Report("a", layer, second * per_s, 100 * MIB), now=float(second))
        view = tracker.view(float(second))
    return view
