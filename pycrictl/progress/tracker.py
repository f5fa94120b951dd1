"""What is being pulled: items, phases, totals, rates and stalls. Pure: no IO and no clock.

A ``Tracker`` is fed with reports, from whatever source, and asked for a ``View`` whenever something
is to be shown. Reports come in floods and views a few times a second, so ``apply`` only stores the
latest report of an item, and ``view`` does the thinking:

* *Phase.* A phase that the report names holds. Without one, an error is ``failed``, a known total
  that is reached is ``done``, any byte is ``downloading`` and none is ``waiting``. An error is
  ``failed`` whatever the phase. Only the latest report counts: a failed item is alive again as soon
  as a report without error comes.
* *Numbers.* A total of 0 or less is unknown, progress below 0 is 0. A total below the progress was
  an estimate too low, and grows with it, so no share exceeds 100 %. A finished item is whole.
* *Finest level.* Reports about one layer, one image and the whole pod may speak of the same bytes.
  An image with layers is not an item itself, and the pod is one only while there is nothing else.
* *Shared layers.* A digest under two images is an item of both and counts once in the totals, as
  far as it has come under either.
* *Rate.* Bytes that were there at first sight, and layers that the runtime has already, were not
  downloaded now. When an item starts again from less, what it downloads again counts again.

All times are seconds of one monotonic clock, given as ``now``. Not thread-safe.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from pycrictl.progress.speed import Speed

if TYPE_CHECKING:
    from pycrictl.wire.progress import Report

__all__ = ["Awaited", "Item", "Phase", "Totals", "Tracker", "View"]

MAX_ERROR: Final = 1024
"""Longest error text that is kept, in characters."""

_NAME_CHARACTERS_PER_ITEM: Final = 512
_ETA_AFTER_S: Final = 3.0


class Phase(StrEnum):
    """Where an item stands (the ``phase`` key of the progress stream)."""

    WAITING = "waiting"
    DOWNLOADING = "downloading"
    EXTRACTING = "extracting"
    DONE = "done"
    PRESENT = "present"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Item:
    """One layer, image or pod at one moment.

    ``progress`` and ``total`` count compressed bytes in every phase. ``total`` is 0 while unknown.
    ``queue_position`` is 0 outside a queue. ``idle_s`` is the time since progress, extraction or
    phase last moved, and 0 for an item that is finished.
    """

    image: str
    layer: str
    phase: Phase
    progress: int
    total: int
    error: str
    queue_position: int
    extracted: int
    extracted_total: int
    idle_s: float

    @property
    def is_finished(self) -> bool:
        """Whether nothing more happens to it as far as is known: it has arrived or failed."""
        return self.phase in _FINISHED


@dataclass(frozen=True, slots=True)
class Awaited:
    """A pull without items yet; ``image`` is empty while unknown.

    ``is_begun`` says that the runtime has begun, so that the pull waits for its registry.
    """

    image: str
    is_begun: bool
    waited_s: float


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the finest level known, each digest counted once.

    ``progress`` and ``total`` leave out items of unknown total. ``done`` counts those present
    already as well. ``resumed`` are the bytes that were there at first sight. ``rate`` is in bytes
    a second, None in the first second; ``eta_s`` is None in the first three, while nothing moves
    and while an unfinished item's total is unknown.
    """

    progress: int
    total: int
    done: int
    count: int
    failed: int
    resumed: int
    rate: float | None
    eta_s: float | None

    @property
    def percent(self) -> float | None:
        """Share of ``total`` in percent, None while no total is known."""
        return 100.0 * self.progress / self.total if self.total > 0 else None


@dataclass(frozen=True, slots=True)
class View:
    """A picture of everything tracked at one moment, what a display needs and nothing else.

    ``items`` is ordered by first appearance, images first, layers within their image. ``changed``
    are those whose fields differ from the previous view, ``idle_s`` aside. ``dropped`` counts the
    reports that found no room. ``awaited`` is the source's word, given where there are no items.
    """

    items: tuple[Item, ...]
    changed: tuple[Item, ...]
    totals: Totals
    now: float
    dropped: int
    awaited: tuple[Awaited, ...] = ()


_PHASES: Final[dict[str, Phase]] = {phase.value: phase for phase in Phase}
_COMPLETE: Final = frozenset({Phase.DONE, Phase.PRESENT})
_FINISHED: Final = _COMPLETE | {Phase.FAILED}


class Tracker:
    """Keeps the latest report of every item and sums them up on demand.

    Args:
        max_items: reports for new items beyond so many are dropped and counted. The space for
            names is limited in proportion.
        window_s: the rate is measured over this many seconds.
    """

    def __init__(self, *, max_items: int = 10_000, window_s: float = 8.0) -> None:
        self._images: dict[str, dict[str, _Tracked]] = {}
        self._blobs: dict[str, _Blob] = {}
        self._finest: list[_Tracked] | None = None  # None: to be worked out again
        self._items_left = max_items
        self._characters_left = max_items * _NAME_CHARACTERS_PER_ITEM
        self._dropped = 0
        self._window_s = window_s
        self._speed = Speed(window_s)

    def apply(self, report: Report, *, now: float, idle_s: float = 0.0) -> None:
        """Take in one report, read as the module's docstring says.

        An unknown ``phase`` is none. An error without numbers leaves the numbers as they were.

        Args:
            idle_s: how long nothing has moved as far as the source knows, which may be since
                before the first report.
        """
        # Not kept as it is: every report brings its own copy of the names.
        image, layer, progress, total, error, phase, queue_position, extracted, extracted_total = (
            report
        )
        tracked = self._images.get(image, _NO_ITEMS).get(layer) or self._begin(image, layer, now)
        if tracked is None:
            return
        named = _PHASES.get(phase) if phase else None
        if error:
            error = error[:MAX_ERROR]
            if progress <= 0 and total <= 0:
                progress, total = tracked.progress, tracked.total
        if (
            progress != tracked.progress
            or extracted != tracked.extracted
            or named is not tracked.phase
        ):
            tracked.moved_at = now
        if idle_s > 0.0:
            tracked.moved_at = min(tracked.moved_at, now - idle_s)
        tracked.progress = progress
        tracked.total = total
        tracked.error = error
        tracked.phase = named
        tracked.queue_position = queue_position
        tracked.extracted = extracted
        tracked.extracted_total = extracted_total
        tracked.is_viewed = False
        if not tracked.blob.is_seen:
            tracked.blob.see(tracked.look(now))

    def view(self, now: float) -> View:
        """Return the picture at ``now``; the time that takes grows with the number of items."""
        items: list[Item] = []
        changed: list[Item] = []
        furthest: dict[_Blob, Item] = {}
        for tracked in self._finest_items():
            before = tracked.item
            if before is not None and tracked.is_viewed and before.phase in _FINISHED:
                item = before
            else:
                item = tracked.look(now)
                if before is None or _visible(item) != _visible(before):
                    changed.append(item)
                tracked.item = item
                tracked.is_viewed = True
            items.append(item)
            twin = furthest.get(tracked.blob)
            if twin is None or _standing(item) > _standing(twin):
                furthest[tracked.blob] = item
        totals = self._sum_up(furthest, now)
        return View(tuple(items), tuple(changed), totals, now, self._dropped)

    def forget(self, image: str) -> None:
        """Drop all items of an image, so that watching without end has room for the next ones."""
        group = self._images.pop(image, _NO_ITEMS)
        for tracked in group.values():
            self._items_left += 1
            self._characters_left += len(tracked.layer)
            tracked.blob.holders -= 1
            if not tracked.blob.holders:
                self._blobs.pop(tracked.layer, None)
        if group:
            self._characters_left += len(image)
        self._finest = None

    def measure_anew(self) -> None:
        """Forget the rate so far, which was that of other items than those that are left."""
        self._speed = Speed(self._window_s)

    def _begin(self, image: str, layer: str, now: float) -> _Tracked | None:
        """Start an item, or return None and count the report if there is no room for it."""
        group = self._images.get(image, _NO_ITEMS)
        characters = len(layer) + (0 if group else len(image))
        if not self._items_left or characters > self._characters_left:
            self._dropped += 1
            return None
        self._items_left -= 1
        self._characters_left -= characters
        if group:
            image = next(iter(group.values())).image
        else:
            group = self._images[image] = {}
        blob = self._blobs.setdefault(layer, _Blob()) if layer else _Blob()
        blob.holders += 1
        tracked = group[layer] = _Tracked(image, layer, blob, now)
        self._finest = None
        self._speed.start(now)
        return tracked

    def _finest_items(self) -> list[_Tracked]:
        if self._finest is None:
            found: list[_Tracked] = []
            for group in self._images.values():
                layers = [tracked for layer, tracked in group.items() if layer]
                found += layers or group.values()
            self._finest = [tracked for tracked in found if tracked.image or tracked.layer] or found
        return self._finest

    def _sum_up(self, furthest: dict[_Blob, Item], now: float) -> Totals:
        progress = total = done = failed = resumed = gained = left = 0
        has_unknown = False
        for blob, item in furthest.items():
            gained += blob.advance(item)
            resumed += blob.resumed
            if item.total:
                progress += item.progress
                total += item.total
            if item.phase in _COMPLETE:
                done += 1
            elif item.phase is Phase.FAILED:
                failed += 1
            elif item.total:
                left += item.total - item.progress
            else:
                has_unknown = True
        self._speed.record(gained, now)
        rate = self._speed.rate(now)
        eta_s = None
        if rate and not has_unknown and self._speed.measured_s(now) >= _ETA_AFTER_S:
            eta_s = left / rate
        return Totals(
            progress=progress,
            total=total,
            done=done,
            count=len(furthest),
            failed=failed,
            resumed=resumed,
            rate=rate,
            eta_s=eta_s,
        )


@dataclass(slots=True, eq=False)
class _Blob:
    """The bytes behind an item, which the same layer of another image shares.

    Attributes:
        is_seen: whether a report of it has come.
        counted: up to where they have been counted for the rate.
        resumed: how many of them were there at first sight.
        holders: how many items they belong to.
    """

    is_seen: bool = False
    counted: int = 0
    resumed: int = 0
    holders: int = 0

    def see(self, item: Item) -> None:
        """Take the first report for what was there before."""
        self.is_seen = True
        self.counted = self.resumed = item.progress

    def advance(self, item: Item) -> int:
        """Go to where the furthest of the items stands; return the bytes downloaded for it."""
        gained = 0
        if item.phase is Phase.PRESENT:
            self.resumed = item.progress
        else:
            gained = max(item.progress - self.counted, 0)
            self.resumed = min(self.resumed, item.progress)
        self.counted = item.progress
        return gained


@dataclass(slots=True, eq=False)
class _Tracked:
    """The latest report of one item, as it came, and the ``Item`` last shown of it."""

    image: str
    layer: str
    blob: _Blob
    moved_at: float
    progress: int = 0
    total: int = 0
    error: str = ""
    phase: Phase | None = None
    queue_position: int = 0
    extracted: int = 0
    extracted_total: int = 0
    item: Item | None = None
    is_viewed: bool = False

    def look(self, now: float) -> Item:
        """Read the report: its phase, and numbers that make sense together."""
        progress = max(self.progress, 0)
        total = max(self.total, progress) if self.total > 0 else 0
        phase = self.phase
        if self.error:
            phase = Phase.FAILED
        elif phase is None:
            if total and progress == total:
                phase = Phase.DONE
            else:
                phase = Phase.DOWNLOADING if progress else Phase.WAITING
        if phase in _COMPLETE:
            progress = total = max(progress, total)
        extracted = max(self.extracted, 0)
        extracted_total = max(self.extracted_total, extracted) if self.extracted_total > 0 else 0
        return Item(
            self.image,
            self.layer,
            phase,
            progress,
            total,
            self.error,
            max(self.queue_position, 0),
            extracted,
            extracted_total,
            0.0 if phase in _FINISHED else max(now - self.moved_at, 0.0),
        )


_NO_ITEMS: Final[dict[str, _Tracked]] = {}
_visible = attrgetter(
    "phase", "progress", "total", "error", "queue_position", "extracted", "extracted_total"
)


def _standing(item: Item) -> tuple[bool, int, bool]:
    return item.phase in _COMPLETE, item.progress, item.phase is not Phase.FAILED
