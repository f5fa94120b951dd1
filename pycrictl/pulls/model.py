"""Snapshots of pulls and their layers, their sums, and when a pull is stalled. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from pycrictl import foreign
from pycrictl.units import duration_in_words, plural


def stall(idle_s: float) -> str:
    """Return the text for a stall: ``no data for 42 s``."""
    return f"no data for {duration_in_words(int(idle_s))}"


class Phase(StrEnum):
    """The phase of an item (the ``phase`` key of the progress stream)."""

    WAITING = "waiting"
    DOWNLOADING = "downloading"
    EXTRACTING = "extracting"
    DONE = "done"
    PRESENT = "present"
    FAILED = "failed"


STALLED_S: Final = 10.0
"""A download without a byte for this long counts as stalled: rate 0, time left unknown."""

COMPLETE: Final = frozenset({Phase.DONE, Phase.PRESENT})
FINISHED: Final = COMPLETE | {Phase.FAILED}


@dataclass(frozen=True, slots=True)
class PullItem:
    """A snapshot of one layer, image or pod.

    ``progress`` and ``total`` count compressed bytes in every phase; ``total`` is 0 while unknown.
    A waiting layer has no bytes yet, or has all of them and waits to be unpacked.
    ``queue_position`` is 0 outside a queue. ``idle_s`` is the time since progress, extraction or
    phase last changed, 0 for finished items. ``is_unpacked``: its work includes unpacking;
    ``is_estimated``: ``extracted_total`` is an estimate. ``resumed`` are bytes from before its
    pull. ``digest`` is that of a layer with another name (``layer 3 of 7``), once it is known.
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
    is_estimated: bool = False
    is_unpacked: bool = False
    behind: str = ""
    pod: str = ""
    resumed: int = 0
    digest: str = ""

    @property
    def is_finished(self) -> bool:
        """Whether the item has arrived or failed, as far as is known."""
        return self.phase in FINISHED

    @property
    def fetched(self) -> int:
        """The bytes that this pull has downloaded."""
        return 0 if self.phase is Phase.PRESENT else self.progress - self.resumed


@dataclass(frozen=True, slots=True)
class Awaited:
    """A pull without items yet; ``is_begun``: it waits for its registry, not for the runtime."""

    image: str
    is_begun: bool
    waited_s: float


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the finest level known, each digest counted once; ``SUMS`` describes the fields.

    ``progress`` and ``total`` leave out items of unknown total (unless no total is known);
    ``has_unknown``: an unfinished item is among those. ``rate`` is None in the first second and 0
    in a stall; ``eta_s`` is None in the first three seconds, while no bytes arrive and while the
    total of an unfinished item is unknown. ``began`` is when the pull began, on the tracker's
    clock. ``idle_s`` is 0 while a layer is being unpacked.
    """

    progress: int
    total: int
    done: int
    count: int
    failed: int
    resumed: int
    rate: float | None
    eta_s: float | None
    extracted: int = 0
    extracted_total: int = 0
    is_estimated: bool = False
    share: float | None = None
    to_come: int = 0
    began: float | None = None
    idle_s: float = 0.0
    has_unknown: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the sums as JSON for a stream, a status or an ImagePull (``SUMS``).

        0 and False are left out, but rate, time left and share only if they are unknown.
        """
        found = {}
        for name in SUMS:
            value = getattr(self, name)
            if value or (value is not None and name in ("rate", "eta_s", "share")):
                found[name] = round(value, _DIGITS) if isinstance(value, float) else value
        if self.share is not None:  # rounded down, like ``percent``
            found["share"] = math.floor(self.share * _SHARES + _EPSILON) / _SHARES
        return found

    @classmethod
    def from_json(cls, value: object) -> Totals | None:
        """Return the sums in JSON from another program; None if it has none."""
        found = foreign.mapping(value)
        if not found:
            return None
        read = {name: _READERS[kind](found.get(name)) for name, (kind, _) in SUMS.items()}
        share = read["share"]
        read["share"] = None if share is None else min(share, 1.0)
        read["idle_s"] = read["idle_s"] or 0.0
        return cls(**read)

    def at_end(self, *, is_done: bool) -> Totals:
        """Return the sums as they are when the pull has ended."""
        if not is_done:
            return replace(self, rate=None, eta_s=None, idle_s=0.0)
        return replace(
            self,
            progress=self.total or self.progress,
            done=self.count,
            eta_s=0.0 if self.rate is not None else None,
            extracted=self.extracted_total,
            share=1.0,
            idle_s=0.0,
            has_unknown=False,
        )

    def later(self, by_s: float, *, is_downloading: bool) -> Totals:
        """Return the sums as they are ``by_s`` seconds after their source reported them."""
        if not is_downloading or not by_s:
            return self
        idle_s = self.idle_s + by_s
        if idle_s < STALLED_S:
            return replace(self, idle_s=idle_s)
        return replace(self, idle_s=idle_s, rate=0.0, eta_s=None)

    @property
    def percent(self) -> int | None:
        """``share`` in whole percent, rounded down, so that 100 means complete."""
        return None if self.share is None else math.floor(100.0 * self.share + _EPSILON)

    @property
    def is_stalled(self) -> bool:
        """Whether bytes should be arriving, but have not for a while."""
        return self.idle_s >= STALLED_S

    @property
    def is_unpacking(self) -> bool:
        """Whether all bytes have arrived, but not all are unpacked."""
        is_here = 0 < self.total == self.progress and not self.has_unknown
        return is_here and self.share is not None and self.share < 1.0

    @property
    def unpacking(self) -> str:
        """The text while ``is_unpacking``: ``unpacking, 2 of 5 layers``; otherwise empty."""
        if not self.is_unpacking:
            return ""
        return f"unpacking, {self.done} of {plural(self.count, 'layer')}"

    @property
    def eta_whole_s(self) -> int | None:
        """``eta_s`` in whole seconds, rounded up, so that 0 means finished."""
        return None if self.eta_s is None else math.ceil(self.eta_s)


@dataclass(frozen=True, slots=True)
class Pull:
    """A snapshot of the pull of one image.

    ``items`` are its layers, or one item for the image; ``totals`` is None while nothing is known.
    ``began_s`` and ``ended_s`` are wall times, 0 if unknown or not reached. ``digest`` is the one
    that its name resolves to, empty if unknown.
    """

    image: str
    items: tuple[PullItem, ...] = ()
    totals: Totals | None = None
    is_running: bool = True
    began_s: float = 0.0
    ended_s: float = 0.0
    digest: str = ""

    @property
    def has_layers(self) -> bool:
        """Whether its layers are known, rather than one item for the image."""
        return len(self.items) > 1 or bool(self.items[0].layer)

    @property
    def is_complete(self) -> bool:
        """Whether every item has arrived."""
        return all(item.phase in COMPLETE for item in self.items)

    @property
    def is_over(self) -> bool:
        """Whether every item has arrived or failed, as far as is known."""
        return all(item.is_finished for item in self.items)

    @property
    def failed(self) -> PullItem | None:
        """The last failed item, if possible with an error text; None if nothing has failed."""
        failed = [item for item in self.items if item.phase is Phase.FAILED]
        return next(
            (item for item in reversed(failed) if item.error), failed[-1] if failed else None
        )

    def count(self, *phases: Phase) -> int:
        """Return how many items are in one of these phases."""
        return sum(item.phase in phases for item in self.items)

    @property
    def got_bytes(self) -> int:
        """The bytes that it has downloaded."""
        return sum(item.fetched for item in self.items)

    @property
    def extracted_bytes(self) -> int:
        """The bytes that it has unpacked, without estimated layers."""
        return sum(item.extracted for item in self.items if not item.is_estimated)


@dataclass(frozen=True, slots=True)
class View:
    """A snapshot of everything tracked, with exactly the data that a display needs.

    ``items`` is ordered by first appearance. ``changed`` are those whose fields, except ``idle_s``,
    differ from the previous view. ``dropped`` counts the reports for which there was no room.
    ``awaited`` comes from the source if there are no items. Until ``is_known``, the source has
    reported nothing.
    """

    items: tuple[PullItem, ...]
    changed: tuple[PullItem, ...]
    totals: Totals
    now: float
    dropped: int
    awaited: tuple[Awaited, ...] = ()
    images: Mapping[str, Totals] = field(default_factory=dict)
    is_known: bool = True

    @property
    def pulls(self) -> dict[str, Pull]:
        """The items by image, with the sums of each."""
        found: dict[str, list[PullItem]] = {}
        for item in self.items:
            found.setdefault(item.image, []).append(item)
        return {
            image: Pull(image, tuple(items), self.images.get(image))
            for image, items in found.items()
        }


SUMS: Final[Mapping[str, tuple[str, str]]] = {
    "progress": ("integer", "Compressed bytes that have arrived."),
    "total": ("integer", "Compressed bytes in all; 0 while unknown."),
    "done": ("integer", "Layers that have arrived, or images while no layer is known."),
    "count": ("integer", "Layers in all."),
    "failed": ("integer", "Layers that have failed."),
    "resumed": ("integer", "Bytes that an earlier pull has left."),
    "rate": ("number", "Bytes downloaded a second; absent while unknown."),
    "eta_s": ("number", "Seconds until all is unpacked; absent while unknown."),
    "extracted": ("integer", "Bytes unpacked."),
    "extracted_total": ("integer", "Bytes to unpack in all."),
    "is_estimated": ("boolean", "The bytes to unpack in all are an estimate."),
    "share": ("number", "How much of the work is done, from 0 to 1; absent while unknown."),
    "to_come": ("integer", "Images whose layers are not known yet, beside those that are."),
    "idle_s": ("number", "For how long no byte has come."),
    "has_unknown": ("boolean", "The size of a part is not known."),
}
"""The fields of ``Totals`` in JSON, for every output: types (OpenAPI) and meanings."""

_READERS: Final[Mapping[str, Callable[[object], Any]]] = {
    "integer": foreign.count,
    "number": foreign.number,
    "boolean": lambda value: value is True,
}
_DIGITS: Final = 3
_SHARES: Final = 10**4
_EPSILON: Final = 1e-9
ALMOST: Final = 0.995
"""The largest share that is given while something is missing."""
