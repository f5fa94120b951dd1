"""Places and space of a node that several users want."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from pycrictl.agent.copies.admission import RESERVE_BYTES, REST_S, Admission, check_folder
from pycrictl.agent.copies.session import (
    CopyOwner,
    CopyPhase,
    CopySpec,
    Direction,
    Place,
    Session,
)
from pycrictl.copy.rules.quotas import MAX_COPIES, Quotas
from pycrictl.errors import ConfigError, Exhausted

MIB = 1 << 20
MALLORY, JANE = "mallory", "jane"
SPEC = CopySpec(Direction.TO, b"/to")


class Node:
    """Places and space alone, with a clock and a disk of their own.

    Attributes:
        gone: the copies that gave way.
    """

    def __init__(self, *, limit_bytes: int = 0, copies_per_pod: int = 0) -> None:
        self.now_s = 0.0
        self.free_bytes = 1 << 40
        self.gone: list[Session] = []
        quotas = Quotas(copies_per_pod=copies_per_pod)
        self.admission = Admission(
            quotas, limit_bytes, lambda: self.free_bytes, lambda: self.now_s, self._expire
        )

    async def _expire(self, session: Session, _: str) -> None:
        self.gone.append(session)
        self.admission.give(session)

    async def begin(self, owner: str, pod: str = "web", size_bytes: int = MIB) -> Session:
        place = Place("shop", pod, "uid1", "main", "c" * 64, f"sandbox of {pod}")
        phase = CopyPhase.TRANSFERRING
        session = Session("n", CopyOwner(owner), place, SPEC, phase, size_bytes)
        await self.admission.take(session)
        return session


async def announced(node: Node) -> None:
    """Of 200 MiB, 190 are announced, and nothing comes of them."""
    await node.begin(MALLORY, size_bytes=190 * MIB)
    hers = await node.begin(JANE, size_bytes=150 * MIB)
    await node.admission.hold(hers, 150 * MIB)
    with pytest.raises(Exhausted, match=r"210\.0 MiB of its disk, and may take 200\.0 MiB"):
        await node.begin(JANE, size_bytes=210 * MIB)  # it can never fit


async def resting(node: Node) -> None:
    first = await node.begin(MALLORY)
    await node.admission.hold(first, 100 * MIB)
    hers = await node.begin(JANE)
    with pytest.raises(Exhausted, match="of its disk"):
        await node.admission.hold(hers, 120 * MIB)
    node.now_s += REST_S
    await node.admission.hold(hers, 120 * MIB)
    assert node.gone == [first]


async def more_than_half_of_the_space(node: Node) -> None:
    many = [await node.begin(MALLORY) for _ in range(2)]
    for one in many:
        await node.admission.hold(one, 80 * MIB)
        node.now_s += 1
    await node.admission.hold(await node.begin(JANE), 80 * MIB)
    assert node.gone == many[:1]


async def a_part_stays_free(node: Node) -> None:
    node.free_bytes = RESERVE_BYTES + 10 * MIB
    hers = await node.begin(JANE)
    with pytest.raises(Exhausted, match="not enough space for the copy on the node's disk; try"):
        await node.begin(JANE, size_bytes=11 * MIB)
    with pytest.raises(Exhausted, match="not enough space for the copy on the node's disk; try"):
        await node.admission.hold(hers, 11 * MIB)
    node.admission.hold_now(hers, 10 * MIB)
    node.free_bytes -= 10 * MIB
    node.admission.hold_now(hers, 9 * MIB)  # less is always possible


async def more_than_half_of_the_places(node: Node) -> None:
    many = [await node.begin(MALLORY, f"p{number % 6}") for number in range(48)]
    node.now_s += 1
    for number in range(MAX_COPIES - len(many)):
        await node.begin(MALLORY, f"q{number}")
    await node.begin(JANE)
    assert node.gone == many[:1], "what has rested longest gives way, and no more than that"
    with pytest.raises(Exhausted, match="64 copies are under way"):
        await node.begin(MALLORY, "other")


async def half_of_all_in_one_pod(node: Node) -> None:
    """A pod has half of all places at most, and so has a user."""
    many = [await node.begin(MALLORY) for _ in range(MAX_COPIES // 2)]
    await node.begin(JANE)
    assert node.gone == many[:1]
    with pytest.raises(Exhausted, match="its share of all"):
        await node.begin(MALLORY)


async def all_of_one_pod(node: Node) -> None:
    first, _ = await node.begin(MALLORY), await node.begin(MALLORY, "db")
    with pytest.raises(Exhausted, match="ContainerCopiesPerPod"):
        await node.begin(JANE)
    node.now_s += REST_S
    await node.begin(JANE)
    assert node.gone == [first]


@pytest.mark.parametrize(
    ("scenario", "settings"),
    [
        (announced, {"limit_bytes": 200 * MIB}),
        (resting, {"limit_bytes": 200 * MIB}),
        (more_than_half_of_the_space, {"limit_bytes": 200 * MIB}),
        (a_part_stays_free, {}),
        (more_than_half_of_the_places, {}),
        (half_of_all_in_one_pod, {}),
        (all_of_one_pod, {"copies_per_pod": 1}),
    ],
)
def test_who_gives_way(
    scenario: Callable[[Node], Coroutine[None, None, None]], settings: dict[str, int]
) -> None:
    asyncio.run(scenario(Node(**settings)))


def test_a_folder_with_other_files_is_left_as_it_is(tmp_path: Path) -> None:
    """Somebody has typed /etc."""
    (tmp_path / "hosts").write_text("content")
    tmp_path.chmod(0o755)
    check_folder(str(tmp_path))
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in tmp_path.iterdir()] == ["hosts"]
    for path in (tmp_path / "hosts", tmp_path / "hosts/below", Path("/proc/sys")):
        with pytest.raises(ConfigError, match="cannot keep copies in"):
            check_folder(str(path))
