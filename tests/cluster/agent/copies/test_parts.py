"""Parts of the agent's copies: slots and space, log lines, refusals, and the node's work."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from pycrictl.base.errors import (
    ConfigError,
    ConnectError,
    CopyError,
    Exhausted,
)
from pycrictl.base.servicelog import pairs
from pycrictl.cluster.agent.copies.requests import (
    CopyEnded,
    CopyOwner,
    CopySpec,
    Direction,
    Place,
    refused,
)
from pycrictl.copy.service.copies import Copy
from pycrictl.copy.service.life import State
from pycrictl.copy.service.slots import MAX_COPIES, RESERVE_BYTES, REST_S, Slots, check_folder
from pycrictl.copy.service.transfer import Upload
from pycrictl.copy.transfer.messages import ResumableProtocol
from tests.proxy.copier import MIB

ASKED = Place("shop", "web", "uid1", "main")
MALLORY, JANE = "mallory", "jane"

# Slots and space of a node, shared by several users


class Node:
    """The slots of copies alone, with a fake clock and disk.

    Attributes:
        gone: the copies that were ended to make room.
    """

    def __init__(self, *, limit_bytes: int = 0, copies_per_pod: int = 0) -> None:
        self.now_s = 0.0
        self.free_bytes = 1 << 40
        self.gone: list[Copy[None]] = []
        self.slots: Slots[Copy[None]] = Slots(
            copies_per_pod=copies_per_pod,
            disk_limit_bytes=limit_bytes,
            free_bytes=lambda: self.free_bytes,
            clock=lambda: self.now_s,
        )
        self.slots.expire = self._expire

    async def _expire(self, copy: Copy[None], _: str) -> None:
        self.gone.append(copy)
        self.slots.give(copy)

    def begin(self, owner: str, pod: str = "web", size_bytes: int = MIB) -> Copy[None]:
        upload = Upload(ResumableProtocol(is_client=False, is_sender=False), size_bytes, 0)
        copy = Copy(None, upload, pod=f"sandbox of {pod}", owner=owner, size_bytes=size_bytes)
        asyncio.run(self.slots.take(copy))
        return copy

    def hold(self, copy: Copy[None], size_bytes: int) -> None:
        asyncio.run(self.slots.hold(copy, size_bytes))


def test_what_is_announced_keeps_nobody_out() -> None:
    """One user announces 190 of 200 MiB and sends none; another must still get 150."""
    node = Node(limit_bytes=200 * MIB)
    node.begin(MALLORY, size_bytes=190 * MIB)
    hers = node.begin(JANE, size_bytes=150 * MIB)
    node.hold(hers, 150 * MIB)
    with pytest.raises(Exhausted, match=r"210\.0 MiB of its disk, and may take 200\.0 MiB"):
        node.begin(JANE, size_bytes=210 * MIB)  # it can never fit


def test_what_rests_gives_way() -> None:
    node = Node(limit_bytes=200 * MIB)
    first = node.begin(MALLORY)
    node.hold(first, 100 * MIB)
    hers = node.begin(JANE)
    with pytest.raises(Exhausted, match="of its disk"):
        node.hold(hers, 120 * MIB)
    node.now_s += REST_S
    node.hold(hers, 120 * MIB)
    assert node.gone == [first]


def test_a_part_of_the_disk_stays_free() -> None:
    node = Node()
    node.free_bytes = RESERVE_BYTES + 10 * MIB
    hers = node.begin(JANE)
    with pytest.raises(Exhausted, match="not enough space for the copy on the node's disk; try"):
        node.begin(JANE, size_bytes=11 * MIB)
    with pytest.raises(Exhausted, match="not enough space for the copy on the node's disk; try"):
        node.hold(hers, 11 * MIB)
    node.slots.hold_now(hers, 10 * MIB)
    node.free_bytes -= 10 * MIB
    node.slots.hold_now(hers, 9 * MIB)  # holding less always works


def test_half_of_all_slots_are_for_others() -> None:
    """A user gets at most half of all slots, and so does a pod, unless copies rest."""
    node = Node()
    many = [node.begin(MALLORY, f"p{number}") for number in range(MAX_COPIES // 2)]
    with pytest.raises(Exhausted, match="this user has 32 copies under way, half of all"):
        node.begin(MALLORY, "other")
    node.begin(JANE)
    node.now_s += REST_S
    node.begin(MALLORY, "other")
    assert node.gone == many[:1]

    node = Node()
    for number in range(MAX_COPIES // 2):
        node.begin(f"user {number}")
    with pytest.raises(Exhausted, match="its share of all"):
        node.begin(JANE)


def test_what_rests_in_the_pod_gives_way() -> None:
    node = Node(copies_per_pod=1)
    _, first = node.begin(MALLORY, "db"), node.begin(MALLORY)
    with pytest.raises(Exhausted, match="ContainerCopiesPerPod"):
        node.begin(JANE)
    node.now_s += REST_S
    node.begin(JANE)
    assert node.gone == [first]


def test_a_folder_with_other_files_is_left_as_it_is(tmp_path: Path) -> None:
    """A user may name /etc by mistake; its mode and files must not change."""
    (tmp_path / "hosts").write_text("content")
    tmp_path.chmod(0o755)
    check_folder(str(tmp_path))
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in tmp_path.iterdir()] == ["hosts"]
    for path in (tmp_path / "hosts", tmp_path / "hosts/below", Path("/proc/sys")):
        with pytest.raises(ConfigError, match="cannot keep copies in"):
            check_folder(str(path))


# Log lines, refusals, and the node's work


def line(user: str, path: bytes, end: State, message: str = "") -> str:
    spec = CopySpec(Direction.FROM, path)
    return pairs("copy", CopyEnded(CopyOwner(user), ASKED, spec, end, 9, 4, message).fields)


def test_what_users_choose_is_escaped() -> None:
    evil = 'x\nlevel=INFO copy user=root end=done \x1b[2J"'
    found = line(evil, b"/" + evil.encode() + b"\xff", State.FAILED, evil)
    assert found.isascii()
    assert found.isprintable()
    assert re.sub('"(?:[^"\\\\]|\\\\.)*"', "S", found) == (
        "copy user=S pod=shop/web container=main direction=from path=S size_bytes=9"
        " moved_bytes=4 end=failed error=S"
    )
    user, path, error = re.findall('"(?:[^"\\\\]|\\\\.)*"', found)
    assert (json.loads(user), json.loads(error)) == (evil, evil)
    assert json.loads(path) == f"/{evil}\udcff"


def test_the_end_of_a_long_path_is_not_hidden() -> None:
    path = b"/." * 2000 + b"/etc/shadow"
    assert f"path={path.decode()} " in line("jane", path, State.DONE)
    assert line("jane", path, State.DONE, "it was put there").endswith("end=done")


def test_no_advice_that_only_the_node_can_take() -> None:
    for error, code, message in (
        (CopyError("no", hint="try again"), 422, "no (try again)"),
        (ConnectError("cannot reach it", hint="name its socket with -r"), 503, "cannot reach it"),
    ):
        found = refused(error)
        assert (found.code, found.message) == (code, message)
