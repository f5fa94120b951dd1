"""The state of a pull and of its layers: what every source yields and every reader takes. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from pycrictl.base.units import plural


class Phase(StrEnum):
    """The phase of a layer or a pull (the ``phase`` key of the progress stream)."""

    WAITING = "waiting"
    DOWNLOADING = "downloading"
    EXTRACTING = "extracting"
    DONE = "done"
    PRESENT = "present"
    FAILED = "failed"


STALLED_S: Final = 10.0
"""A download without a byte for this long counts as stalled, unless its source reports bytes in
large steps."""

COMPLETE: Final = frozenset({Phase.DONE, Phase.PRESENT})
FINISHED: Final = COMPLETE | {Phase.FAILED}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerState:
    """One layer of a pull at one moment, or the image as a whole while no layer is known."""

    # Its digest, or another name that it keeps (`layer 3 of 7`); empty for the whole image
    name: str = ""
    digest: str = ""  # Its digest if `name` is something else; empty until known
    # A waiting layer has no bytes yet, or has all of them and waits to be unpacked
    phase: Phase = Phase.WAITING
    progress: int = 0  # Compressed bytes that have arrived, in every phase
    total: int = 0  # Compressed bytes in all; 0 while unknown, else at least `progress`
    resumed: int = 0  # Those bytes of `progress` that were present before the pull began
    extracted: int = 0  # Bytes unpacked
    extracted_total: int = 0  # Bytes to unpack in all; 0 while unknown, else at least `extracted`
    is_estimated: bool = False  # Whether `extracted_total` is an estimate
    is_unpacked: bool = False  # Whether unpacking is a part of its work
    # Seconds since its last byte while it is downloading; None if its source does not know
    idle_s: float | None = None
    patience_s: float = STALLED_S  # The value of `idle_s` from which the layer counts as stalled

    @property
    def is_finished(self) -> bool:
        """Whether it has arrived or failed, as far as is known."""
        return self.phase in FINISHED

    @property
    def fetched(self) -> int:
        """The bytes that this pull has downloaded."""
        return 0 if self.phase is Phase.PRESENT else self.progress - self.resumed

    @property
    def has_all_bytes(self) -> bool:
        """Whether it has arrived, unpacked or not."""
        return self.phase in COMPLETE or 0 < self.total == self.progress

    @property
    def stalled_s(self) -> float:
        """For how long no byte has arrived; 0 unless it should be downloading, and has stalled."""
        if self.phase is not Phase.DOWNLOADING or self.idle_s is None:
            return 0.0
        return self.idle_s if self.idle_s >= self.patience_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Sums over the layers of one pull or of several; each layer counts once."""

    # Compressed bytes that have arrived, without layers of unknown total if any total is known
    progress: int = 0
    total: int = 0  # Compressed bytes in all, without layers of unknown total; 0 while unknown
    done: int = 0  # Layers that have arrived, or images while no layer is known
    count: int = 0  # Layers, or images while no layer is known; 0: nothing is known
    failed: int = 0  # Layers that have failed, or images while no layer is known
    rate: float | None = None  # Bytes downloaded per second; None in the first second, 0 in a stall
    # Seconds until everything is unpacked; None in the first three seconds, in a stall, and while
    # the size of a part is unknown
    eta_s: float | None = None
    extracted: int = 0  # Bytes unpacked
    extracted_total: int = 0  # Bytes to unpack in all
    is_estimated: bool = False  # Whether `extracted_total` includes an estimate
    share: float | None = None  # The part of the work that is done, from 0 to 1; None while unknown
    to_come: int = 0  # Images whose layers are not known yet, while those of others are
    stalled_s: float = 0.0  # For how long no byte has arrived; 0 unless every download has stalled
    has_unknown: bool = False  # Whether the size of an unfinished part is unknown

    @property
    def percent(self) -> int | None:
        """``share`` in whole percent, rounded down, so that 100 means complete."""
        return None if self.share is None else math.floor(100.0 * self.share + _EPSILON)

    @property
    def current_rate(self) -> float | None:
        """``rate``; None once all bytes have arrived."""
        return None if 0 < self.total == self.progress else self.rate

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
        """``eta_s`` to the nearest second, but 0 only if nothing is left to do."""
        return None if self.eta_s is None else max(round(self.eta_s), int(self.eta_s > 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class PullState:
    """The pull of one image at one moment."""

    # The image as it was requested, or as the runtime names it; empty while unknown
    image: str = ""
    node: str = ""  # The node that pulls, where pulls of several nodes are shown; otherwise empty
    digest: str = ""  # The digest of its manifest or index, once it is known
    # The images that it may be for, if its source cannot tell them apart
    candidates: tuple[str, ...] = ()
    # Its layers, lowest first; one without a name while only the whole image is reported
    layers: tuple[LayerState, ...] = ()
    # The sums of `layers`; `count` is 0 until they are added up
    sums: Sums = field(default_factory=Sums)
    pods: tuple[str, ...] = ()  # The pods that it is for (NAMESPACE/NAME), as far as is known
    place: int = 0  # Its place in the line for a slot, from 1; 0 outside the line
    behind: str = ""  # The pod or image ahead of it in the line
    # Seconds until it is expected to leave the line; None while unknown
    starts_in_s: float | None = None
    error: str = ""  # Why it failed, or why its last attempt did; empty otherwise
    # Whether the runtime works on it; without layers, it then waits for its registry
    is_begun: bool = True
    is_running: bool = True  # Whether it has not ended
    began_s: float = 0.0  # When it began (Unix time); 0 if unknown
    # When it ended, or the earliest time at which it may have; 0 while unknown
    ended_s: float = 0.0

    @property
    def name(self) -> str:
        """``image``, and where several nodes are shown, ``IMAGE on NODE``."""
        return f"{self.image} on {self.node}" if self.node else self.image

    @property
    def pod(self) -> str:
        """The pods as one text: ``default/web and 2 more``."""
        first, *others = self.pods or ("",)
        return f"{first} and {len(others)} more" if others else first

    @property
    def has_layers(self) -> bool:
        """Whether its layers are known, rather than only the image as a whole."""
        return any(layer.name for layer in self.layers)

    @property
    def is_complete(self) -> bool:
        """Whether every part of it has arrived."""
        return bool(self.layers) and all(layer.phase in COMPLETE for layer in self.layers)

    @property
    def is_over(self) -> bool:
        """Whether every part of it has arrived or failed, as far as is known."""
        return bool(self.layers) and all(layer.is_finished for layer in self.layers)

    @property
    def has_failed(self) -> bool:
        """Whether a part of it has failed."""
        return any(layer.phase is Phase.FAILED for layer in self.layers)

    @property
    def has_bytes(self) -> bool:
        """Whether something has arrived, or was present."""
        beyond = COMPLETE | {Phase.EXTRACTING}
        has_layer = any(layer.phase in beyond or layer.progress for layer in self.layers)
        return has_layer or self.sums.progress > 0

    @property
    def has_started(self) -> bool:
        """Whether something has arrived or is arriving, or was present."""
        return self.has_bytes or self.count(Phase.DOWNLOADING) > 0

    @property
    def is_queued(self) -> bool:
        """Whether it waits for a slot, rather than for its registry."""
        return self.place > 0 or any(
            layer.phase is Phase.WAITING and not layer.name for layer in self.layers
        )

    @property
    def is_extracting(self) -> bool:
        """Whether all bytes have arrived, and a layer is being unpacked."""
        return all(layer.has_all_bytes for layer in self.layers) and any(
            layer.phase is Phase.EXTRACTING for layer in self.layers
        )

    @property
    def got_bytes(self) -> int:
        """The bytes that it has downloaded."""
        return sum(layer.fetched for layer in self.layers)

    @property
    def reused_bytes(self) -> int:
        """The bytes of its layers that were on the node already."""
        return sum(layer.total for layer in self.layers) - self.got_bytes

    @property
    def extracted_bytes(self) -> int:
        """The bytes that it has unpacked, without estimated layers."""
        return sum(layer.extracted for layer in self.layers if not layer.is_estimated)

    def count(self, *phases: Phase) -> int:
        """Return how many layers are in one of these phases."""
        return sum(layer.phase in phases for layer in self.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A snapshot of everything tracked, with exactly the data that a display needs."""

    pulls: Mapping[str, PullState]  # The pulls by name, in order of their first appearance
    # The layers that differ from the previous view: in `idle_s`, only where a stall begins or ends
    changed: tuple[tuple[PullState, LayerState], ...] = ()
    sums: Sums  # The sums of all pulls
    now: float  # The time of the snapshot, on the tracker's clock
    wall_s: float  # The same time on the wall clock
    # Pulls that are running or about to run, of which there is nothing to track yet
    awaited: tuple[PullState, ...] = ()
    is_known: bool = True  # Whether the source has reported its state

    @property
    def began_s(self) -> float:
        """When the first of the pulls began (Unix time); 0 if unknown."""
        return min((pull.began_s for pull in self.pulls.values() if pull.began_s), default=0.0)


_EPSILON: Final = 1e-9
