"""Hostile archives and containers, and kills, against the real program on a real node."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

import pytest

from pycrictl.copy import on_node
from pycrictl.copy.method import Method
from pycrictl.copy.transfer.over_rpc import OverRpc
from pycrictl.cri.calls.client import CriClient
from tests.copy.hostile import HONEST, HOSTILE, REPLACED, Case, build_surroundings, snapshot
from tests.copy.trees import made_in, stages_in
from tools.torture.kills import METHODS, VICTIMS, Scene

from .copying import Cp, Start
from .forked import Ended
from .lab import Lab
from .racing import race

# Where archives with absolute names lead to, on the node as in the container.
ABSOLUTE: Final = ("tmp/pwned", "tmp/x", "etc/x")

# A tar that writes what it finds in /tmp/evil, whatever it is asked.
TAR: Final = """#!/bin/sh
case "$*" in *--version*) echo "tar (busybox) 1.35"; exit 0;; esac
cat /tmp/evil
"""

_BESIDES: Final = ("pycrictl: warning:", "hint:")
"""How lines begin that are not the error itself."""


def judge(
    cases: dict[str, Case], top: Path, cp: Cp, run: Callable[[Case, Path], Ended]
) -> dict[str, str]:
    """Run every case in surroundings of its own below ``top``; return what went wrong."""
    wrong: dict[str, str] = {}
    for name, case in cases.items():
        parent = top / name
        parent.mkdir(parents=True)
        build_surroundings(parent)
        dest = parent / "dest"
        if case.before:
            case.before(dest)
        before = snapshot(parent, but=["dest"]), snapshot(dest)
        ended = run(case, dest)
        after = snapshot(parent, but=["dest"]), snapshot(dest)
        if name == "pre-hardlink":  # the other name of the file is gone
            before[0].pop("secret"), after[0].pop("secret")
        if found := _fault(case, ended, dest, before, after):
            wrong[name] = f"{found}: {ended}"
        if any((root / path).exists() for root in (cp.root, Path("/")) for path in ABSOLUTE):
            wrong[name] = "it came to the root"
        shutil.rmtree(parent)
    return wrong


def _fault(
    case: Case, ended: Ended, dest: Path, before: tuple[object, ...], after: tuple[object, ...]
) -> str:
    lines = ended.stderr.splitlines()
    if after[0] != before[0]:
        return "something beside the destination changed"
    if "Traceback" in ended.stderr or "\x1b" in ended.stderr or ended.status not in (0, 1):
        return "it broke"
    if stages_in(dest.parent):
        return "a stage was left"
    if case.refused is not None:
        if ended.status != 1 or after[1] != before[1]:
            return "it was not refused"
        if len([line for line in lines if not line.startswith(_BESIDES)]) != 1:
            return "it was reported in more than a line"
    elif made_in(dest) != case.made:
        return f"{made_in(dest)} was made"
    elif ended.status != (1 if case.skipped else 0):
        return "the exit status is wrong"
    return ""


def test_archives_into_a_container(cp: Cp) -> None:
    """On the node the whole corpus; the other methods judge by the same code."""
    broken = {case.refused: name for name, case in HOSTILE.items() if not case.before}
    left_out = ("empty-archive", "name-not-utf-8", *REPLACED)
    honest = {name: case for name, case in HONEST.items() if name not in left_out}
    cases = {**{name: HOSTILE[name] for name in broken.values()}, **each(honest, 8)}
    if cp.method == "node":
        cases = {**HOSTILE, **each(HONEST, 3)}

    def run(case: Case, dest: Path) -> Ended:
        return cp("-", f"C:/tmp/play/{dest.parent.name}/dest", stdin=case.data)

    assert judge(cases, cp.root / "tmp/play", cp, run) == {}


def test_archives_that_a_container_makes(start_container: Start, tmp_path: Path) -> None:
    """The container's own tar is the attacker."""
    cp = start_container("exec")
    (cp.root / "bin/tar").unlink()
    (cp.root / "bin/tar").write_text(TAR)
    (cp.root / "bin/tar").chmod(0o755)
    (cp.root / "root/src").mkdir()

    def run(case: Case, dest: Path) -> Ended:
        (cp.root / "tmp/evil").write_bytes(case.data)
        return cp("C:/root/src/.", dest)

    # What no tar makes of a tree is refused, or a link to a link is kept as it is.
    left_out = {"empty-archive", "hard-to-sym-shift", *REPLACED}
    honest = {name: case for name, case in HONEST.items() if name not in left_out}
    cases = {**each(HOSTILE, 6), **each(honest, 6)}
    assert judge(cases, tmp_path / "play", cp, run) == {}


def each(cases: dict[str, Case], step: int) -> dict[str, Case]:
    return dict(islice(cases.items(), 0, None, step))


@pytest.mark.parametrize(
    ("cp", "is_relative"), [("node", False), ("node", True), ("rpc", False)], indirect=["cp"]
)
def test_no_escape_while_a_component_is_exchanged(cp: Cp, folder: Path, is_relative: bool) -> None:
    """Whatever the container does to its directories, the node's files stay out of reach."""
    with CriClient(cp.endpoint.removeprefix("unix://"), timeout_s=10) as client:
        method: Method = OverRpc(client, cp.id)
        if cp.method == "node":
            method = on_node.OnNode(partial(on_node.locate, client.call, cp.id))
        race(method, cp.root / "tmp/play", "/tmp/play", folder, is_relative=is_relative)


# Kills, at a few points of the many that `make kills` can do


@pytest.mark.timeout(400)  # half a minute, if nobody else is at work
def test_nothing_is_half_done_when_somebody_is_killed(lab: Lab) -> None:
    with Scene(lab, seed=1) as scene:
        tallies = [
            scene.run(victim, method, points(victim)) for victim in VICTIMS for method in METHODS
        ]
    assert [(str(tally), tally.faults) for tally in tallies if tally.faults] == []
    assert all(tally.completed + tally.failed == points(tally.victim) for tally in tallies)
    # Not all kills came too late.
    assert any(tally.failed for tally in tallies if tally.victim == "client")


def points(victim: str) -> int:
    """How often somebody is killed, for each method."""
    return 2 if victim == "client" else 1
