"""Hostile archives and containers against the real program on a real node."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.copy.archive.test_hostile import made_in
from tests.copy.hostile import HONEST, HOSTILE, REPLACED, Case, build_surroundings, snapshot
from tests.copy.trees import stages_in

from .forked import Ended, Program
from .racing import race
from .test_copy_node import Container, client, container

if TYPE_CHECKING:
    from .lab import Lab

__all__ = ["client", "container"]

# Where archives with absolute names lead to, on the node as in the container.
ABSOLUTE: Final = ("tmp/pwned", "tmp/x", "etc/x")

# A tar that writes what it finds in /evil, whatever it is asked.
TAR: Final = """#!/bin/sh
case "$*" in *--version*) echo "tar (busybox) 1.35"; exit 0;; esac
cat /evil
"""


_BESIDES: Final = ("pycrictl: warning:", "hint:")
"""How lines begin that are not the error itself."""


@pytest.fixture
def program(lab: Lab) -> Iterator[Program]:
    with Program("--runtime-endpoint", lab.node.endpoint, "--timeout", "20s") as program:
        yield program


def judge(
    cases: dict[str, Case], top: Path, roots: tuple[Path, ...], run: Callable[[Case, Path], Ended]
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
        if any((root / path).exists() for root in roots for path in ABSOLUTE):
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


def test_archives_into_a_container(container: Container, program: Program) -> None:
    assert judge_into(container, program, {**HOSTILE, **each(HONEST, 3)}, "node") == {}


def test_archives_into_a_container_by_exec(container: Container, program: Program) -> None:
    """Judged by the same rules: a few of each kind show that they are asked."""
    left_out = ("empty-archive", "name-not-utf-8", *REPLACED)
    honest = {name: case for name, case in HONEST.items() if name not in left_out}
    chosen = {**each(HOSTILE, 15), **each(honest, 8)}
    assert judge_into(container, program, chosen, "exec") == {}


def judge_into(
    container: Container, program: Program, cases: dict[str, Case], method: str
) -> dict[str, str]:
    def run(case: Case, dest: Path) -> Ended:
        path = f"{container.id}:/play/{dest.parent.name}/dest"
        return program.run("cp", "--method", method, "-", path, stdin=case.data)

    root = container.root
    return judge(cases, root / "play", (root, Path("/")), run)


def test_archives_that_a_container_makes(
    container: Container, program: Program, tmp_path: Path
) -> None:
    """The container's own tar is the attacker."""
    root = container.root
    (root / "bin/tar").unlink()
    (root / "bin/tar").write_text(TAR)
    (root / "bin/tar").chmod(0o755)
    (root / "src").mkdir()

    def run(case: Case, dest: Path) -> Ended:
        (root / "evil").write_bytes(case.data)
        return program.run("cp", "--method", "exec", f"{container.id}:/src/.", dest)

    # What no tar makes of a tree is refused, or a link to a link is kept as it is.
    left_out = {"empty-archive", "uid-huge", "hard-to-sym-shift", *REPLACED}
    honest = {name: case for name, case in HONEST.items() if name not in left_out}
    cases = {**each(HOSTILE, 3), **each(honest, 4)}
    assert judge(cases, tmp_path / "play", (root, Path("/")), run) == {}


def each(cases: dict[str, Case], step: int) -> dict[str, Case]:
    return dict(islice(cases.items(), 0, None, step))


@pytest.mark.parametrize("is_relative", [False, True], ids=["absolute", "relative"])
def test_no_escape_while_a_component_is_exchanged(
    container: Container, folder: Path, is_relative: bool
) -> None:
    """Whatever the container does to its directories, the node's files stay out of reach."""
    play = container.root / "play"
    race(container.method, play, "/play", folder, at_least_s=2, is_relative=is_relative)
