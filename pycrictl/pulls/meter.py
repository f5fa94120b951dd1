"""Rates, times left and stalls of pulls, measured on one clock. Pure: callers give the time.

* *Shared layers.* A digest in several images of a node counts once, with the most progress of any
  image. So bytes of one image's pull count towards the rate and the time left of the others, too.
* *Rate.* Bytes in a layer's first report, and layers that the runtime already has, do not count as
  downloaded. If a layer restarts with fewer bytes, those that it downloads again count again.
* *Steps.* containerd tells offsets in steps of 1 MiB, and a slow layer takes a minute for one. So
  rates are measured from step to step, over several of them. Until there are enough steps, the
  average since the beginning of the pull is used, if that is known. The time left also falls
  between two steps.
* *Unpacking.* Until the unpacked size of a layer is known, it is estimated: from the known layers
  of the image, from those of an earlier pull of the repository, or from the usual ratio. The speed
  is measured while the same layer is being unpacked; until then, a default is used. Once everything
  is downloaded, the time left is unknown unless both the speed and the unpacked size are known.
* *Share.* 1 minus the time left divided by the time for everything, at current speeds. It never
  falls, unless a download restarts or the number of layers changes.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pycrictl.pulls.state import COMPLETE, FINISHED, LayerState, Phase, PullState, Sums
from pycrictl.pulls.sums import duration, share_of, sums_of, work_left

SUPPOSED_RATE: Final = 20.0 * 2**20
SUPPOSED_PACE: Final = 100.0 * 2**20
"""Bytes downloaded and unpacked per second, assumed until they are measured."""

UNPACKED_RATIO: Final = 2.5
"""Assumed ratio of unpacked to compressed size, until one is known for its repository."""

RATE_AFTER_S: Final = 1.0
ETA_AFTER_S: Final = 3.0
STEPS_PER_LAYER: Final = 4
"""How many steps of each layer that is being downloaded a rate is measured over."""

_SAMPLES_PER_WINDOW: Final = 32
_REMEMBERED: Final = 1024


class Speed:
    """Bytes per second from step to step, over the last ``window_s`` seconds or several steps.

    Time counts only while something is open: being downloaded, unpacked or copied.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._steps: deque[tuple[float, int]] = deque([(0.0, 0)])
        self._gained = 0
        self._open_s = 0.0
        self._last: float | None = None
        self._is_open = True

    @property
    def steps(self) -> int:
        """The number of steps that the rate is measured over."""
        return len(self._steps) - 1

    @property
    def measured_s(self) -> float:
        """For how long something has been open."""
        return self._open_s

    def start(self, now: float) -> None:
        """Set the time from which bytes could arrive; only the first call has an effect."""
        if self._last is None:
            self._last = now

    def record(self, gained: int, now: float, *, is_open: bool = True, kept: int = 1) -> None:
        """Record the bytes that have arrived since the last call.

        Args:
            is_open: whether they could arrive in this time.
            kept: how many steps to keep, even if they took longer than the window.
        """
        self.start(now)
        assert self._last is not None
        if gained or (is_open and self._is_open):
            self._open_s += now - self._last
        self._last, self._is_open = now, is_open
        steps = self._steps
        if gained:
            self._gained += gained
            spacing_s = self._window_s / _SAMPLES_PER_WINDOW
            if len(steps) > 1 and self._open_s - steps[-2][0] < spacing_s:
                steps.pop()
            steps.append((self._open_s, self._gained))
        while len(steps) > kept + 1 and steps[1][0] <= self._open_s - self._window_s:
            steps.popleft()

    @property
    def rate(self) -> float | None:
        """Bytes per second; None before the first byte and in the first second."""
        steps = [*self._steps]
        if self._open_s < RATE_AFTER_S or len(steps) < 2:
            return None
        times = [at for at, _ in steps]
        longest_s = max(after - before for before, after in itertools.pairwise(times))
        # While the next step is not overdue, nothing is known of the time since the last one.
        until_s = max(times[-1], self._open_s - 2 * longest_s)
        return (steps[-1][1] - steps[0][1]) / max(until_s - times[0], 1e-3)


@dataclass(slots=True, eq=False)
class _Counted:
    """The bytes of a layer that have entered the rates; ``holders`` is how many pulls have it."""

    downloaded: int
    unpacked: int
    holders: int = 0

    def advance(self, layer: LayerState) -> tuple[int, int]:
        """Advance to the state of ``layer``; return the bytes downloaded and unpacked since."""
        gained = unpacked = 0
        if layer.phase is not Phase.PRESENT:
            gained = max(layer.progress - self.downloaded, 0)
            unpacked = max(layer.extracted - self.unpacked, 0)
        self.downloaded, self.unpacked = layer.progress, layer.extracted
        return gained, unpacked


@dataclass(slots=True, eq=False)
class _Watched:
    """A layer as reported ``at`` a time, when it last ``moved``, and as shown when ``shown_of``.

    ``unseen_s`` is the time since its last step, divided among the layers downloaded meanwhile.
    """

    layer: LayerState
    at: float
    moved: float
    counted: _Counted
    unseen_s: float | None = None
    shown: LayerState | None = None
    shown_of: LayerState | None = None


@dataclass(slots=True, eq=False)
class _Reached:
    """Progress at the last view, and the last nonzero rate."""

    share: float = 0.0
    progress: int = 0
    count: int = 0
    rate: float = SUPPOSED_RATE

    def at_least(self, progress: int, count: int, share: float | None) -> float | None:
        """Return the share, or that of the last view if it was larger."""
        if progress < self.progress or count != self.count:
            self.share = 0.0
        self.progress, self.count = progress, count
        if share is None:
            return None
        self.share = max(self.share, share)
        return self.share


class Meter:
    """Measures pulls as they are reported; all times are seconds of one monotonic clock."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._watched: dict[str, dict[str, _Watched]] = {}
        self._counted: dict[tuple[str, ...], _Counted] = {}
        self._viewed = 0.0
        self._speed = Speed(window_s)
        self._speeds: dict[str, Speed] = {}
        self._unpacking = Speed(window_s)
        self._unpacked: set[_Counted] = set()
        self._reached: dict[str, _Reached] = {}
        self._ratios: OrderedDict[str, float] = OrderedDict()

    def see(self, pull: PullState, now: float) -> None:
        """Note the state of a pull."""
        name = pull.name
        self._speed.start(now)
        self._speeds.setdefault(name, Speed(self._window_s)).start(now)
        group = self._watched.setdefault(name, {})
        for gone in group.keys() - {layer.name for layer in pull.layers}:
            self._drop(pull, group.pop(gone))
        for layer in pull.layers:
            watched = group.get(layer.name)
            if watched is None:
                first = _Counted(layer.progress, layer.extracted)
                counted = self._counted.setdefault(_key(pull, layer), first)
                counted.holders += 1
                group[layer.name] = _Watched(layer, now, now, counted)
                continue
            before = watched.layer
            if layer.progress != before.progress:
                watched.unseen_s = 0.0
            if layer is not before and (
                layer.progress != before.progress
                or layer.extracted != before.extracted
                or layer.phase is not before.phase
            ):
                watched.moved = now
            watched.layer, watched.at = layer, now

    def forget(self, pull: PullState) -> None:
        """Drop the data of a pull, except for what its repository's images shrink by."""
        name = pull.name
        if (known := self._known_ratio(name)) is not None:
            repository = _repository(pull.image)
            self._ratios[repository] = known
            self._ratios.move_to_end(repository)
            if len(self._ratios) > _REMEMBERED:
                self._ratios.popitem(last=False)
        for watched in self._watched.pop(name, {}).values():
            self._drop(pull, watched)
        self._speeds.pop(name, None)
        self._reached.pop(name, None)

    def measure_anew(self) -> None:
        """Restart measuring the overall rate, which included pulls that are now forgotten."""
        self._speed = Speed(self._window_s)

    def measured(self, pull: PullState, now: float) -> PullState:
        """Return a pull with estimated sizes, and for how long its layers have been idle."""
        group = self._watched[pull.name]
        ratio = self._known_ratio(pull.name)
        if ratio is None:
            ratio = self._ratios.get(_repository(pull.image), UNPACKED_RATIO)
        layers = []
        for layer in pull.layers:
            watched = group[layer.name]
            if watched.shown is None or watched.shown_of is not layer or not layer.is_finished:
                watched.shown = _shown(watched, now, ratio)
                watched.shown_of = layer
            layers.append(watched.shown)
        return replace(pull, layers=tuple(layers))

    def add_up(self, pulls: Iterable[PullState], now: float, wall_s: float) -> list[PullState]:
        """Return measured pulls with their sums, and last a pull that stands for all of them.

        The sums that a pull's source has added up stay as they are.
        """
        pulls = list(pulls)
        furthest: dict[_Counted, LayerState] = {}
        parts: list[list[_Counted]] = []
        for pull in pulls:
            group = self._watched[pull.name]
            own = [group[layer.name].counted for layer in pull.layers]
            for counted, layer in zip(own, pull.layers, strict=True):
                twin = furthest.get(counted)
                if twin is None or _standing(layer) > _standing(twin):
                    furthest[counted] = layer
            parts.append(own)
        gains: dict[_Counted, int] = {}
        unpacked = 0
        for counted, layer in furthest.items():
            gains[counted], more = counted.advance(layer)
            unpacked += more
        extracting = {one for one, layer in furthest.items() if layer.phase is Phase.EXTRACTING}
        self._unpacking.record(unpacked, now, is_open=bool(extracting & self._unpacked))
        self._unpacked = extracting
        found, unseen = [], []
        for pull, own in zip(pulls, parts, strict=True):
            layers = [furthest[counted] for counted in dict.fromkeys(own)]
            speed = self._speeds[pull.name]
            gained = sum(gains[counted] for counted in dict.fromkeys(own))
            times = self._unseen(pull, now)
            unseen += times
            sums = self._sums(pull.name, layers, speed, gained, now, _age_s(pull, wall_s), times)
            found.append(pull if pull.sums.count else replace(pull, sums=sums))
        self._viewed = now
        busy = max(sum(pull.count(Phase.DOWNLOADING) > 0 for pull in pulls), 1)
        unseen = [(unseen_s / busy, missing) for unseen_s, missing in unseen]
        ages = [age for pull in pulls if (age := _age_s(pull, wall_s)) is not None]
        age_s = max(ages, default=None)
        gained = sum(gains.values())
        whole = self._sums("", [*furthest.values()], self._speed, gained, now, age_s, unseen)
        return [*found, PullState(sums=found[0].sums if len(found) == 1 else whole)]

    def _sums(
        self,
        name: str,
        layers: Sequence[LayerState],
        speed: Speed,
        gained: int,
        now: float,
        age_s: float | None,
        unseen: Sequence[tuple[float, int]],
    ) -> Sums:
        downloading = [layer for layer in layers if layer.phase is Phase.DOWNLOADING]
        kept = STEPS_PER_LAYER * max(len(downloading), 1)
        speed.record(gained, now, is_open=bool(downloading), kept=kept)
        fields = sums_of(layers)
        rate, measured_s = speed.rate, speed.measured_s
        if age_s is not None and (rate is None or speed.steps < kept):
            since_s = age_s - sum(unseen_s for unseen_s, _ in unseen)  # until their last steps
            fetched = sum(layer.fetched for layer in layers)
            if fetched and since_s >= RATE_AFTER_S:
                rate, measured_s = fetched / since_s, age_s
        if fields.get("stalled_s"):
            rate = 0.0
        reached = self._reached.setdefault(name, _Reached())
        reached.rate = rate or reached.rate
        pace = self._unpacking.rate
        eta_s = None
        if not fields["has_unknown"]:
            known_rate = rate if measured_s >= ETA_AFTER_S else None
            eta_s = _time_left(layers, known_rate, pace, unseen)
        share = share_of(layers, reached.rate, pace or SUPPOSED_PACE)
        share = reached.at_least(fields["progress"], fields["count"], share)
        return Sums(**fields, rate=rate, eta_s=eta_s, share=share)

    def _unseen(self, pull: PullState, now: float) -> list[tuple[float, int]]:
        """Return the time since its last step of each downloaded layer, and the bytes it lacks."""
        group = [self._watched[pull.name][layer.name] for layer in pull.layers]
        downloaded = [one for one in group if one.layer.phase is Phase.DOWNLOADING]
        found = []
        for watched in downloaded:
            layer, shown = watched.layer, watched.shown
            if watched.unseen_s is None:
                watched.unseen_s = ((shown.idle_s if shown else 0.0) or 0.0) / len(downloaded)
            else:
                watched.unseen_s += (now - max(self._viewed, watched.moved)) / len(downloaded)
            found.append((watched.unseen_s, max(layer.total - layer.progress, 0)))
        return found

    def _drop(self, pull: PullState, watched: _Watched) -> None:
        watched.counted.holders -= 1
        if not watched.counted.holders:
            self._counted.pop(_key(pull, watched.layer), None)

    def _known_ratio(self, name: str) -> float | None:
        packed = unpacked = 0
        for watched in self._watched.get(name, {}).values():
            layer = watched.layer
            if layer.extracted_total > 0 and layer.total > 0:
                packed += layer.total
                unpacked += layer.extracted_total
        return unpacked / packed if packed else None


def _shown(watched: _Watched, now: float, ratio: float) -> LayerState:
    """Return a layer with the time since its last byte, and with an estimate of its size."""
    layer = watched.layer
    idle_s, phase = layer.idle_s, layer.phase
    if phase is Phase.DOWNLOADING:
        idle_s = now - watched.moved if idle_s is None else idle_s + now - watched.at
    total, extracted = layer.extracted_total, layer.extracted
    is_estimated = layer.is_unpacked and not total and layer.total > 0
    if is_estimated:
        # A finished layer has one fixed size, whenever it is viewed.
        ratio = UNPACKED_RATIO if phase in FINISHED else ratio
        is_over = phase in COMPLETE and extracted > 0
        total = extracted if is_over else max(int(layer.total * ratio), extracted)
    if phase is Phase.DONE and layer.is_unpacked:
        extracted = total
    before = layer.idle_s, layer.extracted, layer.extracted_total
    if (idle_s, extracted, total) == before:
        return layer
    return replace(
        layer,
        idle_s=idle_s,
        extracted=extracted,
        extracted_total=total,
        is_estimated=layer.is_estimated or is_estimated,
    )


def _time_left(
    layers: Sequence[LayerState],
    rate: float | None,
    pace: float | None,
    unseen: Sequence[tuple[float, int]],
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
    left_s = duration(left, rate or SUPPOSED_RATE, pace or SUPPOSED_PACE)
    # What has arrived since the last steps is not seen yet.
    seen_late_s = sum(min(unseen_s, missing / rate) for unseen_s, missing in unseen) if rate else 0
    return max(left_s - seen_late_s, 0.0)


def _age_s(pull: PullState, wall_s: float) -> float | None:
    return max(wall_s - pull.began_s, 0.0) if pull.began_s else None


def _key(pull: PullState, layer: LayerState) -> tuple[str, ...]:
    """Return the key of a layer: a digest is the same layer in every image of a node."""
    if not layer.name or " " in layer.name:
        return pull.name, layer.name, ""
    return pull.node, layer.name


def _repository(image: str) -> str:
    """Return an image's name without its tag and digest."""
    name = image.partition("@")[0]
    head, colon, tag = name.rpartition(":")
    return head if colon and "/" not in tag else name


def _standing(layer: LayerState) -> tuple[bool, int, int, bool]:
    is_here = layer.phase in COMPLETE
    return is_here, layer.progress, layer.extracted, layer.phase is not Phase.FAILED
