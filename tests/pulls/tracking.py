"""Helpers that feed reports into a tracker and read its views."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, NamedTuple

from pycrictl.pulls import tracker as pulls_tracker
from pycrictl.pulls.messages import MessageReader
from pycrictl.pulls.state import LayerState, Sums, View

MIB = 2**20


class Report(NamedTuple):
    """A message of a progress stream about one layer."""

    image: str = ""
    layer: str = ""
    progress: int = 0
    total: int = 0
    error: str = ""
    phase: str = ""
    queue_position: int = 0
    extracted: int = 0
    extracted_total: int = 0
    resumed: int = 0
    started: float = 0.0
    behind: str = ""
    pod: str = ""
    digest: str = ""
    idle_s: float = 0.0
    sums: dict[str, Any] | None = None

    @property
    def message(self) -> str:
        return json.dumps(self._asdict())


class Tracker(pulls_tracker.Tracker):
    """A tracker that takes reports as well."""

    def tell(
        self, report: Report, *, now: float, idle_s: float | None = None, began: float = 0.0
    ) -> None:
        """Apply a report; ``idle_s`` and ``began`` are as a source would know them."""
        pull = MessageReader(self.pulls).receive_message(report.message)
        assert pull is not None
        if idle_s is not None:
            layers = (
                replace(layer, idle_s=idle_s, patience_s=10.0)
                if layer.name == report.layer
                else layer
                for layer in pull.layers
            )
            pull = replace(pull, layers=tuple(layers))
        self.apply(replace(pull, began_s=began or pull.began_s), now=now)


def see(
    *reports: Report | tuple[str, str, int, int], tracker: Tracker | None = None, now: float = 0.0
) -> View:
    """Apply all reports at the same time; return the view."""
    tracker = tracker or Tracker()
    for report in reports:
        tracker.tell(Report(*report), now=now)
    return tracker.view(now)


def sums(progress: int, total: int, rate: float | None = None, eta_s: float | None = None) -> Sums:
    """Return the sums of a pull that only downloads."""
    share = progress / total
    return Sums(progress=progress, total=total, count=1, rate=rate, eta_s=eta_s, share=share)


def layers(view: View) -> list[LayerState]:
    return [layer for pull in view.pulls.values() for layer in pull.layers]


def only(view: View) -> LayerState:
    (layer,) = layers(view)
    return layer


def keys(view: View) -> list[tuple[str, str]]:
    return [(name, layer.name) for name, pull in view.pulls.items() for layer in pull.layers]


def changed(view: View) -> list[tuple[str, str]]:
    return [(pull.name, layer.name) for pull, layer in view.changed]


def pull(tracker: Tracker, seconds: range, *, layer: str = "l", per_s: int = MIB) -> View:
    """Report a layer of 100 MiB once a second; return the last view."""
    for second in seconds:
        tracker.tell(Report("a", layer, second * per_s, 100 * MIB), now=float(second))
        view = tracker.view(float(second))
    return view
