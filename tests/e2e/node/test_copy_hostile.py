"""Hostile archives and containers, and kills, against the real program on a real node."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

import pytest

from pycrictl.base.errors import PycrictlError
from pycrictl.copy import methods, on_node
from pycrictl.copy.methods import Method
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.transfer.over_rpc import OverRpc
from pycrictl.runtime.cri.calls.client import CriClient
from tests.copy.hostile import HONEST, HOSTILE, Case, build_surroundings, snapshot
from tests.copy.racer import flipping
from tests.copy.trees import UNWATCHED, copy_in, listing, made_in, stages_in
from tools.torture.kills import METHODS, VICTIMS, Scene

from .copying import Cp
from .forked import Ended
from .lab import Lab

# Targets of archives with absolute names, on the node or in the container.
ABSOLUTE: Final = ("tmp/pwned", "tmp/x", "etc/x")

_BESIDES: Final = ("pycrictl: warning:", "hint:")
"""Prefixes of lines that are not the error itself."""


def judge(
    cases: dict[str, Case], top: Path, cp: Cp, run: Callable[[Case, Path], Ended]
) -> dict[str, str]:
    """Run each case in its own surroundings below ``top``; return the faults by case."""
    wrong: dict[str, str] = {}
    absolute = [root / path for root in (cp.root, Path("/")) for path in ABSOLUTE]
    absent = [path for path in absolute if not path.exists()]  # anyone may have a /tmp/x
    for name, case in cases.items():
        parent, dest = top / name, top / name / "dest"
        parent.mkdir(parents=True)
        build_surroundings(parent)
        if case.before:
            case.before(dest)
        beside, before = snapshot(parent, but=["dest"]), snapshot(dest)
        ended = run(case, dest)
        beside_now = snapshot(parent, but=["dest"])
        if name == "pre-hardlink":  # the other name of the file is gone
            beside.pop("secret"), beside_now.pop("secret")
        is_refused = case.refused is not None
        errors = [line for line in ended.stderr.splitlines() if not line.startswith(_BESIDES)]
        faults = {
            "it broke": "Traceback" in ended.stderr or "\x1b" in ended.stderr,
            "the exit status is wrong": ended.status != (is_refused or bool(case.skipped)),
            "the error has not one line": is_refused and len(errors) != 1,
            "something beside the destination changed": beside_now != beside,
            "a refused archive changed something": is_refused and snapshot(dest) != before,
            "something else was made": not is_refused and made_in(dest) != case.made,
            "a stage was left": stages_in(parent) != [],
            "it came to the root": any(path.exists() for path in absent),
        }
        if true_faults := [fault for fault, is_there in faults.items() if is_there]:
            wrong[name] = f"{true_faults}: {ended}"
        shutil.rmtree(parent)
    return wrong


def every_nth(cases: dict[str, Case], step: int, *left_out: str) -> dict[str, Case]:
    kept = {name: case for name, case in cases.items() if name not in left_out}
    return dict(islice(kept.items(), 0, None, step))


def test_archives_into_a_container(cp: Cp) -> None:
    """The whole corpus by ``node``; ``rpc`` shares its checks and gets a sample."""
    cases = {**HOSTILE, **every_nth(HONEST, 3)}
    if cp.method != "node":
        of_a_rule = {case.refused: name for name, case in HOSTILE.items() if not case.before}
        cases = every_nth(HONEST, 8, "empty-archive", "name-not-utf-8")
        cases |= {name: HOSTILE[name] for name in of_a_rule.values()}

    def run(case: Case, dest: Path) -> Ended:
        return cp("-", f"C:/tmp/play/{dest.parent.name}/dest", stdin=case.data)

    assert judge(cases, cp.root / "tmp/play", cp, run) == {}


SECRET: Final = "SECRET OF THE NODE"
PLAY: Final = "/tmp/play"


@pytest.mark.parametrize(
    ("cp", "is_relative"), [("node", False), ("node", True), ("rpc", False)], indirect=["cp"]
)
def test_no_escape_while_a_component_is_exchanged(cp: Cp, folder: Path, is_relative: bool) -> None:
    """Whatever the container does to its directories, the node's files are not read or changed."""
    play, outside, local = cp.root / PLAY[1:], folder / "outside", folder / "local"
    for top, text in ((play / "dir", "of the container"), (outside, SECRET), (folder, "new")):
        (top / "sub").mkdir(parents=True)
        for name in ("data", "sub/data"):
            (top / name).write_text(text)
    (play / "evil").symlink_to(f"../../../../../..{outside}" if is_relative else outside)
    local.mkdir()
    before, ended = listing(outside), {"done": 0, "failed": 0}
    with CriClient(cp.endpoint.removeprefix("unix://"), timeout_s=10) as client:
        method: Method = OverRpc(client, cp.id)
        if cp.method == "node":
            method = on_node.OnNode(partial(on_node.locate, client.call, cp.id))
        with flipping(play, "dir", "evil"):
            enough_at, number = time.monotonic() + 1.0, 0
            while (now := time.monotonic()) < enough_at or (
                min(ended.values()) <= 3 and now < enough_at + 60
            ):
                number += 1
                for act, source, target in (
                    (copy_in, f"{folder}/data", f"{PLAY}/dir/data"),
                    (copy_in, f"{folder}/data", f"{PLAY}/dir/sub"),
                    (copy_in, f"{folder}/sub/.", f"{PLAY}/dir/sub"),
                    (methods.copy_from, f"{PLAY}/dir/sub", f"{local}/{number}"),
                    (methods.copy_from, PLAY, f"{local}/tree-{number}"),
                ):
                    try:
                        act(method, source.encode(), target.encode(), Rules(), UNWATCHED)
                        ended["done"] += 1
                    except PycrictlError:
                        ended["failed"] += 1
    assert listing(outside) == before
    copied = [path for path in local.rglob("*") if path.is_file() and not path.is_symlink()]
    assert [path for path in copied if SECRET in path.read_text()] == []
    assert min(ended.values()) > 3, ended
    assert stages_in(play) == []


# Kills, at a few of the many points that `make kills` tries


@pytest.mark.timeout(400)  # half a minute on an idle machine
def test_nothing_is_half_done_when_somebody_is_killed(lab: Lab) -> None:
    points = dict.fromkeys(VICTIMS, 1) | {"client": 2}  # with each method
    with Scene(lab, seed=1) as scene:
        tallies = [
            scene.run(victim, method, count)
            for victim, count in points.items()
            for method in METHODS
        ]
    faults = [
        f"{tally.victim} {tally.method}: {fault}" for tally in tallies for fault in tally.faults
    ]
    assert not faults, "\n".join(faults)
    assert all(tally.completed + tally.failed == points[tally.victim] for tally in tallies)
    # Not all kills came too late.
    assert any(tally.failed for tally in tallies if tally.victim == "client")
