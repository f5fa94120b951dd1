"""What a tracker shows of everything tracked at one moment, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    """Where an item stands (the ``phase`` key of the progress stream)."""

    WAITING = "waiting"
    DOWNLOADING = "downloading"
    EXTRACTING = "extracting"
    DONE = "done"
    PRESENT = "present"
    FAILED = "failed"


COMPLETE: Final = frozenset({Phase.DONE, Phase.PRESENT})
FINISHED: Final = COMPLETE | {Phase.FAILED}


@dataclass(frozen=True, slots=True)
class Item:
    """One layer, image or pod at one moment.

    ``progress`` and ``total`` count compressed bytes in every phase. ``total`` is 0 while unknown.
    A layer that waits has nothing yet, or all of it and no turn to be unpacked. ``queue_position``
    is 0 outside a queue, and ``behind`` names who is ahead. ``idle_s`` is the time since progress,
    extraction or phase last moved, and 0 for an item that is finished. ``is_unpacked``: unpacking
    is a part of its work; ``is_estimated``: ``extracted_total`` is an estimate. ``pod`` is empty
    where nobody knows it. ``resumed`` are bytes that were there before its pull began. ``digest``
    is that of a layer with another name (``layer 3 of 7``), once it is known.
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
        """Whether nothing more happens to it as far as is known: it has arrived or failed."""
        return self.phase in FINISHED

    @property
    def share(self) -> float:
        """How much of its work is done, from 0 to 1; 1 is for an item that has arrived.

        Where the source shows how a layer is unpacked, the download is one half of the work.
        """
        if self.phase in COMPLETE:
            return 1.0
        share = self.progress / self.total if self.total else 0.0
        if self.is_unpacked:
            unpacked = self.extracted / self.extracted_total if self.extracted_total else 0.0
            share = (share + min(unpacked, _ALMOST)) / 2
        return min(share, _ALMOST)


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

    ``progress`` and ``total`` are bytes downloaded, without items of unknown total. ``extracted``
    and ``extracted_total`` are bytes unpacked of what is unpacked, ``is_estimated`` if the latter
    is not known of each layer. ``share`` is how much of all work is done, from 0 to 1; it is 1 when
    everything has arrived, and None while no total is known.

    ``count``, ``done`` and ``failed`` are numbers of layers, or of images if no layer is known;
    ``done`` counts those present already as well, ``to_come`` the images whose layers are not
    known yet, beside those whose layers are. ``resumed`` are the bytes that an earlier pull left.

    ``rate`` is in bytes downloaded a second, None in the first second; ``eta_s`` counts unpacking
    too, and is None in the first three seconds, while nothing moves and while an unfinished item's
    total is unknown. ``began`` is when the pull began, in the tracker's time, None if unknown.
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

    @property
    def percent(self) -> float | None:
        """``share`` in percent."""
        return None if self.share is None else 100.0 * self.share


@dataclass(frozen=True, slots=True)
class View:
    """A picture of everything tracked at one moment, what a display needs and nothing else.

    ``items`` is ordered by first appearance, images first, layers within their image. ``changed``
    are those whose fields differ from the previous view, ``idle_s`` aside. ``dropped`` counts the
    reports that found no room. ``awaited`` is the source's word, given where there are no items.
    ``images`` are the totals of each image. Before ``is_known`` the source has not said anything.
    """

    items: tuple[Item, ...]
    changed: tuple[Item, ...]
    totals: Totals
    now: float
    dropped: int
    awaited: tuple[Awaited, ...] = ()
    images: Mapping[str, Totals] = field(default_factory=dict)
    is_known: bool = True


_ALMOST: Final = 0.995
"""The most that is said of what has not arrived."""
