"""Sums over tracked items: bytes, rates, time left. Pure: no clock of its own.

* *Shared layers.* A digest in several images counts once, with the most progress of any image. So
  bytes of one image's pull count towards the rate and the time left of the others as well.
* *Rate.* Bytes in an item's first report, and layers that the runtime already has, do not count as
  downloaded. If an item restarts with fewer bytes, those that it downloads again count again. Until
  a rate is measured, the average since the start of the pull is used, if that start is known.
* *Time left.* Layers are unpacked one after the other, in order, each after its download. The
  unpacking speed is measured over the intervals between views in which the same layer was being
  unpacked; until then, a default is used. Once everything is downloaded, there is no time left
  unless both the measured speed and the unpacked size are known.
* *Share.* 1 minus the time left divided by the time for everything, at current speeds. It never
  falls, unless a download restarts or the number of items changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pycrictl.pulls.model import ALMOST, COMPLETE, STALLED_S, Phase, PullItem, Totals

SUPPOSED_RATE: Final = 20.0 * 2**20
SUPPOSED_PACE: Final = 100.0 * 2**20
"""Bytes downloaded and unpacked per second, assumed until they are measured."""

RATE_AFTER_S: Final = 1.0
ETA_AFTER_S: Final = 3.0
_SAMPLES_PER_WINDOW: Final = 32


class Speed:
    """Bytes per second over the last ``window_s`` seconds; none in the first second.

    Time counts from the last sample before the first byte, because a pull may wait in a queue for
    a long time. The number of samples kept does not grow with their frequency; if they are sparse,
    the window extends to the last sample before it.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._step_s = window_s / _SAMPLES_PER_WINDOW
        self._samples: deque[tuple[float, int]] = deque()
        self._gained = 0
        self._since = 0.0

    def start(self, now: float) -> None:
        """Set the time from which bytes could arrive; only the first call has an effect."""
        if not self._samples:
            self._restart(now)

    def record(self, gained: int, now: float) -> None:
        """Record the number of bytes that arrived since the last call."""
        self._gained += gained
        if not self._gained:
            self._restart(now)
            return
        self.start(now)
        samples = self._samples
        if now - samples[-1][0] >= self._step_s:
            samples.append((now, self._gained))
        while len(samples) > 1 and samples[1][0] <= now - self._window_s:
            samples.popleft()

    def rate(self, now: float) -> float | None:
        """Return bytes per second; None while there are too few samples."""
        if not self._samples or self.measured_s(now) < RATE_AFTER_S:
            return None
        then, gained = self._samples[0]
        return (self._gained - gained) / (now - then)

    def measured_s(self, now: float) -> float:
        """Return for how long bytes have been arriving."""
        return now - self._since

    def _restart(self, now: float) -> None:
        self._samples.clear()
        self._samples.append((now, self._gained))
        self._since = now


@dataclass(slots=True, eq=False)
class Blob:
    """The bytes of an item, shared with the same layer of other images.

    ``counted`` and ``unpacked`` are the positions up to which bytes have entered the rates.
    """

    is_seen: bool = False
    counted: int = 0
    unpacked: int = 0
    holders: int = 0

    def see(self, item: PullItem) -> None:
        """Treat the bytes of the first report as already present."""
        self.is_seen = True
        self.counted, self.unpacked = item.progress, item.extracted

    def advance(self, item: PullItem) -> tuple[int, int]:
        """Advance to the state of ``item``; return the bytes downloaded and unpacked since."""
        gained = unpacked = 0
        if item.phase is not Phase.PRESENT:
            gained = max(item.progress - self.counted, 0)
            unpacked = max(item.extracted - self.unpacked, 0)
        self.counted, self.unpacked = item.progress, item.extracted
        return gained, unpacked


Pairs = Sequence[tuple[Blob, PullItem]]


class Sums:
    """Adds up items, and measures the growth of the sums over ``window_s`` seconds."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._speed = Speed(window_s)
        self._speeds: dict[str, Speed] = {}
        self._unpacking = Speed(window_s)
        self._unpacking_s = 0.0
        self._unpacked: set[Blob] = set()
        self._reached: dict[str | None, _Reached] = {}
        self._last: float | None = None

    def start(self, image: str, now: float) -> None:
        """Set the time from which bytes of an image could arrive."""
        self._speed.start(now)
        self._speeds.setdefault(image, Speed(self._window_s)).start(now)

    def forget(self, image: str) -> None:
        """Drop the data of an image."""
        self._speeds.pop(image, None)
        self._reached.pop(image, None)

    def measure_anew(self) -> None:
        """Restart measuring the overall rate, which included images that are now forgotten."""
        self._speed = Speed(self._window_s)

    def add_up(
        self,
        pairs: Pairs,
        now: float,
        began: Mapping[str, float],
        given: Mapping[str, Totals] | None = None,
    ) -> tuple[Totals, dict[str, Totals]]:
        """Return the totals of all items, and those of each image.

        Args:
            pairs: the items of the finest level, in their order, with their blobs.
            began: when the pull of each image began, if known.
            given: sums of images as reported by their source, used instead of adding up.
        """
        furthest: dict[Blob, PullItem] = {}
        images: dict[str, dict[Blob, None]] = {}
        for blob, item in pairs:
            twin = furthest.get(blob)
            if twin is None or _standing(item) > _standing(twin):
                furthest[blob] = item
            images.setdefault(item.image, {})[blob] = None
        gains: dict[Blob, int] = {}
        unpacked = 0
        for blob, item in furthest.items():
            gains[blob], more = blob.advance(item)
            unpacked += more
        self._measure_unpacking(furthest, unpacked, now)
        self._speed.record(sum(gains.values()), now)
        totals = {}
        for image, blobs in images.items():
            speed = self._speeds.setdefault(image, Speed(self._window_s))
            speed.record(sum(gains[blob] for blob in blobs), now)
            parts = [(blob, furthest[blob]) for blob in blobs]
            known = given.get(image) if given else None
            totals[image] = known or self._sum(image, parts, speed, now, began.get(image))
        if len(totals) == 1:
            return next(iter(totals.values())), totals
        starts = [began[image] for image in images if image in began]
        whole = self._sum(None, furthest.items(), self._speed, now, min(starts, default=None))
        return whole, totals

    def _measure_unpacking(self, items: Mapping[Blob, PullItem], unpacked: int, now: float) -> None:
        """Measure unpacking on a clock that runs only while a layer is being unpacked."""
        before, before_at = self._unpacked, self._last
        self._unpacked = {blob for blob, item in items.items() if item.phase is Phase.EXTRACTING}
        self._last = now
        if before_at is not None and before & self._unpacked:
            self._unpacking_s += now - before_at
            self._unpacking.record(unpacked, self._unpacking_s)

    def _sum(
        self,
        image: str | None,
        parts: Iterable[tuple[Blob, PullItem]],
        speed: Speed,
        now: float,
        began: float | None,
    ) -> Totals:
        """Return the sums of ``image``, or of all images if it is None; the share never falls."""
        reached = self._reached.setdefault(image, _Reached())
        totals = _sum(parts, speed, self._pace, now, began, reached.rate)
        return replace(totals, share=reached.at_least(totals))

    @property
    def _pace(self) -> float | None:
        """Bytes unpacked per second; None while unknown."""
        return self._unpacking.rate(self._unpacking_s)


@dataclass(slots=True)
class _Reached:
    """Progress at the last poll, and the last nonzero rate."""

    share: float = 0.0
    progress: int = 0
    count: int = 0
    rate: float = SUPPOSED_RATE

    def at_least(self, totals: Totals) -> float | None:
        """Return the share, or that of the last poll if it was larger."""
        if totals.progress < self.progress or totals.count != self.count:
            self.share = 0.0
        self.progress, self.count = totals.progress, totals.count
        self.rate = totals.rate or self.rate
        if totals.share is None:
            return None
        self.share = max(self.share, totals.share)
        return self.share


def _sum(
    parts: Iterable[tuple[Blob, PullItem]],
    speed: Speed,
    pace: float | None,
    now: float,
    began: float | None,
    last_rate: float,
) -> Totals:
    progress = arrived = total = resumed = extracted = extracted_total = 0
    layers, others = [0, 0, 0], [0, 0, 0]
    left: list[tuple[int, int]] = []
    work: list[tuple[int, int]] = []
    idle: list[float] = []
    broken: list[PullItem] = []
    fetched = 0
    is_unpacked = False
    has_unknown = is_estimated = False
    for _, item in parts:
        resumed += 0 if item.phase is Phase.PRESENT else item.resumed
        is_unpacked |= item.phase is Phase.EXTRACTING
        if item.phase is Phase.DOWNLOADING:
            idle.append(item.idle_s)
        fetched += item.fetched
        numbers = layers if item.layer else others
        numbers[0] += 1
        arrived += item.progress
        if item.total:
            progress += item.progress
            total += item.total
            work.append((item.total, item.extracted_total if item.is_unpacked else 0))
        if item.is_unpacked:
            extracted += item.extracted
            extracted_total += item.extracted_total
            is_estimated |= item.is_estimated
        if item.phase in COMPLETE:
            numbers[1] += 1
        elif item.phase is Phase.FAILED:
            numbers[2] += 1
            broken.append(item)
        elif item.total:
            unpacking = item.extracted_total - item.extracted if item.is_unpacked else 0
            left.append((item.total - item.progress, unpacking))
        else:
            has_unknown = True
    rate, measured_s = speed.rate(now), speed.measured_s(now)
    if rate is None and began is not None and now - began >= RATE_AFTER_S:
        rate, measured_s = fetched / (now - began), now - began
    idle_s = 0.0 if is_unpacked else min(idle, default=0.0)
    if idle_s >= STALLED_S:
        rate = 0.0
    count, done, failed = layers if layers[0] else others
    share = None
    if total:
        is_whole = layers[1] + others[1] == layers[0] + others[0]
        speeds = rate or last_rate, pace or SUPPOSED_PACE
        failed_left = [(item.total - item.progress, 0) for item in broken]
        left_s, all_s = _duration(left + failed_left, *speeds), _duration(work, *speeds)
        share = 1.0 if is_whole else min(1.0 - left_s / all_s, ALMOST) if all_s else 0.0
    return Totals(
        progress=progress if total else arrived,
        total=total,
        done=done,
        count=count,
        failed=failed,
        resumed=resumed,
        rate=rate,
        eta_s=None
        if has_unknown
        else _time_left(left, rate, pace, measured_s, is_estimated=is_estimated),
        extracted=extracted,
        extracted_total=extracted_total,
        is_estimated=is_estimated,
        share=share,
        to_come=others[0] - others[1] - others[2] if layers[0] else 0,
        began=began,
        idle_s=idle_s,
        has_unknown=has_unknown,
    )


def _time_left(
    left: Sequence[tuple[int, int]],
    rate: float | None,
    pace: float | None,
    measured_s: float,
    *,
    is_estimated: bool,
) -> float | None:
    """Return the seconds until the last layer is unpacked; None if unknown.

    ``left`` has the bytes to download and to unpack of each unfinished layer, in their order.
    """
    to_download = sum(one for one, _ in left)
    to_unpack = sum(one for _, one in left)
    if to_download:
        if not rate or measured_s < ETA_AFTER_S:
            return None
    elif to_unpack and (not pace or is_estimated):
        return None
    elif not left:
        return 0.0 if rate and measured_s >= ETA_AFTER_S else None
    return _duration(left, rate or SUPPOSED_RATE, pace or SUPPOSED_PACE)


def _duration(parts: Iterable[tuple[int, int]], rate: float, pace: float) -> float:
    """Return the seconds for layers, given the bytes to download and to unpack of each."""
    downloaded_s = unpacked_s = 0.0
    for download, unpack in parts:
        downloaded_s += download / rate
        unpacked_s = max(unpacked_s, downloaded_s) + unpack / pace
    return unpacked_s


def _standing(item: PullItem) -> tuple[bool, int, int, bool]:
    return item.phase in COMPLETE, item.progress, item.extracted, item.phase is not Phase.FAILED
