"""The items of a view by image, and what is said about each image. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

from pycrictl.pulls import model
from pycrictl.pulls.model import COMPLETE, STALLED_S, Awaited, Item, Phase, Totals, View
from pycrictl.show.displays import phrases
from pycrictl.units import duration_in_words, format_bytes, format_part, ordinal, plural

ACTIVE: Final = frozenset({Phase.DOWNLOADING, Phase.EXTRACTING})
AWAITED_S: Final = 10.0
"""From this age on the display says how long a pull has been waiting for its registry."""


def is_stalled(item: Item) -> bool:
    """Return whether bytes of this item should be coming, but have not for a while."""
    return item.phase is Phase.DOWNLOADING and item.idle_s >= STALLED_S


def stall(item: Item) -> str:
    """Return ``no data for 42 s``."""
    return model.stall(item.idle_s)


def awaited(pull: Awaited) -> tuple[str, str]:
    """Return ``waiting for the registry, 12 s``, and for little room ``waiting, 12 s``."""
    age = f", {duration_in_words(int(pull.waited_s))}" if pull.waited_s >= AWAITED_S else ""
    return f"waiting for the {'registry' if pull.is_begun else 'runtime'}{age}", f"waiting{age}"


def awaited_name(pull: Awaited) -> str:
    """Return the reference, safe to show, if it is known."""
    return phrases.short_image(pull.image) or "an image"


def waits_to_unpack(item: Item) -> bool:
    """Return whether all of an item is here, and it is not its turn to be unpacked."""
    return item.phase is Phase.WAITING and 0 < item.total == item.progress


def queue(item: Item) -> str:
    """Return ``queued, 2nd, behind default/web`` of an item in a queue."""
    behind = f", behind {phrases.short_image(item.behind)}" if item.behind else ""
    return f"queued, {ordinal(item.queue_position)}{behind}"


def failure(item: Item) -> str:
    """Return ``failed: REASON`` of an item that failed."""
    reason = phrases.clean(item.error)
    return f"failed: {reason}" if reason else "failed"


@dataclass(frozen=True, slots=True)
class ImagePull:
    """What is known of one image at one moment; ``image`` is empty for a whole pod."""

    image: str
    items: tuple[Item, ...]

    @property
    def name(self) -> str:
        """The reference, and the pod that it is for if that is known, safe to show."""
        name, pod = phrases.short_image(self.image) or "pod", self.items[0].pod
        return f"{name} for {phrases.clean(pod)}" if pod else name

    @property
    def has_layers(self) -> bool:
        """Whether its layers are known, rather than one item for all."""
        return len(self.items) > 1 or bool(self.items[0].layer)

    @property
    def is_complete(self) -> bool:
        """Whether every item has arrived."""
        return all(item.phase in COMPLETE for item in self.items)

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens as far as is known: each item has arrived or failed."""
        return all(item.is_finished for item in self.items)

    def count(self, *phases: Phase) -> int:
        """Return how many items are in one of these phases."""
        return sum(item.phase in phases for item in self.items)

    @property
    def progress(self) -> int:
        """Compressed bytes that are here."""
        return sum(item.progress for item in self.items)

    @property
    def total(self) -> int:
        """Compressed bytes of all items whose size is known."""
        return sum(item.total for item in self.items)

    @property
    def has_moved(self) -> bool:
        """Whether anything of it has come, or is being waited for at the registry."""
        still = (Phase.WAITING, Phase.FAILED)
        return any(item.phase not in still or item.progress for item in self.items)

    @property
    def failed(self) -> Item | None:
        """The item with the last cause of its failure; None if nothing has failed."""
        failed = [item for item in self.items if item.phase is Phase.FAILED]
        return next(
            (item for item in reversed(failed) if item.error), failed[-1] if failed else None
        )

    @property
    def counts(self) -> str:
        """``12/31 done · 6 waiting``."""
        words = [f"{self.count(*COMPLETE)}/{len(self.items)} done"]
        words += [
            f"{number} {phase}"
            for phase in (Phase.WAITING, Phase.FAILED)
            if (number := self.count(phase))
        ]
        return " · ".join(words)

    def summary(self, elapsed_s: float) -> str:
        """Return the image's last line, without its name: how the pull ended, or how far it got."""
        words = []
        if (failed := self.failed) is not None:
            words.append(failure(failed))
        elif not self.is_complete:
            words.append(f"at {format_part(self.progress, self.total)}")
        if self.has_layers:
            layers = plural(len(self.items), "layer")
            words.append(
                layers if self.is_complete else f"{self.count(*COMPLETE)} of {layers} done"
            )
        if self.is_complete:
            words.append(format_bytes(max(self.total, self.progress)))
        if self.count(Phase.PRESENT) == len(self.items):
            words.append("already present")
        elif self.has_moved or elapsed_s >= 1.0:  # else it has failed before it was seen
            verb = "in" if self.is_complete else "after"
            words.append(f"{verb} {duration_in_words(elapsed_s)}")
        return "  ".join(words)


def by_image(items: Iterable[Item]) -> list[ImagePull]:
    """Return the images in the order of their first items."""
    found: dict[str, list[Item]] = {}
    for item in items:
        found.setdefault(item.image, []).append(item)
    return [ImagePull(image, tuple(parts)) for image, parts in found.items()]


class History:
    """What a display remembers of the views that it has shown.

    Args:
        note: shows one line beside them.
    """

    def __init__(self, note: Callable[[str], object]) -> None:
        self._note = note
        self._spans: dict[str, tuple[float, float | None]] = {}
        self.last: View | None = None

    def look(self, view: View) -> list[ImagePull]:
        """Remember a view, and from when to when each image is on its way; return its images."""
        if view.dropped and not (self.last and self.last.dropped):
            kept = f"only {len(view.items)} items are kept"
            self._note(f"{kept}; others were reported and are not shown")
        self.last = view
        pulls = by_image(view.items)
        for pull in pulls:
            began, ended = self._spans.get(pull.image, (view.now, None))
            totals = view.images.get(pull.image)
            if totals is not None and totals.began is not None:
                began = totals.began
            if not pull.is_over:
                ended = None
            elif ended is None:
                ended = view.now
            self._spans[pull.image] = began, ended
        return pulls

    def images(self) -> list[ImagePull]:
        """Return the images of the last view."""
        return by_image(self.last.items) if self.last else []

    def summary(self, pull: ImagePull) -> str:
        """Return the last line of one of them, without its name."""
        now = self.last.now if self.last else 0.0
        began, ended = self._spans.get(pull.image, (now, None))  # Ctrl-C may have come between
        return pull.summary((now if ended is None else ended) - began)

    def forget(self, images: Collection[str]) -> None:
        """Forget images that have ended for good: what comes under their names is another pull."""
        for image in images:
            self._spans.pop(image, None)
        if self.last:
            left = tuple(item for item in self.last.items if item.image not in images)
            self.last = replace(self.last, items=left)


def amount(totals: Totals) -> phrases.Amount:
    """Return how far something is."""
    return phrases.Amount(
        totals.progress,
        totals.total,
        None if 0 < totals.total == totals.progress else totals.rate,
        totals.eta_s,
        totals.share,
        totals.extracted,
        totals.extracted_total,
        totals.is_estimated,
    )


def totals(view: View) -> tuple[phrases.Amount, list[str]]:
    """Return how far all items are, and the words ``4/6 layers``, ``1 image`` and ``1 failed``."""
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
    return amount(totals), words
