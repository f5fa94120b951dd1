"""The pulls under way, as their source last reported them. Pure: no IO and no clock.

A ``Tracker`` takes states of pulls from any source, and returns a ``View`` whenever something is to
be shown. States may arrive in floods, but views are needed a few times a second, so ``apply`` only
stores the latest state of a pull, and ``view`` measures it (``pulls.meter``). The pull without a
name, a pod as a whole, is shown only while there is nothing else.

All times are seconds of one monotonic clock, given as ``now``. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Final

from pycrictl.pulls.meter import Meter
from pycrictl.pulls.state import LayerState, Phase, PullState, Sums, View

MAX_ERROR: Final = 1024
"""Longest error text that is kept, in characters."""

_NAME_CHARACTERS_PER_LAYER: Final = 512
_visible = attrgetter(*(name for name in LayerState.__slots__ if name != "idle_s"))
_visible_of_pull = attrgetter("place", "behind", "pods")


class Tracker:
    """Keeps the latest state of every pull, and measures and sums them up on demand.

    New layers beyond ``max_layers`` are dropped and counted; the space for names is limited in
    proportion. ``is_known``: the source has reported its state.
    """

    def __init__(self, *, max_layers: int = 10_000, window_s: float = 8.0) -> None:
        self.is_known = True
        self._pulls: dict[str, PullState] = {}
        self._shown: dict[str, dict[str, tuple[PullState, LayerState]]] = {}
        self._given_at: dict[str, float] = {}
        self._layers_left = max_layers
        self._characters_left = max_layers * _NAME_CHARACTERS_PER_LAYER
        self._dropped = 0
        self._meter = Meter(window_s)

    @property
    def pulls(self) -> Mapping[str, PullState]:
        """The pulls by name, as their source reported them."""
        return self._pulls

    def apply(self, pull: PullState, *, now: float) -> None:
        """Store the state of a pull, instead of the one before."""
        pull = self._fit(pull)
        if not pull.layers:
            return
        if len(pull.error) > MAX_ERROR:
            pull = replace(pull, error=pull.error[:MAX_ERROR])
        self._pulls[pull.name] = pull
        if pull.sums.count:
            self._given_at[pull.name] = now
        self._meter.see(pull, now)

    def view(self, now: float, wall_s: float | None = None) -> View:
        """Return a snapshot at ``now``, in time proportional to the number of layers.

        Args:
            wall_s: the same time on the wall clock; None if both clocks are the same.
        """
        wall_s = now if wall_s is None else wall_s
        shown = [pull for name, pull in self._pulls.items() if name or pull.has_layers]
        measured = [self._meter.measured(pull, now) for pull in shown or self._pulls.values()]
        *pulls, whole = self._meter.add_up(map(self._with_sums, measured), now, wall_s)
        pulls = [self._later(pull, now) for pull in pulls]
        changed = [change for pull in pulls for change in self._changes(pull)]
        return View(
            pulls={pull.name: pull for pull in pulls},
            changed=tuple(changed),
            sums=pulls[0].sums if len(pulls) == 1 else whole.sums,
            now=now,
            wall_s=wall_s,
            dropped=self._dropped,
            is_known=self.is_known,
        )

    def forget(self, name: str) -> None:
        """Drop a pull, to make room for later ones while watching without end."""
        pull = self._pulls.pop(name, None)
        if pull is not None:
            self._layers_left += len(pull.layers)
            self._characters_left += len(name) + sum(len(layer.name) for layer in pull.layers)
            self._meter.forget(pull)
        self._shown.pop(name, None)
        self._given_at.pop(name, None)

    def replace_error(self, name: str, error: str) -> None:
        """Replace the error of a failed pull; empty if it is reported elsewhere."""
        pull = self._pulls.get(name)
        if pull is not None and pull.has_failed:
            self._pulls[name] = replace(pull, error=error[:MAX_ERROR])

    def drop_given_sums(self) -> None:
        """Drop the sums from a source that no longer responds; they are added up here again."""
        self._given_at.clear()

    def measure_anew(self) -> None:
        """Restart measuring the overall rate, which included pulls that are now forgotten."""
        self._meter.measure_anew()

    def _fit(self, pull: PullState) -> PullState:
        """Return a pull with the layers for which there is room; count the others."""
        before = self._pulls.get(pull.name)
        known = {layer.name for layer in before.layers} if before is not None else set()
        names = {layer.name for layer in pull.layers}
        if names == known:
            return pull
        for gone in known - names:
            self._layers_left += 1
            self._characters_left += len(gone)
        kept: list[LayerState] = []
        for layer in pull.layers:
            if layer.name not in known:
                characters = len(layer.name) + (0 if known or kept else len(pull.name))
                if not self._layers_left or characters > self._characters_left:
                    self._dropped += 1
                    continue
                self._layers_left -= 1
                self._characters_left -= characters
            kept.append(layer)
        return pull if len(kept) == len(pull.layers) else replace(pull, layers=tuple(kept))

    def _with_sums(self, pull: PullState) -> PullState:
        """Return a pull with sums only if its source has added them up, and still responds."""
        is_given = pull.name in self._given_at and not pull.is_complete
        return pull if is_given or not pull.sums.count else replace(pull, sums=Sums())

    def _later(self, pull: PullState, now: float) -> PullState:
        """Return a pull whose stall, if it has one, has lasted until now."""
        at = self._given_at.get(pull.name, now)
        if not pull.sums.stalled_s or at == now or pull.is_complete:
            return pull
        sums = replace(pull.sums, stalled_s=pull.sums.stalled_s + now - at)
        return replace(pull, sums=sums)

    def _changes(self, pull: PullState) -> list[tuple[PullState, LayerState]]:
        before = self._shown.get(pull.name, {})
        shown = self._shown[pull.name] = {layer.name: (pull, layer) for layer in pull.layers}
        return [
            change
            for name, change in shown.items()
            if name not in before or not _is_same(before[name], change)
        ]


def _is_same(before: tuple[PullState, LayerState], after: tuple[PullState, LayerState]) -> bool:
    (pull_before, layer_before), (pull, layer) = before, after
    if layer is not layer_before and _visible(layer) != _visible(layer_before):
        return False
    if layer.phase is Phase.FAILED and pull.error != pull_before.error:
        return False
    return bool(_visible_of_pull(pull) == _visible_of_pull(pull_before))
