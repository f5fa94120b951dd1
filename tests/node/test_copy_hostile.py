"""Hostile archives and containers against the real program on a real node."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from pycrictl.errors import PycrictlError
from tests.copy.archive.test_hostile import made_in
from tests.copy.hostile import HONEST, HOSTILE, Case, build_surroundings, snapshot
from tests.copy.racer import flipping
from tests.copy.trees import listing, stages_in

from .forked import Ended, Program
from .racing import SECRET, make_playground
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


RACE_S: Final = 5
"""How long each of two races lasts at least."""


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


@pytest.mark.parametrize("cases", [HOSTILE, HONEST], ids=["hostile", "honest"])
def test_archives_into_a_container(
    container: Container, program: Program, cases: dict[str, Case]
) -> None:
    assert judge_into(container, program, cases, "node") == {}


def test_archives_into_a_container_by_exec(container: Container, program: Program) -> None:
    """Judged by the same rules: a few of each kind show that they are asked."""
    left_out = ("empty-archive", "name-not-utf-8")
    honest = [name for name in HONEST if HONEST[name].by_exec and name not in left_out]
    chosen = {**each(HOSTILE, 15), **each({name: HONEST[name] for name in honest}, 8)}
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
    left_out = {"empty-archive", "uid-huge", "hard-to-sym-shift", "hard-then-original"}
    left_out |= {"twice", "twice-deep", "hard-then-file"}
    honest = {name: case for name, case in HONEST.items() if case.by_exec and name not in left_out}
    cases = {**each(HOSTILE, 3), **each(honest, 4)}
    assert judge(cases, tmp_path / "play", (root, Path("/")), run) == {}


def each(cases: dict[str, Case], step: int) -> dict[str, Case]:
    return dict(islice(cases.items(), 0, None, step))


@pytest.mark.parametrize("target", ["absolute", "relative"])
def test_no_escape_while_a_component_is_exchanged(
    container: Container,
    folder: Path,
    target: str,
) -> None:
    """Whatever the container does to its directories, the node's files stay out of reach."""
    root = container.root
    outside, local = folder / "outside", folder / "local"
    link = None if target == "absolute" else "../../../../../.." + str(outside)
    make_playground(root / "play", outside, link)
    before = listing(outside)
    for name in ("tree", "out"):
        (local / name).mkdir(parents=True)
    for name in ("data", "tree/data"):
        (local / name).write_text("from the user")
    done = failed = attacked = 0
    with flipping(root / "play", "dir", "evil") as flips:
        enough_at = time.monotonic() + RACE_S
        for number in count():
            for attempt in (
                partial(container.copy_from, "/play/dir/data", local / f"out/{number}"),
                partial(container.copy_from, "/play", local / f"out/tree-{number}"),
                partial(container.copy_from, "/play/dir/sub", local / f"out/sub-{number}"),
                partial(container.copy_to, local / "data", "/play/dir/data"),
                partial(container.copy_to, local / "data", "/play/dir/"),
                partial(container.copy_to, local / "tree/.", "/play/dir/sub"),
            ):
                flips_before = flips()
                try:
                    attempt()
                    done += 1
                except PycrictlError:
                    failed += 1
                attacked += flips() > flips_before
            is_attacked = done > 20 and failed > 20 and attacked > 40
            if (now := time.monotonic()) > enough_at and (is_attacked or now > enough_at + 60):
                break
    figures = f"{done} copies done, {failed} refused, {attacked} attacked"
    assert listing(outside) == before
    stolen = [
        path
        for path in (local / "out").rglob("*")
        if not path.is_symlink() and path.is_file() and SECRET in path.read_text()
    ]
    assert stolen == []
    logging.getLogger(__name__).warning("%s, 0 escapes", figures)
    assert done > 20, figures
    assert failed > 20, figures
    assert attacked > 40, figures
    assert stages_in(local) == []
    assert stages_in(root / "play") == []


def test_archives_that_are_no_files(program: Program, container: Container) -> None:
    """An endless archive is refused as soon as its first block is there."""
    for data in (b"\0" * 3 * 1024 * 1024 + b"x", os.urandom(100_000)):
        ended = program.run("cp", "--method", "node", "-", f"{container.id}:/tmp", stdin=data)
        assert ended.status == 1
        assert len(ended.stderr.splitlines()) <= 2
    assert list((container.root / "tmp").iterdir()) == []
