"""Watches every image pull of a containerd from outside, through containerd's own API.

containerd does not list its running pulls. But each holds a lease, and the lease holds what the
pull has fetched, such as the manifest, which names all layers and their sizes before the first one
begins. One look costs a handful of calls: the leases, the unfinished blobs, what each pull's lease
holds, and the size of what is being unpacked. Documents are read once. A node without pulls costs
one call.

A pull's lease is labelled with nothing but an expiry a day ahead. A pull that dies with its
containerd leaves behind its lease and its unfinished blobs, which look no different. What is older
than the daemon's process is dead. Where the process cannot be seen, a lease has to show signs of
life.
"""

from __future__ import annotations

import itertools
import math
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from pycrictl._proto.containerd import snapshots_pb2
from pycrictl.containerd.daemon import CurrentDaemon
from pycrictl.containerd.grpc_client import Documents
from pycrictl.containerd.store import extracted_chain_id, ingest_digest
from pycrictl.errors import DeadlineExceeded, Invalid, PycrictlError
from pycrictl.progress.identify import Held, Identifier, LeasePull
from pycrictl.progress.layers import Ingest, Sight, Snapshot
from pycrictl.progress.pull_names import Expected, Names
from pycrictl.pulls.model import Phase
from pycrictl.pulls.tracker import pull_of
from pycrictl.units import plural
from pycrictl.wire.progress import Report

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Set

    from google.protobuf.timestamp_pb2 import Timestamp

    from pycrictl._proto.containerd import content_pb2, leases_pb2
    from pycrictl.containerd.grpc_client import ContainerdClient
    from pycrictl.progress.pull_names import ImageOwners
    from pycrictl.pulls.model import Pull
    from pycrictl.pulls.tracker import Tracker

EXPIRY_LABEL: Final = "containerd.io/gc.expire"

SILENCE_S: Final = 300.0
"""How long a lease may show no sign of life where the daemon's age is unknown. By default
containerd cancels a download that stands still for as long."""

RESOLVING_S: Final = 120.0
"""How long a lease that holds nothing is taken for a pull that is still asking its registry."""

CLOCK_SLACK_S: Final = 0.5
_RECHECK_S: Final = 5.0
_EMPTY_LEASE_S: Final = 0.5  # creating a container takes a lease too, for a moment
_TRAILERS_PER_POLL: Final = 4
_TRAILERS: Final = 32  # read at a pull's end
_USAGE_PAUSE_FACTOR: Final = 10.0
_SNAPSHOTS: Final = "snapshots/"
"""The type of a snapshot that a lease holds, followed by the snapshotter's name."""

_REMOTE_LABEL: Final = "containerd.io/snapshot/remote"
_UNKNOWN_REASON: Final = (
    "a pull ended before its image was known: it failed, or the node had the image already"
)


class PullEnding(StrEnum):
    """How a pull ended; ``UNKNOWN`` if it did before its lease held anything.

    Then the registry has refused the image, or says that the node has the newest.
    """

    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ActivePull:
    """A running pull; ``image`` is its name for good, and empty while the registry is asked."""

    lease_id: str
    image: str
    started_s: float


@dataclass(frozen=True, slots=True)
class EndedPull:
    """A pull that has ended; ``image`` is empty if it never had a name."""

    lease_id: str
    image: str
    ending: PullEnding
    reason: str


@dataclass(frozen=True, slots=True)
class PollResult:
    """Running pulls, oldest first, those that ended; ``is_settling``: a cause is sought."""

    active: tuple[ActivePull, ...]
    ended: tuple[EndedPull, ...]
    is_settling: bool = False


@dataclass(slots=True)
class _UsageMeter:
    size_bytes: int = 0
    next_at: float = 0.0


class ContentWatcher:
    """Polls a containerd and feeds a tracker with every layer of every running pull.

    ``snapshotter`` is where layers are looked for until a pull shows where it unpacks them,
    ``max_concurrent_downloads`` 0 for any number. Only ``expect`` and ``forget`` are thread-safe.
    """

    def __init__(
        self,
        client: ContainerdClient,
        *,
        snapshotter: str = "overlayfs",
        max_concurrent_downloads: int = 3,
        owners: ImageOwners | None = None,
    ) -> None:
        self._client = client
        self._snapshotter = snapshotter
        self._max_downloads = max_concurrent_downloads
        self._documents = Documents(client)
        self._owners = owners
        self._names = Names(owners)
        self._identifier = Identifier(client, self._documents, self._names)
        self._daemon = CurrentDaemon(client)
        self._pulls: dict[str, LeasePull] = {}
        self._ended: list[EndedPull] = []
        self._meters: dict[str, _UsageMeter] = {}
        self._offset_s = -math.inf

    def expect(self, expected: Expected) -> None:
        """Announce a pull, before it is asked for, and so have it shown by its name.

        A reference by tag gets the first lease from then on that comes from its repository, so
        pulls of several tags of one repository that begin together may be mixed up.
        """
        self._names.expect(expected)

    def forget(self, expected: Expected) -> None:
        """Take the end of an announced pull: what is not there now has failed."""
        self._names.forget(expected)

    def ended(self, image: str, started_s: float) -> Pull | None:
        """Return a pull that is over, as the stores show its layers; None if its image is gone.

        ``image`` is its canonical spelling. Bytes unpacked are those on disk.
        """
        images = self._client.images(f"name=={image}")
        pull = LeasePull("", started_s, self._snapshotter)
        pull.image = image
        if not images or not self._identifier.read(pull, images[0].target.digest):
            return None
        self._confirm(pull)
        for layer in pull.layers:
            if layer.phase is Phase.DONE:
                usages = (self._client.usage(pull.snapshotter, name) for name in layer.chain_ids)
                layer.extracted_total = layer.extracted = sum(one or 0 for one in usages)
        return replace(pull_of(image, _reports(pull)), digest=images[0].target.digest)

    def poll(self, tracker: Tracker, now: float, *, wall_s: float | None = None) -> PollResult:
        """Report every layer of all pulls to ``tracker``, whose time is ``now``."""
        wall_s = time.time() if wall_s is None else wall_s
        self._set_clock(wall_s - now)
        try:
            self._daemon.refresh()
            leases = self._client.leases()
            running = {
                lease.id: created_s
                for lease in sorted(leases, key=created_at)
                if lease.labels.keys() == {EXPIRY_LABEL}
                and not self._daemon.is_outlived(created_s := created_at(lease))
            }
            self._end_others(running.keys(), {lease.id for lease in leases}, tracker, now, wall_s)
            for lease_id, created_s in running.items():
                if lease_id not in self._pulls:
                    self._pulls[lease_id] = LeasePull(lease_id, created_s, self._snapshotter)
            if self._pulls:
                self._look(tracker, now, wall_s)
        except PycrictlError:
            self._daemon.look_again()
            raise
        ended, self._ended = tuple(self._ended), []
        active = [
            ActivePull(pull.lease_id, pull.image, pull.started_s)
            for pull in self._pulls.values()
            if pull.is_shown
        ]
        return PollResult(tuple(active), ended)

    def _set_clock(self, offset_s: float) -> None:
        by_s, self._offset_s = offset_s - self._offset_s, offset_s
        if CLOCK_SLACK_S < abs(by_s) < math.inf:
            for pull in self._pulls.values():
                pull.moved_s += by_s
            self._names.set_back(max(-by_s, 0.0))

    # What runs

    def _look(self, tracker: Tracker, now: float, wall_s: float) -> None:
        # In this order no layer is lost between two answers: what is no longer an ingest has become
        # a blob by the time its lease is asked for blobs.
        statuses = self._client.statuses()
        sight, held = Sight(), dict[str, Held]()
        for pull in self._pulls.values():
            resources = self._client.resources(pull.lease_id)
            if resources is not None:  # else it has just ended, and the next poll says how
                held[pull.lease_id] = _sort(resources, sight)
        _add_ingests(sight, statuses, held.values(), self._max_downloads)
        self._meters = {key: self._meters.get(key, _UsageMeter()) for key in sight.active.values()}
        for pull in self._pulls.values():
            if pull.lease_id in held:
                pull.snapshotter = held[pull.lease_id].snapshotter or pull.snapshotter
                had_name = bool(pull.image)
                self._identifier.look(pull, held[pull.lease_id].blobs, now)
                if pull.image and not had_name and not self._is_shared(pull):
                    tracker.forget(pull.image)  # what an earlier pull has left
                self._follow(pull, sight, now, wall_s)
                is_shown = self._is_shown(pull, held[pull.lease_id], statuses, wall_s)
                pull.is_shown = is_shown or pull.is_missed
                if pull.is_shown and pull.is_ready(now):
                    if self._owners is not None and not pull.pods:
                        pull.pods = self._owners.pods_of(pull.image)
                    _report(tracker, pull, now, wall_s)

    def _is_shared(self, pull: LeasePull) -> bool:
        return any(one is not pull and one.image == pull.image for one in self._pulls.values())

    def _is_shown(
        self, pull: LeasePull, held: Held, statuses: Iterable[content_pb2.Status], wall_s: float
    ) -> bool:
        times = (_seconds(status.updated_at) for status in statuses if status.ref in held.ingests)
        pull.moved_s = max([pull.moved_s, *times])
        if not self._is_alive(pull, wall_s):
            return False
        is_young = _EMPTY_LEASE_S <= wall_s - pull.started_s < RESOLVING_S
        is_resolving = is_young and (held.blobs or not held.snapshotter)
        return bool(pull.manifest or held.ingests or is_resolving)

    def _is_alive(self, pull: LeasePull, wall_s: float) -> bool:
        return self._daemon.is_seen or wall_s - pull.moved_s < SILENCE_S

    def _follow(self, pull: LeasePull, sight: Sight, now: float, wall_s: float) -> None:
        is_doubtful = pull.layers.look(sight, pull.snapshotter, wall_s)
        if is_doubtful or now >= pull.recheck_at:
            self._confirm(pull)
            pull.recheck_at = now + _RECHECK_S
        pulse, reads_left = 0, _TRAILERS_PER_POLL
        for layer in pull.layers:
            if layer.wants_trailer and reads_left:
                layer.learn(self._documents.unpacked_bytes(layer.digest, layer.size_bytes))
                reads_left -= 1
            if layer.extraction is not None and layer.phase is Phase.EXTRACTING:
                layer.extract_to(self._measure(pull.snapshotter, layer.extraction, now))
            pulse += layer.progress + layer.extracted + layer.is_settled
        if pull.pulse not in (None, pulse):
            pull.moved_s = wall_s
        pull.pulse = pulse

    def _confirm(self, pull: LeasePull) -> None:
        layers = pull.layers.unsettled
        infos = self._client.infos(layer.digest for layer in layers if not layer.is_complete)
        names = [name for layer in layers for name in layer.chain_ids]
        snapshots: Mapping[str, snapshots_pb2.Info] = {}
        with suppress(Invalid):  # a snapshotter that is not loaded
            snapshots = self._client.snapshots(pull.snapshotter, names)
        pull.layers.confirm(
            {digest: _seconds(info.created_at) for digest, info in infos.items()},
            {
                name: Snapshot(_seconds(info.created_at), _REMOTE_LABEL in info.labels)
                for name, info in snapshots.items()
                if info.kind == snapshots_pb2.COMMITTED
            },
        )

    def _measure(self, snapshotter: str, key: str, now: float) -> int:
        meter = self._meters[key]
        if now >= meter.next_at:
            began_at = time.monotonic()
            with suppress(DeadlineExceeded):
                meter.size_bytes = self._client.usage(snapshotter, key) or meter.size_bytes
            # containerd counts all files each time: with very many of them, ask less often.
            meter.next_at = now + _USAGE_PAUSE_FACTOR * (time.monotonic() - began_at)
        return meter.size_bytes

    # What has ended

    def _end_others(
        self,
        running_ids: Set[str],
        lease_ids: Set[str],
        tracker: Tracker,
        now: float,
        wall_s: float,
    ) -> None:
        for lease_id, pull in list(self._pulls.items()):
            if lease_id in running_ids and (not pull.is_shown or self._is_alive(pull, wall_s)):
                continue
            if pull.is_shown and self._may_be_kept(pull, now):
                continue
            if lease_id not in lease_ids:
                reason = "the pull ended without an image"
            elif self._daemon.is_outlived(pull.started_s):
                reason = "containerd was restarted during the pull"
            else:
                reason = f"nothing has moved for {SILENCE_S:.0f} s"
            if pull.is_shown:
                self._ended.append(self._end(pull, reason))
                if pull.image:
                    _report(tracker, pull, now, wall_s)
            del self._pulls[lease_id]
            for other in self._pulls.values():  # it may have held layers of theirs
                other.recheck_at = -math.inf

    def _may_be_kept(self, pull: LeasePull, now: float) -> bool:
        """Learn the rest of a pull that has ended; return whether to look for its image again."""
        if pull.manifest is None:
            return False
        self._identifier.conclude(pull, now)
        self._confirm(pull)
        is_over = pull.expected is not None and pull.expected.is_over
        is_late = pull.is_missed or is_over or not pull.layers.is_complete
        pull.is_missed = not is_late and not self._identifier.images(pull)
        return pull.is_missed

    def _end(self, pull: LeasePull, reason: str) -> EndedPull:
        if pull.manifest is None:
            return EndedPull(pull.lease_id, "", PullEnding.UNKNOWN, _UNKNOWN_REASON)
        layers = pull.layers
        if layers.unsettled and layers.is_only_fetched and self._identifier.images(pull):
            layers.finish()
        if not layers.unsettled and self._identifier.images(pull):
            for layer in itertools.islice((one for one in layers if one.wants_trailer), _TRAILERS):
                layer.learn(self._documents.unpacked_bytes(layer.digest, layer.size_bytes))
            return EndedPull(pull.lease_id, pull.image, PullEnding.DONE, "")
        if layers.is_complete:
            pull.error = "all layers were fetched, and the runtime made no image of them"
        else:
            there = sum(layer.is_complete for layer in layers)
            pull.error = f"{reason} ({there} of {plural(len(layers), 'layer')} seen complete)"
        return EndedPull(pull.lease_id, pull.image, PullEnding.FAILED, pull.error)


def _sort(resources: Iterable[leases_pb2.Resource], sight: Sight) -> Held:
    ingests, blobs, snapshotter = set(), set(), ""
    for resource in resources:
        if resource.type == "ingests":
            ingests.add(resource.id)
        elif resource.type == "content":
            blobs.add(resource.id)
        elif resource.type.startswith(_SNAPSHOTS):
            snapshotter = resource.type.removeprefix(_SNAPSHOTS)
            chain_id = extracted_chain_id(resource.id)
            if chain_id is None:
                sight.committed.add((snapshotter, resource.id))
            else:
                sight.active[snapshotter, chain_id] = resource.id
    sight.blobs |= blobs
    return Held(ingests, blobs, snapshotter)


def _add_ingests(
    sight: Sight,
    statuses: Iterable[content_pb2.Status],
    held: Iterable[Held],
    max_downloads: int,
) -> None:
    refs = set().union(*(one.ingests for one in held))
    open_count = 0
    for status in statuses:
        if digest := ingest_digest(status.ref):
            is_held = status.ref in refs
            open_count += is_held and status.offset < status.total
            sight.ingests[digest] = Ingest(status.offset, _seconds(status.updated_at), is_held)
    sight.is_crowded = 0 < max_downloads < open_count


def _report(tracker: Tracker, pull: LeasePull, now: float, wall_s: float) -> None:
    age_s = max(wall_s - pull.started_s, 0.0)
    for layer, report in zip(pull.layers, _reports(pull), strict=True):
        tracker.apply(report, now=now, idle_s=layer.idle_s, age_s=age_s)


def _reports(pull: LeasePull) -> Iterator[Report]:
    # Where all layers are there, and yet it failed, one of them has the error.
    with_error = pull.layers.unsettled or [*pull.layers][-1:] if pull.error else []
    for layer in pull.layers:
        yield Report(
            image=pull.image,
            layer=layer.digest,
            progress=layer.progress,
            total=layer.size_bytes,
            error=pull.error if layer in with_error else "",
            phase=layer.phase,
            extracted=layer.extracted,
            extracted_total=layer.extracted_total,
            resumed=layer.resumed,
            pod=pull.pods,
        )


def created_at(lease: leases_pb2.Lease) -> float:
    return _seconds(lease.created_at)


def _seconds(timestamp: Timestamp) -> float:
    return timestamp.ToNanoseconds() / 1e9
