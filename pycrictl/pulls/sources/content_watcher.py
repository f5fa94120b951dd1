"""Watches every image pull of a containerd from outside, through containerd's own API.

containerd does not list its running pulls. But each holds a lease, and the lease holds what the
pull has fetched, such as the manifest, which names all layers and their sizes before the first one
begins. A poll takes a handful of calls: the leases, the unfinished blobs, the contents of each
lease that may have changed, and the size of running extractions. Documents are read once. On a node
without pulls, a poll takes one call.

A pull's lease is labelled with nothing but an expiry a day ahead. A pull that dies with its
containerd leaves its lease and unfinished blobs behind, indistinguishable from those of a running
pull. So whatever is older than containerd's process does not count as running.

The documents of an image are in the lease as soon as they are fetched; their labels distinguish
them from layers.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from pycrictl._proto.containerd import content_pb2, leases_pb2, snapshots_pb2
from pycrictl.base.errors import DeadlineExceeded, Invalid, PycrictlError
from pycrictl.base.units import plural
from pycrictl.pulls.registries.registry_client import Answers
from pycrictl.pulls.sources.endings import PollResult
from pycrictl.pulls.sources.layers import Ingest, Layers, StoreState
from pycrictl.pulls.sources.pull_names import Expected, ImageOwners, Names
from pycrictl.pulls.state import STALLED_S, Phase, PullState
from pycrictl.runtime.containerd.daemon import CurrentDaemon, quiet_s
from pycrictl.runtime.containerd.grpc_client import (
    EXPIRY_LABEL,
    LOAD_LABEL,
    ContainerdClient,
    Documents,
    is_abandoned,
    seconds,
)
from pycrictl.runtime.containerd.store import (
    Document,
    ImageConfig,
    Index,
    Manifest,
    chain_ids,
    extracted_chain_id,
    has_children,
    ingest_digest,
    repositories,
)

SETTLE_S: Final = 1.0
"""How long to wait, after an image's manifest, for its label, index and config. After that, the
pull is shown with what is known."""

RESOLVING_S: Final = 120.0
"""How long an empty lease counts as a pull that is still waiting for its registry."""

_RECHECK_S: Final = 5.0
_EMPTY_LEASE_S: Final = 0.5  # creating a container takes a short-lived lease too
_TRAILERS_PER_POLL: Final = 4
_TRAILERS: Final = 32  # read at a pull's end
_SNAPSHOTS: Final = "snapshots/"
"""Prefix of a snapshot's resource type in a lease; the snapshotter's name follows."""

_NO_IMAGE: Final = "the pull ended without an image"
_UNKNOWN_REASON: Final = (
    "a pull ended before its image was known: it failed, or the node had the image already"
)


@dataclass(slots=True)
class _Held:
    """What a lease holds; snapshots as in ``StoreState``."""

    ingests: set[str] = field(default_factory=set)
    blobs: set[str] = field(default_factory=set)
    committed: set[tuple[str, str]] = field(default_factory=set)
    active: dict[tuple[str, str], str] = field(default_factory=dict)
    snapshotter: str = ""


@dataclass(slots=True, eq=False)
class _LeasePull:
    """A lease that is a pull or may become one."""

    lease_id: str
    started_s: float
    snapshotter: str
    layers: Layers
    image: str = ""  # Empty until it is known; then it never changes
    held: _Held | None = None  # As last listed
    index_digest: str = ""
    manifest_digest: str = ""
    manifest: Manifest | None = None
    is_placed: bool = False  # The manifest's config was read
    judged: set[str] = field(default_factory=set)  # Digests of blobs already read
    late_at: float = math.inf  # When it is shown with what is known
    pods: tuple[str, ...] = ()
    candidates: tuple[str, ...] = ()
    question: Answers[str, str | None] | None = None
    shown: PullState | None = None  # As it was last shown
    error: str = ""

    @property
    def digests(self) -> list[str]:
        return [self.manifest_digest, *filter(None, [self.index_digest])]

    def may_have_changed(self, ingests: Mapping[str, str]) -> bool:
        """Return whether its lease may hold other things than when it was last listed.

        While layers are fetched, only ingests come and go.

        Args:
            ingests: the expected digest of each ingest of any pull, by the ingest's reference.
        """
        if self.held is None or not self.is_placed:
            return True
        if any(layer.is_complete for layer in self.layers.unsettled):
            return True  # it is being unpacked
        own = {layer.digest for layer in self.layers}
        return self.held.ingests != {ref for ref, digest in ingests.items() if digest in own}

    def state(self, quiet_s: float | None = None) -> PullState:
        """Return the pull for readers.

        Args:
            quiet_s: for how long containerd has received nothing; None if unknown.
        """
        # If the pull failed with all layers settled, the last one carries the failure.
        failed = self.layers.unsettled or [*self.layers][-1:] if self.error else []
        layers = (layer.state(is_failed=layer in failed, quiet_s=quiet_s) for layer in self.layers)
        return PullState(
            image=self.image,
            digest=self.index_digest or self.manifest_digest,
            candidates=self.candidates,
            layers=tuple(layers),
            pods=self.pods,
            error=self.error,
            began_s=self.started_s,
        )


@dataclass(eq=False)
class ContentWatcher:
    """Polls a containerd for every layer of every running pull.

    ``snapshotter`` is assumed until a pull shows which one it unpacks to;
    ``max_concurrent_downloads`` is 0 for no limit. ``find_digest`` asks a registry for the digest
    of a reference: None if it is unknown, empty if there is no such image. To measure a running
    extraction, containerd walks all its files; afterwards it is left alone for
    ``usage_pause_factor`` times as long. Only ``expect`` and ``forget`` are thread-safe.
    """

    client: ContainerdClient
    snapshotter: str = "overlayfs"
    max_concurrent_downloads: int = 3
    owners: ImageOwners | None = None
    find_digest: Callable[[str], str | None] | None = None
    usage_pause_factor: float = 10.0
    quiet_pause_s: float = 3.0  # Between two questions to the kernel

    def __post_init__(self) -> None:
        self._documents = Documents(self.client)
        self._names = Names()
        self._daemon = CurrentDaemon(self.client.endpoint)
        self._pulls: dict[str, _LeasePull] = {}
        self._ended: list[PullState] = []
        self._measured: dict[str, tuple[int, float]] = {}  # size, and when to measure next
        self._recheck_at = -math.inf  # When all layers are to be confirmed
        self._received_at: float | None = None  # When the last byte arrived, if that is known
        self._quiet_at = -math.inf  # When the kernel is to be asked

    def expect(self, expected: Expected) -> None:
        """Announce a pull before it is requested, to have it shown by its name.

        A reference by tag is matched to the first later lease for its repository, so pulls of
        several tags of one repository that begin together may be mixed up.
        """
        self._names.expect(expected)

    def forget(self, expected: Expected) -> None:
        """Note that an announced pull is over: without an image by now, it has failed."""
        self._names.forget(expected)

    def ended(self, image: str, started_s: float) -> PullState | None:
        """Return a finished pull with its layers as stored; None if its image is gone.

        ``image`` is the canonical reference. Unpacked bytes are the size on disk.
        """
        images = self.client.images(f"name=={image}")
        if not images:
            return None
        pull = _LeasePull("", started_s, self.snapshotter, Layers(started_s), image)
        index = self._read(pull, images[0].target.digest, 0.0)
        if isinstance(index, Index):
            for info in self.client.infos(manifest.digest for manifest in index.manifests):
                self._read(pull, info, 0.0)
        self._place(pull, ())
        if pull.manifest is None:
            return None
        self._confirm([pull])
        for layer in pull.layers:
            if layer.phase is Phase.DONE:
                usages = (self.client.usage(pull.snapshotter, name) for name in layer.chain_ids)
                layer.extracted_total = layer.extracted = sum(usage or 0 for usage in usages)
        return replace(pull.state(), digest=images[0].target.digest)

    def poll(self, now: float, *, wall_s: float | None = None) -> PollResult:
        """Return all pulls with their layers; ``now`` is the time of a monotonic clock."""
        wall_s = time.time() if wall_s is None else wall_s
        try:
            self._daemon.refresh()
            leases = {lease.id: lease for lease in sorted(self.client.leases(), key=created_at)}
            running = {
                lease_id: lease
                for lease_id, lease in leases.items()
                if (lease.labels.keys() == {EXPIRY_LABEL} or _is_load(lease))
                and not self._daemon.is_outlived(created_at(lease))
            }
            self._end_others(running.keys(), leases.keys())
            for lease_id, lease in running.items():
                if lease_id not in self._pulls:
                    began_s, image = created_at(lease), lease.labels.get(LOAD_LABEL, "")
                    layers = Layers(began_s)
                    pull = _LeasePull(lease_id, began_s, self.snapshotter, layers, image)
                    self._pulls[lease_id] = pull
            if self._pulls:
                self._poll_pulls(now, wall_s)
        except PycrictlError:
            self._daemon.look_again()
            raise
        ended, self._ended = tuple(self._ended), []
        return PollResult(tuple(filter(None, (pull.shown for pull in self._pulls.values()))), ended)

    # Running pulls

    def _poll_pulls(self, now: float, wall_s: float) -> None:
        # This order loses no layer between two responses: an ingest that has vanished is a blob by
        # the time its lease is listed.
        statuses = self.client.statuses()
        ingests = {status.ref: ingest_digest(status.ref) for status in statuses}
        is_due = now >= self._recheck_at
        stale = [pull for pull in self._pulls.values() if is_due or pull.may_have_changed(ingests)]
        resources = self.client.resources(pull.lease_id for pull in stale)
        for pull in stale:
            # None for a lease that has just ended; the next poll reports how.
            pull.held = _sort(resources[pull.lease_id]) if pull.lease_id in resources else None
        held = {pull: pull.held for pull in self._pulls.values() if pull.held is not None}
        stores = _stores(held.values(), statuses, self.max_concurrent_downloads)
        for key in self._measured.keys() - set(stores.active.values()):
            del self._measured[key]
        for pull, lease in held.items():
            pull.snapshotter = lease.snapshotter or pull.snapshotter
            self._identify(pull, lease.blobs, now)
        self._follow([*held], stores, now, wall_s)
        self._measure_quiet(now)  # after the layers were updated, as ``why`` polls only once
        for pull, lease in held.items():
            if self.owners is not None and not pull.pods:
                pull.pods = self.owners.pods_of(pull.image)
            pull.shown = None
            if self._is_shown(pull, lease, wall_s):
                received_at = self._received_at
                shown = pull.state(None if received_at is None else now - received_at)
                is_ready = pull.image and (pull.is_placed or now >= pull.late_at)
                pull.shown = shown if is_ready else replace(shown, layers=())

    def _measure_quiet(self, now: float) -> None:
        """Ask the kernel for how long nothing has arrived, if a layer may have stalled.

        It is asked again only when that time may have reached ``STALLED_S``.
        """
        layers = [layer for pull in self._pulls.values() for layer in pull.layers]
        idle_s = [layer.idle_s for layer in layers if layer.phase is Phase.DOWNLOADING]
        if max(idle_s, default=0.0) < STALLED_S or not self._daemon.pid:
            self._received_at = None
        elif now >= self._quiet_at:
            idle = quiet_s(self._daemon.pid)
            self._received_at = None if idle is None else now - idle
            self._quiet_at = now + max(STALLED_S - (idle or 0.0), self.quiet_pause_s)

    def _is_shown(self, pull: _LeasePull, held: _Held, wall_s: float) -> bool:
        is_young = _EMPTY_LEASE_S <= wall_s - pull.started_s < RESOLVING_S
        is_resolving = is_young and (held.blobs or not held.snapshotter)
        return bool(pull.manifest or held.ingests or is_resolving)

    # The image of a pull

    def _identify(self, pull: _LeasePull, blobs: Iterable[str], now: float) -> None:
        """Find a pull's manifest, snapshots and name from the blobs in its lease."""
        if pull.manifest is None:
            infos = self.client.infos(
                digest for digest in blobs if digest not in pull.judged
            ).values()
            # Documents have labels that refer to other blobs; a layer may have no labels at all.
            for info in [info for info in infos if has_children(info.labels)]:
                self._read(pull, info.digest, now)
        self._place(pull, blobs)
        if pull.manifest is not None and not pull.image:
            self._name(pull, is_final=now >= pull.late_at)

    def _read(self, pull: _LeasePull, digest: str, now: float) -> Document | None:
        document = self._documents.get(digest)
        pull.judged.add(digest)
        if isinstance(document, Index):
            pull.index_digest = pull.index_digest or digest
        elif isinstance(document, Manifest) and pull.manifest is None:
            pull.manifest, pull.manifest_digest, pull.late_at = document, digest, now + SETTLE_S
            pull.layers.add(document.layers)
            self._recheck_at = -math.inf
        return document

    def _place(self, pull: _LeasePull, blobs: Iterable[str]) -> None:
        """Learn from the config which snapshots the layers are unpacked to."""
        if pull.manifest is None or pull.is_placed:
            return
        config = self._documents.get(pull.manifest.config.digest)
        if config is None and pull.manifest.config.digest not in blobs:
            return  # it is still to be fetched
        diff_ids = config.diff_ids if isinstance(config, ImageConfig) else ()
        pull.layers.place(pull.manifest.layers, chain_ids(diff_ids))
        pull.is_placed, self._recheck_at = True, -math.inf

    def _name(self, pull: _LeasePull, *, is_final: bool) -> None:
        """Name a pull, or look again for which of its candidates it is."""
        sources = repositories(info.labels for info in self.client.infos(pull.digests).values())
        images = self._images(pull)
        candidates = self._candidates(pull, sources, images)
        if pull.image:
            pull.candidates = tuple(candidates) or pull.candidates
            return
        if len(candidates) > 1 and pull.question is not None and not pull.question.are_complete:
            return
        pull.image = self._names.choose(
            pull.lease_id,
            pull.started_s,
            digests=pull.digests,
            repositories=sources,
            images=images,
            is_final=is_final,
            candidates=candidates,
        )
        pull.candidates = tuple(candidates) if pull.image not in candidates else ()

    def _candidates(
        self, pull: _LeasePull, sources: Sequence[str], images: Sequence[str]
    ) -> list[str]:
        """Return the images of waiting pods that a pull may be for; ask the registry if needed."""
        if self.owners is None:
            return []
        candidates = self.owners.candidates(
            pull.digests,
            sources,
            images,
            began_s=pull.started_s,
            taken={other.image for other in self._pulls.values() if other is not pull},
        )
        if len(candidates) > 1 and pull.question is None and self.find_digest is not None:
            pull.question = Answers(candidates, self.find_digest)
        if pull.question is not None:
            answers = pull.question.known
            exact = [name for name in candidates if answers.get(name) in pull.digests]
            candidates = exact or [name for name in candidates if answers.get(name) is None]
        return candidates

    def _images(self, pull: _LeasePull) -> list[str]:
        """Return the node's names for the pulled image, including its ID."""
        filters = (f"target.digest=={digest}" for digest in pull.digests)
        return [image.name for image in self.client.images(*filters)]

    # Progress

    def _follow(
        self, pulls: Sequence[_LeasePull], stores: StoreState, now: float, wall_s: float
    ) -> None:
        doubtful = [pull for pull in pulls if pull.layers.update(stores, pull.snapshotter, wall_s)]
        is_due = now >= self._recheck_at
        confirmed = pulls if is_due else doubtful
        self._confirm(confirmed)
        if is_due:
            self._recheck_at = now + _RECHECK_S
        for pull in confirmed:
            if len(pull.candidates) > 1:
                self._name(pull, is_final=False)
        for pull in pulls:
            self._read_trailers(pull, _TRAILERS_PER_POLL)
            for layer in pull.layers:
                if layer.extraction is not None and layer.phase is Phase.EXTRACTING:
                    layer.extract_to(self._measure(pull.snapshotter, layer.extraction, now))

    def _read_trailers(self, pull: _LeasePull, most: int) -> None:
        for layer in itertools.islice(
            (layer for layer in pull.layers if layer.wants_trailer), most
        ):
            layer.learn(self._documents.unpacked_bytes(layer.digest, layer.size_bytes))

    def _confirm(self, pulls: Sequence[_LeasePull]) -> None:
        """Look up what other leases hold, or no lease; for all pulls at once, to save calls."""
        missing = {
            layer.digest
            for pull in pulls
            for layer in pull.layers.unsettled
            if not layer.is_complete
        }
        infos = self.client.infos(missing)
        blobs = {digest: seconds(info.created_at) for digest, info in infos.items()}
        for snapshotter in {pull.snapshotter for pull in pulls}:
            own = [pull.layers for pull in pulls if pull.snapshotter == snapshotter]
            unsettled = itertools.chain.from_iterable(layers.unsettled for layers in own)
            names = {name for layer in unsettled for name in layer.chain_ids}
            snapshots: Mapping[str, snapshots_pb2.Info] = {}
            with suppress(Invalid):  # a snapshotter that is not loaded
                snapshots = self.client.snapshots(snapshotter, names)
            committed = {
                name: seconds(info.created_at)
                for name, info in snapshots.items()
                if info.kind == snapshots_pb2.COMMITTED
            }
            for layers in own:
                layers.confirm(blobs, committed)

    def _measure(self, snapshotter: str, key: str, now: float) -> int:
        size_bytes, next_at = self._measured.get(key, (0, 0.0))
        if now >= next_at:
            began_at = time.monotonic()
            with suppress(DeadlineExceeded):
                size_bytes = self.client.usage(snapshotter, key) or size_bytes
            next_at = now + self.usage_pause_factor * (time.monotonic() - began_at)
            self._measured[key] = size_bytes, next_at
        return size_bytes

    # Ended pulls

    def _end_others(self, running_ids: Set[str], lease_ids: Set[str]) -> None:
        for lease_id in self._pulls.keys() - running_ids:
            pull, is_there = self._pulls[lease_id], lease_id in lease_ids
            reason = "containerd was restarted during the pull" if is_there else _NO_IMAGE
            if pull.shown is not None:
                self._ended.append(self._end(pull, reason))
            del self._pulls[lease_id]
            self._recheck_at = -math.inf  # its lease may have held layers of others

    def _end(self, pull: _LeasePull, reason: str) -> PullState:
        """Return a pull that has ended, with its error if it has failed.

        Without a record of its image it failed: containerd makes that before deleting the lease.
        """
        if pull.manifest is None:
            return PullState(error=_UNKNOWN_REASON)
        self._place(pull, ())
        if not pull.image:
            self._name(pull, is_final=True)
        self._confirm([pull])
        layers, has_image = pull.layers, bool(self._images(pull))
        if has_image and layers.is_complete:
            layers.finish()
            self._read_trailers(pull, _TRAILERS)
        elif layers.is_complete:
            pull.error = "all layers were fetched, but the runtime made no image from them"
        else:
            there = sum(layer.is_complete for layer in layers)
            pull.error = f"{reason} ({there} of {plural(len(layers), 'layer')} seen complete)"
        return pull.state()


def _sort(resources: Iterable[leases_pb2.Resource]) -> _Held:
    held = _Held()
    for resource in resources:
        if resource.type == "ingests":
            held.ingests.add(resource.id)
        elif resource.type == "content":
            held.blobs.add(resource.id)
        elif resource.type.startswith(_SNAPSHOTS):
            held.snapshotter = resource.type.removeprefix(_SNAPSHOTS)
            chain_id = extracted_chain_id(resource.id)
            if chain_id is None:
                held.committed.add((held.snapshotter, resource.id))
            else:
                held.active[held.snapshotter, chain_id] = resource.id
    return held


def _stores(
    held: Collection[_Held], statuses: Iterable[content_pb2.Status], max_downloads: int
) -> StoreState:
    stores = StoreState()
    for lease in held:
        stores.blobs |= lease.blobs
        stores.committed |= lease.committed
        stores.active |= lease.active
    refs = set().union(*(lease.ingests for lease in held))
    open_count = 0
    for status in statuses:
        if digest := ingest_digest(status.ref):
            is_held = status.ref in refs
            open_count += is_held and status.offset < status.total
            stores.ingests[digest] = Ingest(status.offset, seconds(status.updated_at), is_held)
    stores.is_crowded = 0 < max_downloads < open_count
    return stores


def _is_load(lease: leases_pb2.Lease) -> bool:
    """Return whether a lease is that of a running load (``pulls.archives.loading``)."""
    return LOAD_LABEL in lease.labels and not is_abandoned(lease.id)


def created_at(lease: leases_pb2.Lease) -> float:
    return seconds(lease.created_at)
