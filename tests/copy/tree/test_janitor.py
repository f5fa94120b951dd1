"""Stages whose program is killed: found by notes, and removed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from pycrictl.copy import ends
from pycrictl.copy.archive.archives import Outgoing
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.tree.janitor import VARIABLE, sweep_root
from pycrictl.copy.tree.places import THIS_MACHINE, Root, open_destination
from pycrictl.copy.tree.rootfs import Directory
from pycrictl.copy.tree.stage import Stage
from pycrictl.copy.tree.walk import Watch
from pycrictl.errors import CopyError
from pycrictl.wire.tar.writer import END_OF_ARCHIVE
from tests.copy.trees import needs_root, stages_in

# A program that has a stage with a tree in it, and waits.
PROGRAM: Final = """
import os, sys
from pycrictl.copy.tree.places import THIS_MACHINE, open_destination
from pycrictl.copy.rules.policy import AcceptedEntry, Make
from pycrictl.copy.tree.stage import Stage

with open_destination(THIS_MACHINE, os.fsencode(sys.argv[1])) as place:
    stage = Stage(place.directory, lambda _: None, *sys.argv[2:])
    stage.make(AcceptedEntry((b"d",), Make.DIRECTORY))
    os.write(stage.make(AcceptedEntry((b"d", b"f"), Make.FILE)), b"1")
    print("ready", flush=True)
    sys.stdin.read()
"""


class Victim:
    """A program with a stage in ``into``."""

    def __init__(self, into: Path, container_id: str = "") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(into), container_id],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline()
        [self.stage] = stages_in(into)
        assert (self.stage / "top/d/f").read_text() == "1"

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(autouse=True)
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "noted"))
    return tmp_path / "noted"


@pytest.fixture
def into(tmp_path: Path) -> Path:
    (tmp_path / "into").mkdir()
    return tmp_path / "into"


@contextmanager
def opened(folder: Path) -> Iterator[Directory]:
    with open_destination(THIS_MACHINE, os.fsencode(folder)) as place:
        yield place.directory


def test_the_stage_of_a_killed_program_goes(into: Path, noted: Path) -> None:
    victim = Victim(into)
    outside = into.parent / "outside"
    outside.mkdir()
    (outside / "kept").write_text("1")
    (victim.stage / "top/link").symlink_to(outside)
    (victim.stage / "top/d/link").symlink_to("../../../../outside")
    os.mkfifo(victim.stage / "pipe")
    assert sweep_root(THIS_MACHINE) == 0  # the living are left alone
    victim.kill()
    assert sweep_root(THIS_MACHINE) == 1
    assert list(into.iterdir()) == list(noted.iterdir()) == []
    assert (outside / "kept").read_text() == "1"


def test_a_stage_is_looked_for_in_its_own_container(into: Path, noted: Path) -> None:
    class Container(Root):
        container_id = "c2"

        def find(self, path: bytes, *, follow: bool) -> int:
            return super().find(os.fsencode(into.parent / "c2") + path, follow=follow)

    (into.parent / "c2").mkdir()
    moved = into.parent / "c2" / str(into).lstrip("/")
    moved.parent.mkdir(parents=True)
    victim = Victim(into, "c2")
    victim.kill()
    assert sweep_root(THIS_MACHINE) == 0
    into.rename(moved)
    assert sweep_root(Container()) == 1
    assert list(moved.iterdir()) == list(noted.iterdir()) == []
    moved.rename(into)


def test_a_stage_that_became_something_else(into: Path, noted: Path) -> None:
    victim = Victim(into)
    outside = into.parent / "outside"
    victim.stage.rename(outside)
    victim.stage.symlink_to(outside)
    victim.kill()
    assert sweep_root(THIS_MACHINE) == 1
    assert list(into.iterdir()) == list(noted.iterdir()) == []
    assert (outside / "top/d/f").read_text() == "1"


def test_notes_of_what_is_gone_go(into: Path, noted: Path) -> None:
    for act in (shutil.rmtree, Path.touch):
        victim = Victim(into)
        shutil.rmtree(into)
        if act is Path.touch:
            into.touch()
        victim.kill()
        assert sweep_root(THIS_MACHINE) == 1
        assert list(noted.iterdir()) == []
        if into.exists():
            into.unlink()
        into.mkdir()


@pytest.mark.parametrize("text", ["", "{", "[]", '["", 1, 2]', '["", "/etc", "passwd"]'])
def test_notes_that_say_nothing(into: Path, noted: Path, text: str) -> None:
    noted.mkdir(mode=0o700)
    (noted / "x").write_text(text)
    (noted / "link").symlink_to("x")
    os.mkfifo(noted / "pipe")
    sweep_root(THIS_MACHINE)
    assert Path("/etc/passwd").exists()
    assert (noted / "pipe").exists()


def test_the_next_copy_out_of_anything_clears_up_here(into: Path, tmp_path: Path) -> None:
    class Empty:
        name = "empty"

        @contextmanager
        def read(self, *_: object, **__: object) -> Iterator[Outgoing]:
            yield Outgoing(lambda: (memoryview(END_OF_ARCHIVE) for _ in range(1)), b"x")

        def write(self, *_: object) -> Summary:
            raise AssertionError

    killed(into)
    watch = Watch(lambda _: None, lambda _: None)
    with pytest.raises(CopyError, match="the archive is empty"):
        ends.copy_from(Empty(), b"/x", bytes(tmp_path / "other"), Rules(), watch)
    assert not any(into.iterdir())


def test_a_child_does_not_hold_the_locks_of_the_dead(into: Path) -> None:
    """Neither one that is forked and runs another program, nor one of another thread."""
    stage_and_child = PROGRAM.replace(
        "sys.stdin.read()",
        "import subprocess\nprint(subprocess.Popen(['sleep', '100']).pid, flush=True)\n"
        "sys.stdin.read()",
    )
    process = subprocess.Popen(
        [sys.executable, "-c", stage_and_child, str(into)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    child = int(process.stdout.readline())
    process.kill()
    process.wait()
    try:
        assert sweep_root(THIS_MACHINE) == 1
        assert not any(into.iterdir())
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate()


def test_a_program_that_lives_on_leaves_no_note(into: Path, noted: Path) -> None:
    with opened(into) as place:
        stage = Stage(place, lambda _: None)
        assert len(list(noted.iterdir())) == 1
        stage.remove()
    assert list(noted.iterdir()) == list(into.iterdir()) == []
    into.rmdir()
    (into.parent / "other").mkdir()
    with opened(into.parent / "other") as place:
        (into.parent / "other").rmdir()
        with pytest.raises(FileNotFoundError):
            Stage(place, lambda _: None)
    assert list(noted.iterdir()) == []


@pytest.mark.parametrize("mode", [0o777, None])
def test_without_a_note_the_copy_goes_on(into: Path, noted: Path, mode: int | None) -> None:
    """Where others may write to the folder, or there is none."""
    if mode is None:
        noted.touch()
    else:
        noted.mkdir()
        noted.chmod(mode)
    with opened(into) as place:
        stage = Stage(place, lambda _: None)
        assert any(into.iterdir())
        stage.remove()
    assert not any(into.iterdir())


def killed(into: Path) -> Path:
    victim = Victim(into)
    victim.kill()
    assert (victim.stage / "top/d/f").read_text() == "1"
    return victim.stage


@needs_root
def test_stages_of_others_are_left_alone(into: Path) -> None:
    stage = killed(into)
    os.chown(stage, 1000, 1000)
    sweep_root(THIS_MACHINE)
    assert (stage / "top/d/f").exists()


@needs_root
def test_what_is_mounted_in_a_stage_is_not_emptied(into: Path) -> None:
    stage = killed(into)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", stage / "top/d"], check=True)
    try:
        (stage / "top/d/kept").write_text("1")
        assert sweep_root(THIS_MACHINE) == 0
        assert (stage / "top/d/kept").read_text() == "1"
    finally:
        subprocess.run(["umount", stage / "top/d"], check=True)
    assert sweep_root(THIS_MACHINE) == 1
    assert not any(into.iterdir())
