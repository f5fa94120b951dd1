"""Parts of the agent's copies: slots and space, log lines, refusals, and the node's work."""

from __future__ import annotations

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
from pycrictl.cluster.agent.copies.documents import (
    CopyEnded,
    CopyOwner,
    CopySpec,
    refused,
)
from pycrictl.copy.service.life import State
from pycrictl.copy.service.slots import MAX_COPIES, RESERVE_BYTES, Slots, check_folder
from tests.proxy.copier import MIB

# Slots and space of a node, shared by several users


def test_what_is_announced_keeps_nobody_out() -> None:
    """A copy announces 190 of 200 MiB and sends none; another must still get 150."""
    slots = Slots(disk_limit_bytes=200 * MIB)
    hers = slots.acquire("web", 190 * MIB)
    his = slots.acquire("web", 150 * MIB)
    slots.hold(his, 150 * MIB)
    with pytest.raises(Exhausted, match=r"210\.0 MiB of its disk, but the limit is 200\.0 MiB"):
        slots.acquire("web", 210 * MIB)  # it can never fit
    with pytest.raises(Exhausted, match="of its disk"):
        slots.hold(hers, 60 * MIB)
    slots.release(his)
    slots.hold(hers, 60 * MIB)
    assert slots.held_bytes == 60 * MIB


def test_a_part_of_the_disk_stays_free() -> None:
    free = RESERVE_BYTES + 10 * MIB
    slots = Slots(free_bytes=lambda: free)
    hers = slots.acquire("web", MIB)
    with pytest.raises(Exhausted, match="not enough space for the copy on the node's disk; try"):
        slots.acquire("web", 11 * MIB)
    with pytest.raises(Exhausted, match="not enough space for the copy on the node's disk; try"):
        slots.hold(hers, 11 * MIB)
    slots.hold(hers, 10 * MIB)
    free -= 10 * MIB
    slots.hold(hers, 9 * MIB)  # holding less always works


@pytest.mark.parametrize("user", ["mallory", None])
def test_half_of_all_slots_are_for_others(user: str | None) -> None:
    """A user with several pods takes no more than one with a single pod."""
    slots = Slots()
    for number in range(MAX_COPIES // 2):
        slots.acquire(f"web-{number}" if user else "web", MIB, user)
    name = "this user" if user else 'pod "web"'
    with pytest.raises(Exhausted, match=f"{name} has 32 copies under way, half of all slots; try"):
        slots.acquire("web", MIB, user)
    slots.acquire("web" if user else "other", MIB, "jane" if user else None)


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
    spec = CopySpec("From", path, "main")
    ended = CopyEnded(CopyOwner(user), "shop/web", spec, end, 9, 4, message)
    return pairs("copy", ended.fields)


def test_what_users_choose_is_escaped() -> None:
    evil = 'x\nlevel=INFO copy user=root end=done \x1b[2J"'
    logged = line(evil, b"/" + evil.encode() + b"\xff", State.FAILED, evil)
    assert logged.isascii()
    assert logged.isprintable()
    assert re.sub('"(?:[^"\\\\]|\\\\.)*"', "S", logged) == (
        "copy user=S pod=shop/web container=main direction=from path=S size_bytes=9"
        " moved_bytes=4 end=failed error=S"
    )
    user, path, error = re.findall('"(?:[^"\\\\]|\\\\.)*"', logged)
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
        refusal = refused(error)
        assert (refusal.code, refusal.message) == (code, message)
