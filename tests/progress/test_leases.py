"""Which leases are running pulls."""

from __future__ import annotations

import os
import time
from pathlib import Path

import grpc
import pytest

from pycrictl.containerd.grpc_client import ContainerdClient
from pycrictl.errors import Unavailable
from pycrictl.progress.leases import RESOLVING_S, SILENCE_S, LeaseBook
from tests.containerd.fakectd import FakeContainerd, Ingest, Lease, Snapshot
from tests.containerd.fixtures import fake

__all__ = ["fake"]

NOW_S = time.time()
EXTRACTION = f"extract-1-abcd sha256:{'a' * 64}"


@pytest.fixture
def book(fake: FakeContainerd) -> LeaseBook:
    return LeaseBook(ContainerdClient(fake.path))


def running(
    fake: FakeContainerd, book: LeaseBook, wall_s: float, pulls: tuple[str, ...] = ()
) -> list[str]:
    leases = ContainerdClient(fake.path).leases()
    book.refresh()
    return [lease.id for lease in book.running(leases, pulls, wall_s)]


def this_process(fake: FakeContainerd) -> None:
    """Makes the test's own process the daemon."""
    fake.pid, fake.pidns = os.getpid(), Path("/proc/self/ns/pid").stat().st_ino


def test_a_lease_of_before_the_daemon_is_dead(fake: FakeContainerd, book: LeaseBook) -> None:
    this_process(fake)
    fake.leases["dead"] = Lease(1000.0)
    fake.leases["alive"] = Lease(NOW_S + 1)
    assert running(fake, book, NOW_S + 2, pulls=("dead",)) == ["alive"]
    assert book.is_outlived(1000.0)
    assert not book.is_outlived(NOW_S + 1)


def test_a_silent_pull_of_a_known_daemon_is_alive(fake: FakeContainerd, book: LeaseBook) -> None:
    this_process(fake)
    fake.leases["pull"] = Lease(NOW_S + 1)
    fake.leases["nothing"] = Lease(NOW_S + 1)
    late_s = NOW_S + 10 * SILENCE_S
    assert set(running(fake, book, late_s, pulls=("pull",))) == {"pull", "nothing"}
    # What was looked into and holds no image is nobody's pull.
    assert running(fake, book, late_s, pulls=("pull",)) == ["pull"]


def test_an_empty_lease_is_a_pull_for_a_while(fake: FakeContainerd, book: LeaseBook) -> None:
    this_process(fake)
    fake.leases["new"] = Lease(NOW_S + 1)
    assert running(fake, book, NOW_S + 2) == ["new"]
    assert running(fake, book, NOW_S + RESOLVING_S) == ["new"]
    assert running(fake, book, NOW_S + RESOLVING_S + 2) == []
    book.waits("new", NOW_S + 1, NOW_S + RESOLVING_S + 2)
    assert running(fake, book, NOW_S + RESOLVING_S + 3) == ["new"]


def test_silence_where_the_daemon_cannot_be_seen(fake: FakeContainerd, book: LeaseBook) -> None:
    fake.leases["pull"] = Lease(NOW_S)
    assert running(fake, book, NOW_S + SILENCE_S - 1, pulls=("pull",)) == ["pull"]
    assert running(fake, book, NOW_S + SILENCE_S + 1, pulls=("pull",)) == []
    book.moved("pull", NOW_S + SILENCE_S)
    assert running(fake, book, NOW_S + SILENCE_S + 2, pulls=("pull",)) == ["pull"]
    book.waits("pull", NOW_S, NOW_S + 3 * SILENCE_S)  # an ingest as old as the lease
    assert running(fake, book, NOW_S + 3 * SILENCE_S, pulls=("pull",)) == []


@pytest.mark.parametrize("what", ["resource", "ingest", "extraction"])
def test_suspects_show_signs_of_life(fake: FakeContainerd, book: LeaseBook, what: str) -> None:
    lease = fake.leases["old"] = Lease(NOW_S - 1000)
    lease.holds = [("ingests", "layer-x"), ("snapshots/overlayfs", EXTRACTION)]
    fake.ingests["layer-x"] = Ingest(5, 10, NOW_S - 1000)
    fake.snapshots[EXTRACTION] = Snapshot("ACTIVE", NOW_S - 1000, 5)
    for step in range(3):
        assert running(fake, book, NOW_S + step) == []
    if what == "resource":
        lease.holds.append(("content", "sha256:new"))
    elif what == "ingest":
        fake.ingests["layer-x"].offset += 1
    else:
        fake.snapshots[EXTRACTION].usage += 1
    running(fake, book, NOW_S + 4)
    assert running(fake, book, NOW_S + 5) == ["old"]


def test_another_daemon(fake: FakeContainerd, book: LeaseBook) -> None:
    """After an error it is asked for again; else only when its process has gone."""
    this_process(fake)
    for _ in range(3):
        running(fake, book, NOW_S)
    assert fake.calls["server"] == 1
    book.forget_daemon()
    fake.failures["server"] = (grpc.StatusCode.UNAVAILABLE, "restarting")
    with pytest.raises(Unavailable):
        book.refresh()
    fake.failures.clear()
    running(fake, book, NOW_S)
    assert fake.calls["server"] == 3
