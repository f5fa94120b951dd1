"""Stages whose program is killed: found by notes, and by the next copy into their directory."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from pycrictl.copy import ends
from pycrictl.copy.archive.archives import Outgoing
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.summary import Summary
from pycrictl.copy.tree import janitor
from pycrictl.copy.tree.janitor import OWNER, claim, random_name, sweep, sweep_root
from pycrictl.copy.tree.notes import VARIABLE
from pycrictl.copy.tree.places import LocalRoot, open_destination
from pycrictl.copy.tree.rootfs import Directory
from pycrictl.copy.tree.stage import Stage
from pycrictl.copy.tree.watch import Watch
from pycrictl.errors import CopyError
from pycrictl.wire.tar.writer import END_OF_ARCHIVE
from tests.copy.trees import stages_in

NAME: Final = b".pycrictl-0123456789abcdef"

# A program that has a stage with a tree in it, and waits.
PROGRAM: Final = """
import os, sys
from pycrictl.copy.tree.places import LocalRoot, open_destination
from pycrictl.copy.rules.policy import Item, Make
from pycrictl.copy.tree.stage import Stage

with open_destination(LocalRoot(), os.fsencode(sys.argv[1])) as place:
    stage = Stage(place.directory, lambda _: None, *sys.argv[2:])
    stage.make(Item((b"d",), Make.DIRECTORY))
    os.write(stage.make(Item((b"d", b"f"), Make.FILE)), b"1")
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
    with open_destination(LocalRoot(), os.fsencode(folder)) as place:
        yield place.directory


def test_the_stage_of_a_killed_program_goes(into: Path, noted: Path) -> None:
    victim = Victim(into)
    outside = into.parent / "outside"
    outside.mkdir()
    (outside / "kept").write_text("1")
    (victim.stage / "top/link").symlink_to(outside)
    (victim.stage / "top/d/link").symlink_to("../../../../outside")
    os.mkfifo(victim.stage / "pipe")
    assert sweep_root(LocalRoot()) == 0  # the living are left alone
    victim.kill()
    assert sweep_root(LocalRoot()) == 1
    assert list(into.iterdir()) == list(noted.iterdir()) == []
    assert (outside / "kept").read_text() == "1"


def test_a_stage_is_looked_for_in_its_own_container(into: Path, noted: Path) -> None:
    class Container(LocalRoot):
        container_id = "c2"

        def find(self, path: bytes, *, follow: bool) -> int:
            return super().find(os.fsencode(into.parent / "c2") + path, follow=follow)

    (into.parent / "c2").mkdir()
    moved = into.parent / "c2" / str(into).lstrip("/")
    moved.parent.mkdir(parents=True)
    victim = Victim(into, "c2")
    victim.kill()
    assert sweep_root(LocalRoot()) == 0
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
    assert sweep_root(LocalRoot()) == 1
    assert list(into.iterdir()) == list(noted.iterdir()) == []
    assert (outside / "top/d/f").read_text() == "1"


def test_notes_of_what_is_gone_go(into: Path, noted: Path) -> None:
    for act in (shutil.rmtree, Path.touch):
        victim = Victim(into)
        shutil.rmtree(into)
        if act is Path.touch:
            into.touch()
        victim.kill()
        assert sweep_root(LocalRoot()) == 1
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
    sweep_root(LocalRoot())
    assert Path("/etc/passwd").exists()
    assert (noted / "pipe").exists()


def test_an_empty_note_goes_when_it_is_old(noted: Path) -> None:
    noted.mkdir(mode=0o700)
    for name, age_s in (("new", 0), ("old", 100)):
        (noted / name).touch()
        os.utime(noted / name, (time.time() - age_s,) * 2)
    sweep_root(LocalRoot())
    assert [path.name for path in noted.iterdir()] == ["new"]


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
        assert sweep_root(LocalRoot()) == 1
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


# A merge that has begun

MERGING: Final = """
import os, sys, time
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.tree.rootfs import Directory
from tests.copy.trees import directly

moves, move = 0, Directory.move

def counted(*args, **kwargs):
    global moves
    if moves == int(sys.argv[2]):
        print("stopped", flush=True)
        time.sleep(100)
    moves += 1
    move(*args, **kwargs)

Directory.move = counted
directly(sys.argv[3], sys.argv[1], Rules(no_clobber=len(sys.argv) > 4))
print("done", flush=True)
"""


@pytest.mark.parametrize("no_clobber", [False, True], ids=["", "no-clobber"])
def test_a_merge_is_finished_or_not_begun(into: Path, no_clobber: bool) -> None:
    """Whatever the number of names that were moved when the program was killed."""
    source = into.parent / "source"
    for path, data in {"a": "1", "b": "2", "d/a": "3", "d/b": "4", "e/f": "5"}.items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text(data)
    before = {"a": "old", "d/b": "old", "d/kept": "old"}
    after = {"a": "1", "b": "2", "d/a": "3", "d/b": "4", "e/f": "5", "d/kept": "old"}
    if no_clobber:
        after |= before
    outcomes = []
    for moves in range(20):
        for path, data in before.items():
            (into / path).parent.mkdir(exist_ok=True)
            (into / path).write_text(data)
        more = ["no-clobber"] if no_clobber else []
        process = subprocess.Popen(
            [sys.executable, "-c", MERGING, into, str(moves), f"{source}/.", *more],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        is_done = process.stdout.readline() == b"done\n"
        process.kill()
        process.communicate()
        sweep_root(LocalRoot())
        assert stages_in(into) == []
        found = {
            str(path.relative_to(into)): path.read_text()
            for path in into.rglob("*")
            if path.is_file()
        }
        outcomes.append(found)
        shutil.rmtree(into)
        into.mkdir()
        if is_done:
            break
    assert outcomes[0] == before
    assert len(outcomes) > (4 if no_clobber else 6)
    assert all(outcome == after for outcome in outcomes[1:])


# The next copy


def killed(into: Path) -> Path:
    victim = Victim(into)
    victim.kill()
    assert (victim.stage / "top/d/f").read_text() == "1"
    return victim.stage


def test_the_next_copy_removes_the_stage_of_the_dead(into: Path) -> None:
    killed(into)
    with opened(into) as place:
        sweep(place)
    assert not any(into.iterdir())


def test_a_stage_that_was_being_removed(into: Path) -> None:
    """The lock is removed last."""
    stage = killed(into)
    (stage / "top/d/f").unlink()
    assert (stage / "owner").read_bytes() == os.fsencode(stage.name)
    with opened(into) as place:
        sweep(place)
    assert not any(into.iterdir())


def test_the_living_are_left_alone(into: Path) -> None:
    victim = Victim(into)
    with opened(into) as place:
        sweep(place)
    assert (victim.stage / "top/d/f").read_text() == "1"
    victim.kill()
    with opened(into) as place:
        sweep(place)
    assert not any(into.iterdir())


def test_what_is_no_stage_is_left_alone(into: Path) -> None:
    names = [Path(into / os.fsdecode(random_name())) for _ in range(6)]
    other_mode, no_lock, other_name, pipe, link, short = names
    for folder in (other_mode, no_lock, other_name):
        folder.mkdir(mode=0o700)
        (folder / "data").write_text("1")
    for folder, name in ((other_mode, other_mode.name), (other_name, "x")):
        (folder / "owner").write_text(name)
    other_mode.chmod(0o755)
    os.mkfifo(pipe)
    elsewhere = into.parent / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (elsewhere / "owner").write_text(link.name)
    link.symlink_to(elsewhere)
    short.mkdir(mode=0o700)
    os.mkfifo(short / "owner")
    (into / ".pycrictl-notes").write_text("1")
    before = sorted(into.rglob("*"))
    with opened(into) as place:
        sweep(place)
    assert sorted(into.rglob("*")) == before
    assert (elsewhere / "owner").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_stages_of_others_are_left_alone(into: Path) -> None:
    stage = killed(into)
    os.chown(stage, 1000, 1000)
    with opened(into) as place:
        sweep(place)
    assert (stage / "top/d/f").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_what_is_mounted_in_a_stage_is_not_emptied(into: Path) -> None:
    stage = killed(into)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", stage / "top/d"], check=True)
    try:
        (stage / "top/d/kept").write_text("1")
        with opened(into) as place:
            sweep(place)
        assert (stage / "top/d/kept").read_text() == "1"
    finally:
        subprocess.run(["umount", stage / "top/d"], check=True)
    with opened(into) as place:
        sweep(place)
    assert not any(into.iterdir())


def test_files_that_were_about_to_be_moved(into: Path) -> None:
    dead, living, new = (into / os.fsdecode(random_name()) for _ in range(3))
    dead.write_text("1")
    living.write_text("2")
    new.touch()
    with living.open() as file, opened(into) as place:
        fcntl.flock(file, fcntl.LOCK_EX)
        sweep(place)
        assert sorted(into.iterdir()) == sorted([living, new])


def test_a_claim_is_locked_before_it_is_signed(into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def spy(fd: int) -> bool:
        seen.append((stage / "owner").read_bytes())
        return True

    monkeypatch.setattr(janitor, "lock", spy)
    stage = into / os.fsdecode(NAME)
    with opened(into) as place, place.make(NAME) as directory:
        os.close(claim(directory, NAME))
    assert seen == [b""]
    assert (stage / os.fsdecode(OWNER)).read_bytes() == NAME
