"""The items of a view by image, and texts about each image. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from pycrictl.pulls import model
from pycrictl.pulls.model import COMPLETE, STALLED_S, Awaited, Phase, Pull, PullItem, View
from pycrictl.show.displays import phrases
from pycrictl.units import duration_in_words, format_bytes, format_part, ordinal, plural

ACTIVE: Final = frozenset({Phase.DOWNLOADING, Phase.EXTRACTING})
AWAITED_S: Final = 10.0
"""Age from which the display shows how long a pull has been waiting for its registry."""


def is_stalled(item: PullItem) -> bool:
    return item.phase is Phase.DOWNLOADING and item.idle_s >= STALLED_S


def stall(item: PullItem) -> str:
    return model.stall(item.idle_s)


def awaited(pull: Awaited) -> str:
    """Return ``waiting for the registry, 12 s``."""
    age = f", {duration_in_words(int(pull.waited_s))}" if pull.waited_s >= AWAITED_S else ""
    return f"waiting for the {'registry' if pull.is_begun else 'runtime'}{age}"


def awaited_name(pull: Awaited) -> str:
    return phrases.short_image(pull.image) or "an image"


def waits_to_unpack(item: PullItem) -> bool:
    """Return whether an item has fully arrived and is waiting to be unpacked."""
    return item.phase is Phase.WAITING and 0 < item.total == item.progress


def queue(item: PullItem) -> str:
    behind = f", behind {phrases.short_image(item.behind)}" if item.behind else ""
    return f"queued, {ordinal(item.queue_position)}{behind}"


def failure(item: PullItem) -> str:
    reason = phrases.clean(item.error)
    return f"failed: {reason}" if reason else "failed"


def name(pull: Pull) -> str:
    found, pod = phrases.short_image(pull.image) or "pod", pull.items[0].pod
    return f"{found} for {phrases.clean(pod)}" if pod else found


def has_moved(pull: Pull) -> bool:
    still = (Phase.WAITING, Phase.FAILED)
    return any(item.phase not in still or item.progress for item in pull.items)


def counts(pull: Pull) -> str:
    words = [f"{pull.count(*COMPLETE)}/{len(pull.items)} done"]
    words += [
        f"{number} {phase}"
        for phase in (Phase.WAITING, Phase.FAILED)
        if (number := pull.count(phase))
    ]
    return " · ".join(words)


def summary(pull: Pull, elapsed_s: float) -> str:
    words = []
    progress, total = (pull.totals.progress, pull.totals.total) if pull.totals else (0, 0)
    if (failed := pull.failed) is not None:
        words.append(failure(failed))
    elif not pull.is_complete:
        words.append(f"at {format_part(progress, total)}")
    if pull.has_layers:
        layers = plural(len(pull.items), "layer")
        words.append(layers if pull.is_complete else f"{pull.count(*COMPLETE)} of {layers} done")
    if pull.is_complete:
        words.append(format_bytes(max(total, progress)))
    if pull.count(Phase.PRESENT) == len(pull.items):
        words.append("already present")
    elif has_moved(pull) or elapsed_s >= 1.0:  # else it has failed before it was seen
        verb = "in" if pull.is_complete else "after"
        words.append(f"{verb} {duration_in_words(elapsed_s)}")
    return "  ".join(words)


class History:
    def __init__(self, note: Callable[[str], object]) -> None:
        self._note = note
        self._spans: dict[str, tuple[float, float | None]] = {}
        self.last: View | None = None

    def look(self, view: View) -> list[Pull]:
        """Store a view, and when the pull of each image began and ended; return its pulls."""
        if view.dropped and not (self.last and self.last.dropped):
            kept = f"only {len(view.items)} items are kept"
            self._note(f"{kept}; others were reported and are not shown")
        self.last = view
        pulls = self.pulls
        for pull in pulls:
            began, ended = self._spans.get(pull.image, (view.now, None))
            if pull.totals is not None and pull.totals.began is not None:
                began = pull.totals.began
            if not pull.is_over:
                ended = None
            elif ended is None:
                ended = view.now
            self._spans[pull.image] = began, ended
        return pulls

    @property
    def pulls(self) -> list[Pull]:
        return list(self.last.pulls.values()) if self.last else []

    def summary(self, pull: Pull) -> str:
        now = self.last.now if self.last else 0.0
        began, ended = self._spans.get(pull.image, (now, None))  # Ctrl-C may interrupt look()
        return summary(pull, (now if ended is None else ended) - began)

    def forget(self, images: Collection[str]) -> None:
        """Forget images whose pulls have ended: the same name then means another pull."""
        for image in images:
            self._spans.pop(image, None)
        if self.last:
            left = tuple(item for item in self.last.items if item.image not in images)
            self.last = replace(self.last, items=left)


def words_of_totals(view: View) -> list[str]:
    totals = view.totals
    noun = "pod"
    if any(item.image for item in view.items):
        noun = "layer" if any(item.layer for item in view.items) else "image"
    words = [f"{totals.done}/{plural(totals.count, noun)}"]
    if totals.unpacking and totals.eta_s is None and noun == "layer":
        words = [totals.unpacking]
    if totals.to_come:
        words.append(f"{plural(totals.to_come, 'image')} to come")
    if totals.failed:
        words.append(f"{totals.failed} failed")
    return words
