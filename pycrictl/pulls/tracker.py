"""What is being pulled, as reports say it: layers and their phases. Pure: no IO and no clock.

A ``Tracker`` is fed with reports, from whatever source, and asked for a ``View`` whenever something
is to be shown. Reports come in floods and views a few times a second, so ``apply`` only stores the
latest report of an item, and ``view`` does the thinking:

* *Phase.* A phase that the report names holds. Without one, an error is ``failed``, a known total
  that is reached is ``done``, any byte is ``downloading`` and none is ``waiting``. An error is
  ``failed`` whatever the phase. Only the latest report counts: a failed item is alive again as soon
  as a report without error comes.
  A layer whose bytes are all there never goes back to ``downloading``.
* *Numbers.* A total of 0 or less is unknown, progress below 0 is 0. A total below the progress was
  an estimate too low, and grows with it, so no share exceeds 100 %. A finished item is whole.
* *Finest level.* Reports about one layer, one image and the whole pod may speak of the same bytes.
  An image with layers is not an item itself, and the pod is one only while there is nothing else.
* *Unpacking.* Of a layer whose source names its phases, unpacking is a part of the work. Its
  unpacked size is estimated while nobody knows it: from the layers of its image that are known,
  from those of an earlier pull of its repository, or from what layers usually shrink by.

* *Names.* A digest is the same layer under each image; any other name (``layer 3 of 7``) is one
  image's own. ``IMAGE on NODE`` is an image of that node, whose layers are its own as well.

Sums, rates and the time left are the business of ``sums``.

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
"""How much larger a layer usually is when it is unpacked, before any of its image is known."""

_REMEMBERED: Final = 1024

_NAME_CHARACTERS_PER_ITEM: Final = 512
_ARRIVED: Final = (Phase.WAITING, Phase.EXTRACTING)
_PHASES: Final[dict[str, Phase]] = {phase.value: phase for phase in Phase}


class Tracker:
    """Keeps the latest report of every item and sums them up on demand.

    Reports for new items beyond ``max_items`` are dropped and counted; the space for names is
    limited in proportion. ``is_known``: the source has said what it has.
    """

    def __init__(self, *, max_items: int = 10_000, window_s: float = 8.0) -> None:
        self.is_known = True
        self._images: dict[str, dict[str, _Tracked]] = {}
        self._blobs: dict[str, Blob] = {}
        self._began: dict[str, float] = {}
        self._given: dict[str, tuple[Totals, float]] = {}
        self._ratios: OrderedDict[str, float] = OrderedDict()
        self._finest: list[_Tracked] | None = None  # None: to be worked out again
        self._items_left = max_items
        self._characters_left = max_items * _NAME_CHARACTERS_PER_ITEM
        self._dropped = 0
        self._sums = Sums(window_s)

    def apply(
        self, report: Report, *, now: float, idle_s: float = 0.0, age_s: float | None = None
    ) -> None:
        """Take in one report, read as the module's docstring says.

        An unknown ``phase`` is none. An error without numbers leaves the numbers as they were.

        Args:
            idle_s: how long nothing has moved as far as the source knows, which may be since
                before the first report.
            age_s: for how long the image's pull has run, if that is known.
        """
        image, layer = report.image, report.layer
        tracked = self._images.get(image, _NO_ITEMS).get(layer) or self._begin(image, layer, now)
        if tracked is None:
            return
        before, given = tracked.report, Totals.from_json(report.sums)
        # The names that are kept already: every report brings its own copy of them.
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
        """Return the picture at ``now``; the time that takes grows with the number of items."""
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
        """Drop all items of an image, so that watching without end has room for the next ones."""
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
        """Give the failed items of an image another reason; empty if others say it."""
        for tracked in self._images.get(image, _NO_ITEMS).values():
            if tracked.report.error:
                tracked.report = tracked.report._replace(error=error[:MAX_ERROR])
                tracked.phase = Phase.FAILED
                tracked.is_viewed = False

    def drop_given_sums(self) -> None:
        """Add up anew what a source has said that does not answer any more."""
        self._given.clear()

    def _given_by_image(self, items: Sequence[PullItem], now: float) -> dict[str, Totals]:
        """Return the sums of images as their source has said them; what has arrived is whole."""
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
        """Forget the rate of all together, which was that of others than those that are left."""
        self._sums.measure_anew()

    def _ratio(self, image: str) -> float:
        """Return how much larger the layers of an image get by unpacking, as far as is known."""
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
        """Start an item, or return None and count the report if there is no room for it."""
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
    """Return the pull of an image that is over, from the last reports on it."""
    tracker = Tracker()
    for report in reports:
        tracker.apply(report, now=0.0)
    return replace(tracker.view(0.0).pulls.get(image, Pull(image)), is_running=False)


@dataclass(slots=True, eq=False)
class _Tracked:
    """The latest report of one item, the phase that it stands for, and what was shown of it."""

    report: Report
    blob: Blob
    moved_at: float
    phase: Phase | None = None
    item: PullItem | None = None
    is_viewed: bool = False

    def look(self, now: float, ratio: float) -> PullItem:
        """Read the report: its phase, and numbers that make sense together."""
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
            # One size for good for what has ended, whenever it is looked at.
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
    """Return what stands for a layer under each image of its node; empty if it is one image's."""
    if not layer or " " in layer:
        return ""
    _, on, node = image.partition(" on ")
    return f"{layer}{on}{node}"


_NO_ITEMS: Final[dict[str, _Tracked]] = {}
_visible = attrgetter(
    *("phase", "progress", "total", "error", "queue_position", "extracted", "extracted_total"),
    *("behind", "pod", "resumed", "digest", "is_estimated", "is_unpacked"),
)
