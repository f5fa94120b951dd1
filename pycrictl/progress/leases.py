"""Which leases belong to running pulls.

Every pull holds one lease from its first moment to its end, labelled with nothing but an expiry a
day ahead. A pull that dies with its containerd leaves behind its lease and its unfinished blobs,
which look no different. What is older than the daemon's process is dead. Where the process cannot
be seen, a lease has to show signs of life.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

from pycrictl.containerd.daemon import Daemon, find_daemon
from pycrictl.containerd.store import extracted_chain_id
from pycrictl.errors import DeadlineExceeded

if TYPE_CHECKING:
    from pycrictl._proto.containerd import leases_pb2
    from pycrictl.containerd.grpc_client import ContainerdClient

EXPIRY_LABEL: Final = "containerd.io/gc.expire"
CONTENT: Final = "content"
INGESTS: Final = "ingests"
SNAPSHOTS: Final = "snapshots/"
"""Types of what a lease holds; the last is followed by the snapshotter's name."""

SILENCE_S: Final = 300.0
"""How long a lease may show no sign of life where the daemon's age is unknown. By default
containerd cancels a download that stands still for as long."""

RESOLVING_S: Final = 120.0
"""How long a lease that holds nothing is taken for a pull that is still asking its registry."""

_CLOCK_SLACK_S: Final = 0.05
"""Processes' start times are rounded to ticks of 10 ms, and calculated from two clocks."""

_Held: TypeAlias = frozenset[tuple[str, str, int]]


class LeaseBook:
    def __init__(self, client: ContainerdClient) -> None:
        self._client = client
        self._daemon: Daemon | None = None
        self._must_ask = True
        self._signs: dict[str, float] = {}
        self._seen: set[str] = set()
        self._suspects: dict[str, _Held | None] = {}

    def refresh(self) -> None:
        """Find out which containerd is running; to be called before its leases are listed."""
        if self._must_ask or (self._daemon is not None and not self._daemon.still_runs()):
            self._daemon = find_daemon(self._client)
            self._must_ask = False

    def forget_daemon(self) -> None:
        """Look at the daemon again, after a failed call: it may be another one by now."""
        self._must_ask = True

    def is_outlived(self, created_s: float) -> bool:
        """Return whether what was created then belongs to a containerd that has ended."""
        return self._daemon is not None and created_s < self._daemon.started_s - _CLOCK_SLACK_S

    def moved(self, lease_id: str, wall_s: float) -> None:
        self._signs[lease_id] = wall_s

    def set_clock(self, by_s: float) -> None:
        """Shift the times noted so far, as the wall clock was set by so many seconds."""
        self._signs = {key: at + by_s for key, at in self._signs.items()}

    def waits(self, lease_id: str, ingest_updated_s: float, wall_s: float) -> None:
        """Note that a lease without an image yet has an ingest, though it may not grow."""
        self.moved(lease_id, ingest_updated_s if self._daemon is None else wall_s)

    def running(
        self, leases: Sequence[leases_pb2.Lease], pulls: Container[str], wall_s: float
    ) -> list[leases_pb2.Lease]:
        """Return the leases of what may be running pulls, oldest first.

        A lease is looked into at least once. Others than pulls, and those without a sign of life,
        are suspects from then on: one of them is looked at in each call, however many there are.
        ``pulls`` are the IDs of leases that are known to be pulls.
        """
        found, suspects = [], set()
        for lease in leases:
            created_s = created_at(lease)
            if lease.labels.keys() != {EXPIRY_LABEL} or self.is_outlived(created_s):
                continue
            silent_s = wall_s - self._signs.setdefault(lease.id, created_s)
            is_pull_or_new = lease.id in pulls or lease.id not in self._seen
            if is_pull_or_new and self._daemon is not None:
                is_running = True
            else:
                is_running = silent_s < (SILENCE_S if is_pull_or_new else RESOLVING_S)
            if is_running:
                found.append(lease)
            else:
                suspects.add(lease.id)
        ids = {lease.id for lease in leases}
        self._seen = ids
        self._signs = {key: at for key, at in self._signs.items() if key in ids}
        self._suspects = {
            **{key: held for key, held in self._suspects.items() if key in suspects},
            **{key: None for key in suspects if key not in self._suspects},
        }
        self._examine_one(wall_s)
        return sorted(found, key=created_at)

    def _examine_one(self, wall_s: float) -> None:
        if not self._suspects:
            return
        lease_id = next(iter(self._suspects))
        before = self._suspects.pop(lease_id)
        now = self._suspects[lease_id] = self._held(lease_id)
        if before is not None and before != now:
            self.moved(lease_id, wall_s)

    def _held(self, lease_id: str) -> _Held:
        resources = self._client.resources(lease_id) or ()
        offsets = {}
        if any(resource.type == INGESTS for resource in resources):
            offsets = {status.ref: status.offset for status in self._client.statuses()}
        held = set()
        for resource in resources:
            size_bytes = offsets.get(resource.id, 0)
            if extracted_chain_id(resource.id) is not None:
                snapshotter = resource.type.removeprefix(SNAPSHOTS)
                with suppress(DeadlineExceeded):
                    size_bytes = self._client.usage(snapshotter, resource.id) or 0
            held.add((resource.type, resource.id, size_bytes))
        return frozenset(held)


def created_at(lease: leases_pb2.Lease) -> float:
    return lease.created_at.ToNanoseconds() / 1e9
