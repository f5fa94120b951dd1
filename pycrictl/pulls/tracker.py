"""The pulls under way, as their source last reported them. Pure: no IO and no clock.

A ``Tracker`` takes states of pulls from any source, and returns a ``View`` whenever something is to
be shown. States may arrive in floods, but views are needed a few times a second, so ``apply`` only
stores the latest state of a pull, and ``view`` measures it (``pulls.meter``). The pull without a
name, which stands for a whole pod, is shown only while there is nothing else.

* *Shared layers.* A digest in several images of a node counts once, with the most progress of any
  image. So bytes of one image's pull count towards the rate and the time left of the others, too.
* *Rate.* Bytes in a layer's first report, and layers that the runtime already has, do not count as
  downloaded. If a layer restarts with fewer bytes, those that it downloads again count again.
* *Unpacked size.* Until it is known, it is estimated: from the known layers of the image, or from
  the usual ratio.

All times are seconds of one monotonic clock, given as ``now``. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Final

from pycrictl.pulls.meter import Course, Speed
from pycrictl.pulls.reference import Match, match
from pycrictl.pulls.state import COMPLETE, FINISHED, LayerState, Phase, PullState, Sums, View

MEASURED_BYTES: Final = 16 << 20
"""The speed of unpacking is measured on layers of at least this compressed size: committing a
smaller one takes longer than unpacking it."""

UNPACKED_RATIO: Final = 2.5
"""Assumed ratio of unpacked to compressed size, until one is known for its image."""

_FIELDS: Final = attrgetter(*(name for name in LayerState.__slots__ if name != "idle_s"))
_visible_of_pull = attrgetter("place", "behind", "pods")


@dataclass(slots=True, eq=False)
class _Layer:
    """A layer as ``reported`` at the time ``at``, when it last ``moved``, and as last ``shown``."""

    key: tuple[str, ...]  # for a digest, the same in every image of a node
    reported: LayerState
    at: float
    moved: float
    shown: LayerState
    of: LayerState | None = None  # What `shown` was computed from, with `ratio`
    ratio: float = 0.0

    def report(self, layer: LayerState, now: float) -> None:
        before = self.reported
        if layer is not before and (
            layer.progress != before.progress
            or layer.extracted != before.extracted
            or layer.phase is not before.phase
        ):
            self.moved = now
        self.reported, self.at = layer, now

    def view(self, now: float, ratio: float) -> LayerState:
        """Return the layer with the time since its last byte, and with an estimate of its size."""
        layer, phase = self.reported, self.reported.phase
        if phase in FINISHED:
            ratio = UNPACKED_RATIO  # a finished layer has one fixed size, whenever it is viewed
        if phase is not Phase.DOWNLOADING and ratio == self.ratio and self.of == layer:
            return self.shown
        idle_s, total, extracted = layer.idle_s, layer.extracted_total, layer.extracted
        if phase is Phase.DOWNLOADING:
            idle_s = now - self.moved if idle_s is None else idle_s + now - self.at
        is_estimated = layer.is_unpacked and not total and layer.total > 0
        if is_estimated:
            is_over = phase in COMPLETE and extracted > 0
            total = extracted if is_over else max(int(layer.total * ratio), extracted)
        if phase is Phase.DONE and layer.is_unpacked:
            extracted = total
        self.of, self.ratio, self.shown = layer, ratio, layer
        if (idle_s, extracted, total) != (layer.idle_s, layer.extracted, layer.extracted_total):
            self.shown = replace(
                layer,
                idle_s=idle_s,
                extracted=extracted,
                extracted_total=total,
                is_estimated=layer.is_estimated or is_estimated,
            )
        return self.shown


@dataclass(slots=True, eq=False)
class _Pull:
    """What is known of a pull besides its state: its course, its layers, and its last view."""

    course: Course
    layers: dict[str, _Layer] = field(default_factory=dict)
    given_at: float | None = None  # when its source gave its sums
    shown: PullState = field(default_factory=PullState)

    @property
    def ratio(self) -> float:
        """The ratio of unpacked to compressed size."""
        layers = [layer.reported for layer in self.layers.values()]
        known = [layer for layer in layers if layer.extracted_total and layer.total]
        packed = sum(layer.total for layer in known)
        return sum(layer.extracted_total for layer in known) / packed if packed else UNPACKED_RATIO


class Tracker:
    """Keeps the latest state of every pull, and measures and sums them up on demand.

    Args:
        wanted: the images whose pulls are kept, besides pulls without an image; None for all.
        max_layers: how many layers are kept of all pulls; a server may report any number.

    Attributes:
        pulls: the pulls by name, as their source reported them.
        is_known: the source has reported its state.
    """

    def __init__(self, wanted: Iterable[str] | None = None, *, max_layers: int = 2000) -> None:
        self._wanted = None if wanted is None else tuple(wanted)
        self.pulls: dict[str, PullState] = {}
        self.is_known = True
        self._max_layers = max_layers
        self._tracked: dict[str, _Pull] = {}
        self._whole: Course | None = None
        # Bytes downloaded and unpacked of each layer, at the last view
        self._counted: dict[tuple[str, ...], tuple[int, int]] = {}
        self._unpacking = Speed()
        self._unpacked: set[tuple[str, ...]] = set()

    def wanted(self, pulls: Iterable[PullState]) -> tuple[PullState, ...]:
        """Return those of the pulls that are, or may be, of a wanted image."""
        return tuple(
            pull
            for pull in pulls
            if not pull.image
            or self._wanted is None
            or any(match(image, pull) is not Match.NO for image in self._wanted)
        )

    def apply(self, pull: PullState, *, now: float) -> None:
        """Store the state of a wanted pull, instead of the one before."""
        if not self.wanted([pull]):
            return
        name = pull.name
        before = self.pulls.get(name)
        if pull.layers and before is not None:
            if before.is_over and pull.began_s > before.began_s:
                self.forget(name)  # the remains of an earlier pull
        tracked = self._tracked.get(name)
        pull = self._fit(pull, tracked.layers if tracked is not None else {})
        if not pull.layers:
            return
        if tracked is None:
            tracked = self._tracked[name] = _Pull(Course(now))
        self._whole = self._whole or Course(now)
        self.pulls[name] = pull
        if pull.sums.count:
            tracked.given_at = now
        layers, layers_known = {}, tracked.layers
        for layer in pull.layers:
            known = layers[layer.name] = layers_known.get(layer.name) or _Layer(
                _key(pull, layer), layer, now, now, layer
            )
            known.report(layer, now)
            self._counted.setdefault(known.key, (layer.progress, layer.extracted))
        tracked.layers = layers

    def view(self, now: float, wall_s: float | None = None) -> View:
        """Return a snapshot at ``now``, in time proportional to the number of layers.

        Args:
            wall_s: the same time on the wall clock; None if both clocks are the same.
        """
        wall_s = now if wall_s is None else wall_s
        shown = [pull for name, pull in self.pulls.items() if name or pull.has_layers]
        pulls = [self._measured(pull, now) for pull in shown or self.pulls.values()]
        furthest: dict[tuple[str, ...], LayerState] = {}
        for pull in pulls:
            for key, layer in self._keyed(pull):
                twin = furthest.get(key)
                if twin is None or _standing(layer) > _standing(twin):
                    furthest[key] = layer
        gained = self._gained(furthest, now)
        pace = self._unpacking.rate
        for place, pull in enumerate(pulls):
            keys = dict.fromkeys(key for key, _ in self._keyed(pull))
            sums = self._tracked[pull.name].course.sums(
                [furthest[key] for key in keys],
                sum(gained[key] for key in keys),
                now,
                pace=pace,
                age_s=_age_s(pull.began_s, wall_s),
            )
            pulls[place] = self._with_sums(pull, sums, now)
        changed = [change for pull in pulls for change in self._changes(pull)]
        whole = self._whole = self._whole or Course(now)
        sums = whole.sums(
            [*furthest.values()],
            sum(gained.values()),
            now,
            pace=pace,
            age_s=_age_s(
                min((pull.began_s for pull in pulls if pull.began_s), default=0.0), wall_s
            ),
        )
        return View(
            pulls={pull.name: pull for pull in pulls},
            changed=tuple(changed),
            sums=pulls[0].sums if len(pulls) == 1 else sums,
            now=now,
            wall_s=wall_s,
            is_known=self.is_known,
        )

    def forget(self, name: str) -> None:
        """Drop a pull: the same name then means another one."""
        self.pulls.pop(name, None)
        tracked = self._tracked.pop(name, None)
        for layer in tracked.layers.values() if tracked is not None else ():
            self._counted.pop(layer.key, None)

    def clear_error(self, name: str) -> None:
        """Clear the error of a failed pull, which is reported elsewhere."""
        pull = self.pulls.get(name)
        if pull is not None and pull.has_failed:
            self.pulls[name] = replace(pull, error="")

    def drop_given_sums(self) -> None:
        """Drop the sums from a source that no longer responds; they are added up here again."""
        for tracked in self._tracked.values():
            tracked.given_at = None

    def measure_anew(self) -> None:
        """Restart measuring the overall rate, which included pulls that are now forgotten."""
        self._whole = None

    def _fit(self, pull: PullState, known: Mapping[str, _Layer]) -> PullState:
        """Return a pull with the layers for which there is room."""
        if len(pull.layers) == len(known):
            return pull
        left = self._max_layers - sum(len(pull.layers) for pull in self.pulls.values())
        return replace(pull, layers=pull.layers[: max(left + len(known), 0)])

    def _keyed(self, pull: PullState) -> Iterator[tuple[tuple[str, ...], LayerState]]:
        tracked = self._tracked[pull.name].layers
        return ((tracked[layer.name].key, layer) for layer in pull.layers)

    def _measured(self, pull: PullState, now: float) -> PullState:
        tracked = self._tracked[pull.name]
        ratio = tracked.ratio
        return replace(
            pull, layers=tuple(layer.view(now, ratio) for layer in tracked.layers.values())
        )

    def _gained(
        self, layers: Mapping[tuple[str, ...], LayerState], now: float
    ) -> dict[tuple[str, ...], int]:
        """Return the bytes of each layer downloaded since the last view; measure the unpacking."""
        gained, unpacked = dict.fromkeys(layers, 0), 0
        for key, layer in layers.items():
            if layer.phase is not Phase.PRESENT:
                downloaded, extracted = self._counted.get(key, (layer.progress, layer.extracted))
                gained[key] = max(layer.progress - downloaded, 0)
                if layer.total >= MEASURED_BYTES:
                    unpacked += max(layer.extracted - extracted, 0)
        self._counted = {key: (layer.progress, layer.extracted) for key, layer in layers.items()}
        extracting = {
            key
            for key, layer in layers.items()
            if layer.phase is Phase.EXTRACTING and layer.total >= MEASURED_BYTES
        }
        self._unpacking.record(unpacked, now, is_open=bool(extracting & self._unpacked))
        self._unpacked = extracting
        return gained

    def _with_sums(self, pull: PullState, sums: Sums, now: float) -> PullState:
        """Return a pull with the sums of its source, if that still responds, or else with these."""
        given_at = self._tracked[pull.name].given_at
        if given_at is None or pull.is_complete:
            return replace(pull, sums=sums)
        if not pull.sums.stalled_s or given_at == now:
            return pull
        lasting = replace(pull.sums, stalled_s=pull.sums.stalled_s + now - given_at)
        return replace(pull, sums=lasting)

    def _changes(self, pull: PullState) -> Iterator[tuple[PullState, LayerState]]:
        tracked = self._tracked[pull.name]
        before, tracked.shown = tracked.shown, pull
        known = {layer.name: layer for layer in before.layers}
        is_same = _visible_of_pull(pull) == _visible_of_pull(before)
        for layer in pull.layers:
            old = known.get(layer.name)
            is_changed = old is None or (old is not layer and _visible(old) != _visible(layer))
            has_error = layer.phase is Phase.FAILED and pull.error != before.error
            if is_changed or has_error or not is_same:
                yield pull, layer


def _visible(layer: LayerState) -> tuple[object, ...]:
    """Return what counts as a change; of the time without a byte, only whether it is a stall."""
    return (*_FIELDS(layer), layer.stalled_s > 0)


def _age_s(began_s: float, wall_s: float) -> float | None:
    return max(wall_s - began_s, 0.0) if began_s else None


def _key(pull: PullState, layer: LayerState) -> tuple[str, ...]:
    """Return the key of a layer: a digest is the same layer in every image of a node."""
    if not layer.name or " " in layer.name:
        return pull.name, layer.name, ""
    return pull.node, layer.name


def _standing(layer: LayerState) -> tuple[bool, int, int, bool]:
    is_here = layer.phase in COMPLETE
    return is_here, layer.progress, layer.extracted, layer.phase is not Phase.FAILED
