"""Places and space of a node that several users want."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pycrictl.agent.copies.admission import REST_S
from pycrictl.agent.copies.engine import Engine
from pycrictl.agent.copies.http_errors import Refused
from pycrictl.agent.copies.session import CopyOwner, CopySpec, Direction, Place, Session
from pycrictl.copy.archive.archives import Incoming
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.quotas import MAX_COPIES
from pycrictl.errors import Exhausted
from tests.agent.copies.small import SmallAgent
from tests.kubectl.copies.conftest import Start

MIB = 1 << 20
MALLORY, JANE = CopyOwner("mallory"), CopyOwner("jane")


class Node:
    """An agent with a clock of its own, and pods of any name."""

    def __init__(self, agent: SmallAgent) -> None:
        self.agent = agent
        self.agent.now_s = 0.0

    def begin(self, owner: CopyOwner, pod: str = "web", size_bytes: int = MIB) -> Session:
        spec = CopySpec(Direction.TO, b"/to/f", size_bytes=size_bytes, crc32=7)
        place = Place("shop", pod, "uid1", "main")
        return self.agent.do(self.agent.copies.begin(owner, place, spec))

    def arrive(self, session: Session, size_bytes: int) -> None:
        self.agent.do(self.agent.copies.admission.hold(session, size_bytes))

    def wait(self, seconds: float) -> None:
        assert self.agent.now_s is not None
        self.agent.now_s += seconds

    def has(self, session: Session) -> bool:
        return session.name in self.agent.copies.sessions


@pytest.fixture
def of_any_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(self: Any, asked: Place) -> Place:
        return replace(asked, container_id="c" * 64, sandbox_id=f"sandbox of {asked.pod}")

    def wait(self: Any, place: Place, spec: CopySpec, archive: Incoming, watch: Any) -> Summary:
        for _ in archive.pieces():
            pass
        return Summary()

    monkeypatch.setattr(Engine, "find", find)
    monkeypatch.setattr(Engine, "place", wait)


def test_what_is_announced_keeps_nobody_out(start: Start) -> None:
    """Of 200 MiB, 190 are announced, and nothing comes of them."""
    node = Node(start(spool_limit=200 * MIB))
    node.begin(MALLORY, size_bytes=190 * MIB)
    hers = node.begin(JANE, size_bytes=150 * MIB)
    node.arrive(hers, 150 * MIB)
    with pytest.raises(Refused, match=r"210\.0 MiB of its disk, and may take 200\.0 MiB"):
        node.begin(JANE, size_bytes=210 * MIB)  # it can never fit


def test_space_of_a_copy_that_rests(start: Start) -> None:
    node = Node(start(spool_limit=10 * MIB))
    first = node.begin(MALLORY, size_bytes=10 * MIB)
    node.arrive(first, 5 * MIB)
    hers = node.begin(JANE, size_bytes=10 * MIB)
    with pytest.raises(Exhausted, match="of its disk"):
        node.arrive(hers, 6 * MIB)
    node.wait(REST_S)
    assert node.has(first)
    node.arrive(hers, 6 * MIB)
    assert not node.has(first)
    assert node.agent.audits[-1] == "expired"


def test_a_user_with_more_than_half_of_the_space_gives_way(start: Start) -> None:
    node = Node(start(spool_limit=10 * MIB))
    many = [node.begin(MALLORY, size_bytes=4 * MIB) for _ in range(2)]
    for one in many:
        node.arrive(one, 4 * MIB)
        node.wait(1)
    hers = node.begin(JANE, size_bytes=4 * MIB)
    node.arrive(hers, 4 * MIB)
    assert [node.has(one) for one in many] == [False, True]


@pytest.mark.usefixtures("of_any_pod")
def test_a_user_with_more_than_half_of_the_places_gives_way(start: Start) -> None:
    node = Node(start())
    many = [node.begin(MALLORY, f"p{number % 6}") for number in range(3 * MAX_COPIES // 4)]
    assert len(many) == 48
    node.wait(1)
    rest = [node.begin(MALLORY, f"q{number}") for number in range(MAX_COPIES - len(many))]
    hers = node.begin(JANE)
    assert node.has(hers)
    gone = [one for one in [*many, *rest] if not node.has(one)]
    assert gone == [many[0]], "what has rested longest gives way, and no more than that"
    with pytest.raises(Refused, match="64 copies are under way"):
        node.begin(MALLORY, "other")


@pytest.mark.usefixtures("of_any_pod")
def test_one_user_does_not_keep_others_out_of_a_pod(start: Start) -> None:
    """A pod has half of all places at most, and so has a user."""
    node = Node(start())
    many = [node.begin(MALLORY) for _ in range(MAX_COPIES // 2)]
    assert node.has(node.begin(JANE))
    assert [node.has(one) for one in many] == [False] + [True] * 31
    with pytest.raises(Refused, match="its share of all"):
        node.begin(MALLORY)


@pytest.mark.usefixtures("of_any_pod")
def test_a_place_of_a_pod_that_rests(start: Start) -> None:
    node = Node(start(per_pod=1))
    first, elsewhere = node.begin(MALLORY), node.begin(MALLORY, "db")
    with pytest.raises(Refused, match="ContainerCopiesPerPod"):
        node.begin(JANE)
    node.wait(REST_S)
    assert node.has(node.begin(JANE))
    assert [node.has(one) for one in (first, elsewhere)] == [False, True]
