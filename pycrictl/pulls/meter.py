"""Sums of pulls, and their rates, times left and shares. Pure: callers give the time.

* *Steps.* containerd reports offsets in steps of 1 MiB, and a slow layer takes a minute for one. So
  rates are measured from step to step, over several of them. Until there are enough steps, the
  average since the beginning of the pull is used, if that is known. What each layer has downloaded
  since its last step is estimated: at most a step, and the same rate for all layers. The time left
  therefore falls between two steps as well.
* *Unpacking.* The speed is measured while the same layer is being unpacked; until then, a default
  is used. Once everything is downloaded, the time left is unknown unless both the speed and the
  unpacked size are known.
* *Share.* 1 minus the time left divided by the time for everything, at current speeds. It never
  falls, unless a download restarts or the number of layers changes.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from pycrictl.pulls.state import COMPLETE, LayerState, Phase, Sums

SUPPOSED_RATE: Final = 20.0 * 2**20
SUPPOSED_PACE: Final = 100.0 * 2**20
"""The speeds of downloading and of unpacking, in bytes per second, until they are measured."""

RATE_AFTER_S: Final = 1.0
ETA_AFTER_S: Final = 3.0
STEPS_PER_LAYER: Final = 4
"""Over how many steps of each downloading layer a rate is measured."""

WINDOW_S: Final = 8.0
ALMOST: Final = 0.995
"""The largest share of a pull that is not complete."""
_SAMPLES_PER_WINDOW: Final = 32


class Speed:
    """Bytes per second from step to step, over the last ``window_s`` seconds or several steps.

    Time counts only while something is open: being downloaded, unpacked or copied.
    """

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._steps: deque[tuple[float, int]] = deque([(0.0, 0)])
        self._gained = 0
        self._last: float | None = None
        self._is_open = True
        self.measured_s = 0.0  # for how long something has been open
        self._reported_s = 0.0  # the part of that time whose bytes have been reported

    @property
    def steps(self) -> int:
        """The number of steps that the rate is measured over."""
        return len(self._steps) - 1

    def start(self, now: float) -> None:
        """Set the time from which bytes could arrive; only the first call has an effect."""
        if self._last is None:
            self._last = now

    def record(
        self,
        gained: int,
        now: float,
        *,
        is_open: bool = True,
        kept: int = 1,
        unseen_s: float = 0.0,
    ) -> None:
        """Record the bytes that have arrived since the last call.

        Args:
            is_open: whether bytes could have arrived since then.
            kept: how many steps to keep, even if they took longer than the window.
            unseen_s: the time that bytes took which have arrived but are not reported yet.
        """
        if not (self.measured_s or self._gained):
            self._steps[0] = (-unseen_s, 0)  # what arrived before the first call is reported later
        if gained or (is_open and self._is_open):
            self.measured_s += now - (now if self._last is None else self._last)
        self._last, self._is_open = now, is_open
        steps, open_s = self._steps, self.measured_s
        self._reported_s = open_s - unseen_s
        if gained:
            self._gained += gained
            at = max(self._reported_s, steps[-1][0])
            if len(steps) > 1 and at - steps[-2][0] < self._window_s / _SAMPLES_PER_WINDOW:
                steps.pop()
            steps.append((at, self._gained))
        while len(steps) > kept + 1 and steps[1][0] <= open_s - self._window_s:
            steps.popleft()

    @property
    def rate(self) -> float | None:
        """Bytes per second; None before the first byte and in the first second."""
        if self.measured_s < RATE_AFTER_S or len(self._steps) < 2:
            return None
        times = [at for at, _ in self._steps]
        longest_s = max(after - before for before, after in itertools.pairwise(times))
        # While the next step is not overdue, nothing is known of the time since the last one.
        until_s = max(times[-1], self._reported_s - 2 * longest_s)
        return (self._steps[-1][1] - self._steps[0][1]) / max(until_s - times[0], 1e-3)


class Course:
    """The course of one pull, or of several, from one view to the next."""

    def __init__(self, now: float) -> None:
        self._speed = Speed()
        self._speed.start(now)
        self._rate: float | None = None  # the last one that was not 0
        self._share, self._progress, self._count = 0.0, 0, 0
        self._unseen_s: dict[str, float] = {}
        self._shown: dict[str, int] = {}
        self._step = 0  # the largest one of a layer, in bytes
        self._at = now

    def sums(
        self,
        layers: Sequence[LayerState],
        gained: int,
        now: float,
        *,
        pace: float | None,
        age_s: float | None,
    ) -> Sums:
        """Return the sums of distinct layers.

        Args:
            gained: the bytes downloaded since the last call.
            pace: bytes unpacked per second; None while unknown.
            age_s: the time since the pull began; None if unknown.
        """
        downloading = [layer for layer in layers if layer.phase is Phase.DOWNLOADING]
        kept = STEPS_PER_LAYER * max(len(downloading), 1)
        self._measure_steps(downloading, now)
        unseen_s = sum(self._unseen().values())
        self._speed.record(gained, now, is_open=bool(downloading), kept=kept, unseen_s=unseen_s)
        fields = sums_of(layers)
        rate, measured_s = self._speed.rate, self._speed.measured_s
        if age_s is not None and (rate is None or self._speed.steps < kept):
            since_s = age_s - unseen_s
            fetched = sum(layer.fetched for layer in layers)
            if fetched and since_s >= RATE_AFTER_S:
                rate, measured_s = fetched / since_s, age_s
        if fields.get("stalled_s"):
            rate = 0.0
        self._rate = rate or self._rate
        eta_s = None
        if not fields["has_unknown"]:
            known_rate = rate if measured_s >= ETA_AFTER_S else None
            eta_s = _time_left(layers, known_rate, pace)
        if eta_s and rate:
            missing = {layer.name: max(layer.total - layer.progress, 0) for layer in downloading}
            unseen = self._unseen().items()
            eta_s -= sum(min(layer_s, missing[name] / rate) for name, layer_s in unseen)
            eta_s = max(eta_s, 0.0)
        share = share_of(layers, self._rate or SUPPOSED_RATE, pace or SUPPOSED_PACE)
        if fields["progress"] < self._progress or fields["count"] != self._count:
            self._share = 0.0
        self._progress, self._count = fields["progress"], fields["count"]
        if share is not None:
            share = self._share = max(self._share, share)
        return Sums(**fields, rate=rate, eta_s=eta_s, share=share)

    def _measure_steps(self, downloading: Sequence[LayerState], now: float) -> None:
        """Divide the time since each layer's last step among the layers downloaded meanwhile."""
        before, self._unseen_s = self._unseen_s, {}
        shown, self._shown = self._shown, {layer.name: layer.progress for layer in downloading}
        for layer in downloading:
            passed_s, earlier_s = now - self._at, before.get(layer.name, 0.0)
            if shown.get(layer.name) != layer.progress:
                self._step = max(self._step, layer.progress - shown.get(layer.name, layer.progress))
                passed_s, earlier_s = layer.idle_s or 0.0, 0.0
            self._unseen_s[layer.name] = earlier_s + passed_s / len(downloading)
        self._at = now

    def _unseen(self) -> dict[str, float]:
        """Return the time that each layer's unreported bytes took to download, in seconds."""
        step_s = self._step / self._rate if self._rate and self._step else math.inf
        return {name: min(layer_s, step_s) for name, layer_s in self._unseen_s.items()}


def _time_left(
    layers: Sequence[LayerState], rate: float | None, pace: float | None
) -> float | None:
    """Return the seconds until the last layer is unpacked; None if unknown."""
    left = work_left(layers)
    if any(download for download, _ in left):
        if not rate:
            return None
    elif any(unpack for _, unpack in left):
        if not pace or any(layer.is_estimated for layer in layers):
            return None
    elif not left:
        return 0.0 if rate else None
    return duration(left, rate or SUPPOSED_RATE, pace or SUPPOSED_PACE)


# Sums over distinct layers, without a clock: each function adds up one aspect of `Sums`


def sums_of(layers: Sequence[LayerState]) -> dict[str, Any]:
    """Return the fields of ``Sums`` over distinct layers, without rates, times and share."""
    return {**_bytes(layers), **_counts(layers), **_unpacking(layers), **_stall(layers)}


def _bytes(layers: Sequence[LayerState]) -> dict[str, Any]:
    known = [layer for layer in layers if layer.total]
    return {
        "progress": sum(layer.progress for layer in known or layers),
        "total": sum(layer.total for layer in known),
        "has_unknown": any(not layer.total and not layer.is_finished for layer in layers),
    }


def _counts(layers: Sequence[LayerState]) -> dict[str, Any]:
    named = [layer for layer in layers if layer.name]
    counted = named or layers
    whole = [layer for layer in layers if not layer.name]
    return {
        "count": len(counted),
        "done": sum(layer.phase in COMPLETE for layer in counted),
        "failed": sum(layer.phase is Phase.FAILED for layer in counted),
        "to_come": sum(not layer.is_finished for layer in whole) if named else 0,
    }


def _unpacking(layers: Sequence[LayerState]) -> dict[str, Any]:
    unpacked = [layer for layer in layers if layer.is_unpacked]
    return {
        "extracted": sum(layer.extracted for layer in unpacked),
        "extracted_total": sum(layer.extracted_total for layer in unpacked),
        "is_estimated": any(layer.is_estimated for layer in unpacked),
    }


def _stall(layers: Sequence[LayerState]) -> dict[str, Any]:
    if any(layer.phase is Phase.EXTRACTING for layer in layers):
        return {}
    downloading = [layer for layer in layers if layer.phase is Phase.DOWNLOADING]
    return {"stalled_s": min((layer.stalled_s for layer in downloading), default=0.0)}


def work_left(layers: Sequence[LayerState], *, failed: bool = False) -> list[tuple[int, int]]:
    """Return the bytes to download and to unpack of each unfinished layer whose size is known.

    Args:
        failed: include the downloads of failed layers, too.
    """
    left: list[tuple[int, int]] = []
    for layer in layers:
        missing = layer.total - layer.progress
        if layer.phase is Phase.FAILED and failed:
            left.append((missing, 0))
        elif layer.total and not layer.is_finished:
            packed = layer.extracted_total - layer.extracted if layer.is_unpacked else 0
            left.append((missing, packed))
    return left


def duration(work: Sequence[tuple[int, int]], rate: float, pace: float) -> float:
    """Return the seconds for this work: layers are unpacked in order, each after its download."""
    downloaded_s = unpacked_s = 0.0
    for download, unpack in work:
        downloaded_s += download / rate
        unpacked_s = max(unpacked_s, downloaded_s) + unpack / pace
    return unpacked_s


def share_of(layers: Sequence[LayerState], rate: float, pace: float) -> float | None:
    """Return the part of the work that is done at these speeds; None if no size is known."""
    work = [
        (layer.total, layer.extracted_total * layer.is_unpacked) for layer in layers if layer.total
    ]
    if not work:
        return None
    if all(layer.phase in COMPLETE for layer in layers):
        return 1.0
    left_s = duration(work_left(layers, failed=True), rate, pace)
    return min(1.0 - left_s / duration(work, rate, pace), ALMOST)
