"""The items of a view by image, and texts about each image. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from pycrictl.base.units import duration_in_words, format_bytes, format_part, plural
from pycrictl.pulls import words
from pycrictl.pulls.state import COMPLETE, LayerState, Phase, PullState, View
from pycrictl.show.displays import phrases

ACTIVE: Final = frozenset({Phase.DOWNLOADING, Phase.EXTRACTING})
AWAITED_S: Final = 10.0
"""Age from which the display shows how long a pull has been waiting for its registry."""


def stall(layer: LayerState) -> str:
    return words.stall(layer.stalled_s)


def awaited(pull: PullState, wall_s: float) -> str:
    """Return ``waiting for the registry, 12 s``, or the place in the line."""
    if pull.place:
        return queue(pull)
    waited_s = waited(pull, wall_s)
    age = f", {duration_in_words(int(waited_s))}" if waited_s >= AWAITED_S else ""
    return f"waiting for the {'registry' if pull.is_begun else 'runtime'}{age}"


def waited(pull: PullState, wall_s: float) -> float:
    return max(wall_s - pull.began_s, 0.0) if pull.began_s else 0.0


def awaited_name(pull: PullState) -> str:
    return phrases.short_image(pull.image) or "an image"


def waits_to_unpack(layer: LayerState) -> bool:
    """Return whether a layer has fully arrived and is waiting to be unpacked."""
    return layer.phase is Phase.WAITING and 0 < layer.total == layer.progress


def queue(pull: PullState) -> str:
    return words.queue(pull.place, phrases.short_image(pull.behind), words.starts_in(pull))


def failure(pull: PullState) -> str:
    reason = phrases.clean(pull.error)
    return f"failed: {reason}" if reason else "failed"


def name(pull: PullState) -> str:
    shown, pod = phrases.short_image(pull.name) or "pod", pull.pod
    return f"{shown} for {phrases.clean(pod)}" if pod else shown


def counts(pull: PullState) -> str:
    parts = [f"{pull.count(*COMPLETE)}/{len(pull.layers)} done"]
    parts += [
        f"{number} {phase}"
        for phase in (Phase.WAITING, Phase.FAILED)
        if (number := pull.count(phase))
    ]
    return " · ".join(parts)


def summary(pull: PullState, elapsed_s: float) -> str:
    parts = []
    progress, total = pull.sums.progress, pull.sums.total
    if pull.has_failed:
        parts.append(failure(pull))
    elif not pull.is_complete:
        parts.append(f"at {format_part(progress, total)}")
    if pull.has_layers:
        layers = plural(len(pull.layers), "layer")
        parts.append(layers if pull.is_complete else f"{pull.count(*COMPLETE)} of {layers} done")
    if pull.is_complete:
        parts.append(format_bytes(max(total, progress)))
    if pull.count(Phase.PRESENT) == len(pull.layers):
        parts.append("already present")
    elif pull.has_started or elapsed_s >= 1.0:  # else it has failed before it was seen
        verb = "in" if pull.is_complete else "after"
        parts.append(f"{verb} {duration_in_words(elapsed_s)}")
    return "  ".join(parts)


class History:
    """The last view, and when each of its pulls began and ended."""

    def __init__(self) -> None:
        self._spans: dict[str, tuple[float, float | None]] = {}
        self.last: View | None = None

    def add(self, view: View) -> list[PullState]:
        """Store a view; return its pulls."""
        self.last = view
        for name, pull in view.pulls.items():
            began_s, ended_s = self._spans.get(name, (view.wall_s, None))
            if not pull.is_over:
                ended_s = None
            elif ended_s is None:
                ended_s = view.wall_s
            self._spans[name] = pull.began_s or began_s, ended_s
        return self.pulls

    @property
    def pulls(self) -> list[PullState]:
        return list(self.last.pulls.values()) if self.last else []

    def summary(self, pull: PullState) -> str:
        now_s = self.last.wall_s if self.last else 0.0
        began_s, ended_s = self._spans.get(pull.name, (now_s, None))  # Ctrl-C may interrupt add()
        return summary(pull, (now_s if ended_s is None else ended_s) - began_s)

    def forget(self, names: Collection[str]) -> None:
        """Forget pulls that have ended: the same name then means another pull."""
        for name in names:
            self._spans.pop(name, None)
        if self.last:
            left = {name: pull for name, pull in self.last.pulls.items() if name not in names}
            self.last = replace(self.last, pulls=left)


def words_of_sums(view: View) -> list[str]:
    sums, noun = view.sums, "pod"
    if any(pull.has_layers for pull in view.pulls.values()):
        noun = "layer"
    elif any(view.pulls):
        noun = "image"
    parts = [f"{sums.done}/{plural(sums.count, noun)}"]
    if sums.unpacking and sums.eta_s is None and noun == "layer":
        parts = [sums.unpacking]
    if sums.to_come:
        parts.append(f"{plural(sums.to_come, 'image')} to come")
    if sums.failed:
        parts.append(f"{sums.failed} failed")
    return parts
