"""The items of a view put together by image, and what is said of each image. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from pycrictl.progress.tracker import Awaited, Item, Phase, View
from pycrictl.show.displays import phrases
from pycrictl.units import format_bytes

COMPLETE: Final = frozenset({Phase.DONE, Phase.PRESENT})
ACTIVE: Final = frozenset({Phase.DOWNLOADING, Phase.EXTRACTING})
STALL_S: Final = 30.0
"""A download without a byte for this long is said to stall."""

AWAITED_S: Final = 10.0
"""From this age on it is told how long a pull has been waiting for its registry."""


def is_stalled(item: Item) -> bool:
    """Whether bytes should come for this item, and have not for a while."""
    return item.phase is Phase.DOWNLOADING and item.idle_s >= STALL_S


def stall(item: Item) -> str:
    """``no data for 42 s``."""
    return f"no data for {phrases.duration(int(item.idle_s))}"


def awaited(pull: Awaited) -> tuple[str, str]:
    """``waiting for the registry, 12 s``, and the same for a narrow place: ``waiting, 12 s``."""
    age = f", {phrases.duration(int(pull.waited_s))}" if pull.waited_s >= AWAITED_S else ""
    return f"waiting for the {'registry' if pull.is_begun else 'runtime'}{age}", f"waiting{age}"


def awaited_name(pull: Awaited) -> str:
    """The reference, safe to show, if it is known."""
    return phrases.short_image(pull.image) or "an image"


def failure(item: Item) -> str:
    """``failed: REASON`` of an item that failed."""
    reason = phrases.clean(item.error)
    return f"failed: {reason}" if reason else "failed"


@dataclass(frozen=True, slots=True)
class ImagePull:
    """What is known of one image at one moment; ``image`` is empty for a whole pod."""

    image: str
    items: tuple[Item, ...]

    @property
    def name(self) -> str:
        """The reference, safe to show."""
        return phrases.short_image(self.image) or "pod"

    @property
    def has_layers(self) -> bool:
        """Whether this is told layer by layer, rather than by one item for all."""
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
        """How many items are in one of ``phases``."""
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
        """The image's last line, without its name: how the pull ended, or how far it got."""
        words = []
        failed = [item for item in self.items if item.phase is Phase.FAILED]
        if failed:
            words.append(failure(failed[0]))
        elif not self.is_complete:
            words.append(f"at {phrases.part(self.progress, self.total)}")
        if self.has_layers:
            layers = phrases.plural(len(self.items), "layer")
            words.append(
                layers if self.is_complete else f"{self.count(*COMPLETE)} of {layers} done"
            )
        if self.is_complete:
            words.append(format_bytes(max(self.total, self.progress)))
        if self.count(Phase.PRESENT) == len(self.items):
            words.append("already present")
        else:
            verb = "in" if self.is_complete else "after"
            words.append(f"{verb} {phrases.duration(elapsed_s)}")
        return "  ".join(words)


def by_image(items: Iterable[Item]) -> list[ImagePull]:
    """The images in the order of their first items."""
    found: dict[str, list[Item]] = {}
    for item in items:
        found.setdefault(item.image, []).append(item)
    return [ImagePull(image, tuple(parts)) for image, parts in found.items()]


class Stopwatch:
    """How long each image has been on its way, counted from the first look at it."""

    def __init__(self) -> None:
        self._spans: dict[str, tuple[float, float | None]] = {}

    def look(self, pulls: Iterable[ImagePull], now: float) -> None:
        """Notes which images have begun or ended by ``now`` (monotonic seconds)."""
        for pull in pulls:
            began, ended = self._spans.get(pull.image, (now, None))
            if not pull.is_over:
                ended = None
            elif ended is None:
                ended = now
            self._spans[pull.image] = began, ended

    def forget(self, images: Iterable[str]) -> None:
        """These have ended for good: what comes under their names is another pull."""
        for image in images:
            self._spans.pop(image, None)

    def elapsed_s(self, image: str, now: float) -> float:
        """Seconds from the first look until the end, or until ``now`` while there is none."""
        began, ended = self._spans.get(image, (now, None))
        return (now if ended is None else ended) - began


def dropped(view: View) -> str:
    """What is said when more was reported than is kept."""
    return f"only {len(view.items)} items are kept; others were reported and are not shown"


class TotalsWords(NamedTuple):
    """Totals as words; what is not known, or not worth a word, is empty."""

    size: str
    rate: str
    eta: str
    done: str
    failed: str


def totals_words(view: View) -> TotalsWords:
    """``38.1/61.3 MiB``, ``10.2 MiB/s``, ``ETA 0:02``, ``4/6 layers``, ``1 failed``."""
    totals = view.totals
    noun = "pod"
    if any(item.image for item in view.items):
        noun = "layer" if any(item.layer for item in view.items) else "image"
    known = totals.progress if totals.total else sum(item.progress for item in view.items)
    return TotalsWords(
        size=phrases.part(known, totals.total),
        rate="" if totals.rate is None else f"{format_bytes(totals.rate):>9}/s",
        eta="" if totals.eta_s is None else f"ETA {phrases.clock(totals.eta_s)}",
        done=f"{totals.done}/{phrases.plural(totals.count, noun)}",
        failed=f"{totals.failed} failed" if totals.failed else "",
    )
