"""The layers of one pull and their progress, from containerd's stores. Pure.

The life of a layer on containerd: an unfinished blob (ingest) grows to the descriptor's size and
becomes a complete blob; an active snapshot ``extract-…`` takes its files and is committed under
the layer's chain ID. A layer whose snapshot already exists is never fetched. Everything is looked
up by digest, as a layer that two pulls share is held by the lease of only one of them.

Phases: a layer is ``downloading`` until its blob is complete, even if its extraction snapshot
already exists. Then it is ``extracting``, or ``waiting`` for its turn, as it still has to be
unpacked. ``done`` means a committed snapshot, ``present`` a layer that this pull did not have to
fetch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pycrictl.pulls.state import STALLED_S, LayerState, Phase
from pycrictl.runtime.containerd.store import Descriptor

STEP_BYTES: Final = 1 << 20
"""containerd writes a blob in steps of this size, and shows a layer's offset only after each."""

SLOWEST: Final = 4 * 1024
"""The lowest speed, in bytes per second, that is assumed for a download until its first step."""

PATIENCE_STEPS: Final = 4.0
"""A layer has stalled once its next step takes this many times as long as its last one."""

_SMALLEST_GZIP_BYTES: Final = 18


class Ingest(NamedTuple):
    """An unfinished blob. ``is_held``: a running pull's lease names it."""

    offset: int
    updated_s: float
    is_held: bool


@dataclass(slots=True)
class StoreState:
    """The result of one poll of containerd, for all pulls together.

    Attributes:
        committed: (snapshotter, chain ID) of the committed snapshots that the leases hold.
        active: keys of running extractions by (snapshotter, chain ID).
        is_crowded: more layers are open than containerd downloads at once.
    """

    ingests: dict[str, Ingest] = field(default_factory=dict)
    blobs: set[str] = field(default_factory=set)
    committed: set[tuple[str, str]] = field(default_factory=set)
    active: dict[tuple[str, str], str] = field(default_factory=dict)
    is_crowded: bool = False


@dataclass(slots=True)
class Layer:
    """One layer of one pull.

    Attributes:
        chain_ids: one per position in the image, as a layer may occur twice; empty until the
            config is read, and always for layers that are not unpacked.
        progress: compressed bytes, of which ``resumed`` existed before this pull began.
        extracted: bytes unpacked, at most ``extracted_total``, an estimate (0 while unknown).
        was_there: the blob was complete before the pull began.
        extraction: key of the active snapshot it is unpacked to.
        moved_s: when its blob last grew.
        step_s: how long the last step took, 0 before the second one.
    """

    digest: str
    size_bytes: int
    is_gzip: bool
    chain_ids: tuple[str, ...] = ()
    phase: Phase = Phase.WAITING
    progress: int = 0
    resumed: int = 0
    extracted: int = 0
    extracted_total: int = 0
    idle_s: float = 0.0
    is_complete: bool = False
    was_there: bool = False
    is_settled: bool = False
    extraction: str | None = None
    has_trailer: bool = False
    moved_s: float = 0.0
    step_s: float = 0.0
    _settled: LayerState | None = None

    def state(self, *, is_failed: bool = False, quiet_s: float | None = None) -> LayerState:
        """Return the state of the layer, as displays and streams show it.

        Args:
            is_failed: its pull has failed.
            quiet_s: for how long containerd has received nothing; None if unknown.
        """
        if self._settled is not None and not is_failed:
            return self._settled
        idle_s, patience_s = self.idle_s, self._patience_s
        if quiet_s is not None and quiet_s >= STALLED_S:
            idle_s, patience_s = min(idle_s, quiet_s), STALLED_S
        state = LayerState(
            name=self.digest,
            phase=Phase.FAILED if is_failed else self.phase,
            progress=self.progress,
            total=self.size_bytes,
            resumed=self.resumed,
            extracted=self.extracted,
            extracted_total=self.extracted_total,
            is_unpacked=self.phase is not Phase.PRESENT,
            idle_s=idle_s,
            patience_s=patience_s,
        )
        if self.is_settled and not is_failed:
            self._settled = state
        return state

    @property
    def _patience_s(self) -> float:
        """For how long a download that goes on may show no new byte."""
        if self.step_s:
            return max(STALLED_S, PATIENCE_STEPS * self.step_s)
        return max(STALLED_S, min(STEP_BYTES, self.size_bytes - self.progress) / SLOWEST)

    @property
    def wants_trailer(self) -> bool:
        is_readable = self.is_gzip and self.size_bytes >= _SMALLEST_GZIP_BYTES
        is_unpacked = self.phase not in (Phase.DOWNLOADING, Phase.PRESENT, Phase.FAILED)
        return is_readable and not self.has_trailer and self.is_complete and is_unpacked

    def learn(self, unpacked_bytes: int) -> None:
        """Set the unpacked size read from the end of the blob; 0 if there is none."""
        self.has_trailer, self._settled = True, None
        self.extracted_total = unpacked_bytes
        if self.is_settled:
            self.extracted = unpacked_bytes or self.extracted
        elif unpacked_bytes:
            self.extracted = min(self.extracted, unpacked_bytes)

    def settle(self, phase: Phase) -> None:
        self.is_settled = self.is_complete = True
        self.phase, self.idle_s, self.extraction = phase, 0.0, None
        self.progress, self.extracted = self.size_bytes, self.extracted_total or self.extracted

    def extract_to(self, size_bytes: int) -> None:
        """Set the bytes unpacked so far; files may be larger on disk than in the archive."""
        self.extracted = max(size_bytes, self.extracted)
        if self.extracted_total > 0:
            self.extracted = min(self.extracted, self.extracted_total)


class Layers:
    """All layers of a pull, lowest first, each once; older data counts as already present."""

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s
        self._layers: dict[str, Layer] = {}

    def __iter__(self) -> Iterator[Layer]:
        return iter(self._layers.values())

    def __len__(self) -> int:
        return len(self._layers)

    def add(self, descriptors: Iterable[Descriptor]) -> None:
        for blob in descriptors:
            is_gzip = blob.media_type.endswith(("+gzip", ".gzip"))
            layer = Layer(blob.digest, blob.size_bytes, is_gzip)
            if blob.media_type.endswith(".tar"):  # not compressed
                layer.extracted_total = blob.size_bytes
            self._layers.setdefault(blob.digest, layer)

    def place(self, descriptors: Sequence[Descriptor], chain_ids: Sequence[str]) -> None:
        """Set a manifest's chain IDs; unless there is one per layer, layers are not unpacked."""
        if len(chain_ids) == len(descriptors):
            for descriptor, chain_id in zip(descriptors, chain_ids, strict=True):
                self._layers[descriptor.digest].chain_ids += (chain_id,)

    @property
    def unsettled(self) -> list[Layer]:
        return [layer for layer in self if not layer.is_settled]

    @property
    def is_complete(self) -> bool:
        return all(layer.is_complete for layer in self)

    def update(self, stores: StoreState, snapshotter: str, wall_s: float) -> bool:
        """Update every layer from ``stores``; return whether ``confirm`` must be called."""
        is_doubtful = False
        for layer in self.unsettled:
            keys = [(snapshotter, chain_id) for chain_id in layer.chain_ids]
            layer.extraction = next(
                (stores.active[key] for key in keys if key in stores.active), None
            )
            layer.is_complete = layer.is_complete or layer.digest in stores.blobs
            ingest = stores.ingests.get(layer.digest)
            if keys and stores.committed.issuperset(keys):
                is_doubtful = True  # its time tells whether this pull made it
            elif layer.is_complete:
                self._unpack(layer)
            elif ingest is not None:
                self._download(layer, ingest, wall_s, is_crowded=stores.is_crowded)
            else:
                # A vanished ingest has become a blob in another lease, or was dropped.
                is_doubtful |= layer.progress > 0 or layer.phase is not Phase.WAITING
        return is_doubtful

    def confirm(self, blobs: Mapping[str, float], snapshots: Mapping[str, float]) -> None:
        """Apply wall times of complete blobs, by digest, and committed snapshots, by chain ID."""
        for layer in self.unsettled:
            if not layer.is_complete and layer.digest in blobs:
                layer.is_complete = True
                layer.was_there = blobs[layer.digest] < self._started_s
                layer.resumed = layer.size_bytes if layer.was_there else layer.resumed
            times = [snapshots[name] for name in layer.chain_ids if name in snapshots]
            if times and len(times) == len(layer.chain_ids):
                is_new = max(times) >= self._started_s
                layer.settle(Phase.DONE if is_new else Phase.PRESENT)
            elif layer.is_complete:
                self._unpack(layer)

    def finish(self) -> None:
        """Settle all layers of a successful pull; those still packed need no unpacking."""
        for layer in self.unsettled:
            layer.settle(Phase.PRESENT if layer.phase is Phase.PRESENT else Phase.DONE)

    def _unpack(self, layer: Layer) -> None:
        layer.progress, layer.idle_s = layer.size_bytes, 0.0
        if layer.extraction is not None:
            layer.phase = Phase.EXTRACTING
        elif layer.phase is not Phase.EXTRACTING:
            layer.phase = Phase.PRESENT if layer.was_there else Phase.WAITING

    def _download(self, layer: Layer, ingest: Ingest, wall_s: float, *, is_crowded: bool) -> None:
        layer.progress = min(ingest.offset, layer.size_bytes)
        if ingest.updated_s < self._started_s:  # no byte has arrived since
            layer.resumed = layer.progress
        layer.resumed = min(layer.resumed, layer.progress)
        # containerd 2.x opens all layers at once but downloads only a few at a time; without bytes,
        # a layer is certain to be downloading only once the limit admits all that were opened.
        is_queued = layer.progress == 0 and is_crowded
        is_left_over = not ingest.is_held and ingest.updated_s < self._started_s
        if is_queued or is_left_over:
            layer.phase, layer.idle_s = Phase.WAITING, 0.0
            return
        layer.phase = Phase.DOWNLOADING
        is_all_here = layer.progress == layer.size_bytes  # and is being verified
        # An ingest left by an earlier pull has that pull's time.
        last_s = max(ingest.updated_s, self._started_s)
        if layer.moved_s and last_s > layer.moved_s:
            layer.step_s = last_s - layer.moved_s
        layer.moved_s = last_s
        layer.idle_s = 0.0 if is_all_here else max(0.0, wall_s - last_s)
