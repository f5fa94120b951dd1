"""Running pulls, as described by reports: layers and their phases. Pure: no IO and no clock.

A ``Tracker`` takes reports from any source, and returns a ``View`` whenever something is to be
shown. Reports may arrive in floods, but views are needed a few times a second, so ``apply`` only
stores the latest report of an item, and ``view`` interprets it:

* *Phase.* A report with an error means ``failed``, whatever phase it names. Otherwise a named phase
  applies. Without one, a known total that is reached means ``done``, any bytes ``downloading``, and
  no bytes ``waiting``. Only the latest report counts: a report without an error revives a failed
  item. A layer whose bytes have all arrived never goes back to ``downloading``.
* *Numbers.* A total of 0 or less is unknown, progress below 0 is 0. A total below the progress was
  too low an estimate and grows with it, so no share exceeds 100 %. A completed item is whole.
* *Finest level.* Reports on a layer, its image and the whole pod may cover the same bytes. So an
  image with layers is not an item itself, and the pod is one only while there is nothing else.
* *Unpacking.* If a layer's source names phases, unpacking is a part of the layer's work. Until the
  unpacked size is known, it is estimated: from the known layers of the image, from those of an
  earlier pull of the repository, or from the usual ratio.

* *Names.* A digest is the same layer in every image; any other name (``layer 3 of 7``) belongs to
  one image. ``IMAGE on NODE`` is an image of that node, which shares no layers with other nodes.

Sums, rates and the time left are computed in ``sums``.

All times are seconds of one monotonic clock, given as ``now``. Not thread-safe.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from pycrictl.pulls.model import COMPLETE, FINISHED, Phase, Pull, PullItem, Totals, View
from pycrictl.pulls.sums import Blob, Sums
from pycrictl.wire.progress import Report

MAX_ERROR: Final = 1024
"""Longest error text that is kept, in characters."""

UNPACKED_RATIO: Final = 2.5
"""Assumed ratio of unpacked to compressed size, until one is known for its repository."""

_REMEMBERED: Final = 1024

_NAME_CHARACTERS_PER_ITEM: Final = 512
_ARRIVED: Final = (Phase.WAITING, Phase.EXTRACTING)
_PHASES: Final[dict[str, Phase]] = {phase.value: phase for phase in Phase}


class Tracker:
    """Keeps the latest report of every item and sums them up on demand.

    Reports for new items beyond ``max_items`` are dropped and counted; the space for names is
    limited in proportion. ``is_known``: the source has reported its state.
    """

    def __init__(self, *, max_items: int = 10_000, window_s: float = 8.0) -> None:
        self.is_known = True
        self._images: dict[str, dict[str, _Tracked]] = {}
        self._blobs: dict[str, Blob] = {}
        self._began: dict[str, float] = {}
        self._given: dict[str, tuple[Totals, float]] = {}
        self._ratios: OrderedDict[str, float] = OrderedDict()
        self._finest: list[_Tracked] | None = None  # None: to be recomputed
        self._items_left = max_items
        self._characters_left = max_items * _NAME_CHARACTERS_PER_ITEM
        self._dropped = 0
        self._sums = Sums(window_s)

    def apply(
        self, report: Report, *, now: float, idle_s: float = 0.0, age_s: float | None = None
    ) -> None:
        """Store one report, to be interpreted as the module's docstring describes.

        An unknown ``phase`` counts as none. An error without numbers keeps the previous numbers.

        Args:
            idle_s: how long there has been no progress according to the source, maybe since
                before the first report.
            age_s: for how long the image's pull has run, if known.
        """
        image, layer = report.image, report.layer
        tracked = self._images.get(image, _NO_ITEMS).get(layer) or self._begin(image, layer, now)
        if tracked is None:
            return
        before, given = tracked.report, Totals.from_json(report.sums)
        # Reuse the names that are stored already, as every report has its own copies.
        report = report._replace(
            image=before.image, layer=before.layer, error=report.error[:MAX_ERROR], sums=None
        )
        named = _PHASES.get(report.phase) if report.phase else None
        if named is Phase.DOWNLOADING and 0 < report.total <= min(report.progress, before.progress):
            named = tracked.phase if tracked.phase in _ARRIVED else named
        if report.error and report.progress <= 0 and report.total <= 0:
            report = report._replace(progress=before.progress, total=before.total)
        if (
            report.progress != before.progress
            or report.extracted != before.extracted
            or named is not tracked.phase
        ):
            tracked.moved_at = now
        if idle_s > 0.0:
            tracked.moved_at = min(tracked.moved_at, now - idle_s)
        if named in COMPLETE:
            report = report._replace(extracted=max(report.extracted, before.extracted))
        tracked.report, tracked.phase, tracked.is_viewed = report, named, False
        if given is not None:
            self._given[before.image] = given, now
        if age_s is not None:
            self._began[before.image] = now - age_s
        blob = tracked.blob
        if not blob.is_seen:
            blob.see(tracked.look(now, self._ratio(before.image)))

    def view(self, now: float) -> View:
        """Return a snapshot at ``now``, in time proportional to the number of items."""
        items: list[PullItem] = []
        changed: list[PullItem] = []
        pairs: list[tuple[Blob, PullItem]] = []
        ratios = {image: self._ratio(image) for image in self._images}
        for tracked in self._finest_items():
            before = tracked.item
            if before is not None and tracked.is_viewed and before.phase in FINISHED:
                item = before
            else:
                item = tracked.look(now, ratios[tracked.report.image])
                if before is None or _visible(item) != _visible(before):
                    changed.append(item)
                tracked.item = item
                tracked.is_viewed = True
            items.append(item)
            pairs.append((tracked.blob, item))
        given = self._given_by_image(items, now) if self._given else None
        totals, images = self._sums.add_up(pairs, now, self._began, given)
        return View(
            tuple(items),
            tuple(changed),
            totals,
            now,
            self._dropped,
            images=images,
            is_known=self.is_known,
        )

    def forget(self, image: str) -> None:
        """Drop all items of an image, to make room for later ones while watching without end."""
        if (known := self._known_ratio(image)) is not None:
            self._ratios[_repository(image)] = known
            self._ratios.move_to_end(_repository(image))
            if len(self._ratios) > _REMEMBERED:
                self._ratios.popitem(last=False)
        group = self._images.pop(image, _NO_ITEMS)
        for tracked in group.values():
            self._items_left += 1
            self._characters_left += len(tracked.report.layer)
            tracked.blob.holders -= 1
            if not tracked.blob.holders:
                self._blobs.pop(_shared(image, tracked.report.layer), None)
        if group:
            self._characters_left += len(image)
        self._began.pop(image, None)
        self._given.pop(image, None)
        self._sums.forget(image)
        self._finest = None

    def replace_error(self, image: str, error: str) -> None:
        """Replace the error of an image's failed items; empty if it is reported elsewhere."""
        for tracked in self._images.get(image, _NO_ITEMS).values():
            if tracked.report.error:
                tracked.report = tracked.report._replace(error=error[:MAX_ERROR])
                tracked.phase = Phase.FAILED
                tracked.is_viewed = False

    def drop_given_sums(self) -> None:
        """Drop the sums from a source that no longer responds; they are added up here again."""
        self._given.clear()

    def _given_by_image(self, items: Sequence[PullItem], now: float) -> dict[str, Totals]:
        """Return the sums that the source has reported, except for images that are complete."""
        phases: dict[str, set[Phase]] = {}
        for item in items:
            phases.setdefault(item.image, set()).add(item.phase)
        found = {}
        for image, (totals, at) in self._given.items():
            own = phases.get(image, set())
            if own - COMPLETE:
                is_downloading = Phase.DOWNLOADING in own and Phase.EXTRACTING not in own
                later = totals.later(now - at, is_downloading=is_downloading)
                found[image] = replace(later, began=self._began.get(image))
        return found

    def measure_anew(self) -> None:
        """Restart measuring the overall rate, which included images that are now forgotten."""
        self._sums.measure_anew()

    def _ratio(self, image: str) -> float:
        """Return the known or assumed ratio of unpacked to compressed size of an image."""
        known = self._known_ratio(image)
        return self._ratios.get(_repository(image), UNPACKED_RATIO) if known is None else known

    def _known_ratio(self, image: str) -> float | None:
        packed = unpacked = 0
        for tracked in self._images.get(image, _NO_ITEMS).values():
            report = tracked.report
            if report.extracted_total > 0 and report.total > 0:
                packed += report.total
                unpacked += report.extracted_total
        return unpacked / packed if packed else None

    def _begin(self, image: str, layer: str, now: float) -> _Tracked | None:
        """Start an item; if there is no room, count the report as dropped and return None."""
        group = self._images.get(image, _NO_ITEMS)
        characters = len(layer) + (0 if group else len(image))
        if not self._items_left or characters > self._characters_left:
            self._dropped += 1
            return None
        self._items_left -= 1
        self._characters_left -= characters
        if group:
            image = next(iter(group.values())).report.image
        else:
            group = self._images[image] = {}
        shared = _shared(image, layer)
        blob = self._blobs.setdefault(shared, Blob()) if shared else Blob()
        blob.holders += 1
        tracked = group[layer] = _Tracked(Report(image, layer, 0, 0), blob, now)
        self._finest = None
        self._sums.start(image, now)
        return tracked

    def _finest_items(self) -> list[_Tracked]:
        if self._finest is None:
            found: list[_Tracked] = []
            for group in self._images.values():
                layers = [tracked for layer, tracked in group.items() if layer]
                found += layers or group.values()
            self._finest = [
                tracked for tracked in found if tracked.report.image or tracked.report.layer
            ] or found
        return self._finest


def pull_of(image: str, reports: Iterable[Report]) -> Pull:
    """Return the finished pull of an image, from the last reports on it."""
    tracker = Tracker()
    for report in reports:
        tracker.apply(report, now=0.0)
    return replace(tracker.view(0.0).pulls.get(image, Pull(image)), is_running=False)


@dataclass(slots=True, eq=False)
class _Tracked:
    """The latest report of one item, the phase that it names, and the item as last viewed."""

    report: Report
    blob: Blob
    moved_at: float
    phase: Phase | None = None
    item: PullItem | None = None
    is_viewed: bool = False

    def look(self, now: float, ratio: float) -> PullItem:
        """Interpret the report: determine its phase, and make its numbers consistent."""
        report, phase = self.report, self.phase
        progress = max(report.progress, 0)
        total = max(report.total, progress) if report.total > 0 else 0
        if report.error:
            phase = Phase.FAILED
        elif phase is None:
            if total and progress == total:
                phase = Phase.DONE
            else:
                phase = Phase.DOWNLOADING if progress else Phase.WAITING
        if phase in COMPLETE:
            progress = total = max(progress, total)
        extracted = max(report.extracted, 0)
        extracted_total = report.extracted_total
        extracted_total = max(extracted_total, extracted) if extracted_total > 0 else 0
        is_unpacked = bool(report.layer) and self.phase not in (None, Phase.PRESENT)
        is_estimated = is_unpacked and not extracted_total and total > 0
        if is_estimated:
            is_over = phase in COMPLETE and extracted > 0
            # A finished item has one fixed size, whenever it is viewed.
            ratio = UNPACKED_RATIO if phase in FINISHED else ratio
            extracted_total = extracted if is_over else max(int(total * ratio), extracted)
        if phase is Phase.DONE and is_unpacked:
            extracted = extracted_total
        return PullItem(
            report.image,
            report.layer,
            phase,
            progress,
            total,
            report.error,
            max(report.queue_position, 0),
            extracted,
            extracted_total,
            0.0 if phase in FINISHED else max(now - self.moved_at, 0.0),
            is_estimated,
            is_unpacked,
            report.behind,
            report.pod,
            min(max(report.resumed, 0), progress),
            report.digest,
        )


def _repository(image: str) -> str:
    """Return an image's name without its tag, digest, and what follows."""
    name = image.partition("@")[0].partition(" ")[0]
    head, colon, tag = name.rpartition(":")
    return head if colon and "/" not in tag else name


def _shared(image: str, layer: str) -> str:
    """Return the key of a layer that all images of its node share; empty for one image's own."""
    if not layer or " " in layer:
        return ""
    _, on, node = image.partition(" on ")
    return f"{layer}{on}{node}"


_NO_ITEMS: Final[dict[str, _Tracked]] = {}
_visible = attrgetter(
    *("phase", "progress", "total", "error", "queue_position", "extracted", "extracted_total"),
    *("behind", "pod", "resumed", "digest", "is_estimated", "is_unpacked"),
)
