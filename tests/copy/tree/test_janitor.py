"""Stages of killed programs: they are found by their notes, and removed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from pycrictl.copy.rules.policy import AcceptedEntry
from pycrictl.copy.tree.commit import sweep_root
from pycrictl.copy.tree.content import write_all
from pycrictl.copy.tree.places import THIS_MACHINE, Root, open_destination
from pycrictl.copy.tree.stage import Stage
from pycrictl.streams.wire.tar.header import EntryType
from tests.copy.trees import contents, stages_in
from tests.waiting import wait_until


@contextmanager
def stage_of_a_program(into: Path, container_id: str = "") -> Iterator[Path]:
    """Yield the stage of a program that copies to ``into``; kill it after the block."""
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException), open_destination(THIS_MACHINE, bytes(into)) as place:
            item = AcceptedEntry((b"d", b"f"), EntryType.FILE)
            made = Stage(place.directory, lambda _: None, container_id)
            made.make(item, lambda fd: write_all(fd, b"1", 0))
            signal.pause()
        os._exit(1)
    try:
        wait_until(lambda: [*contents(into).values()] == ["1"])
        [stage] = stages_in(into)
        yield stage
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.fixture
def into(tmp_path: Path) -> Path:
    (tmp_path / "into").mkdir()
    return tmp_path / "into"


def test_the_stage_of_a_killed_program_goes(into: Path, noted: Path) -> None:
    outside = into.parent / "outside"
    outside.mkdir()
    (outside / "kept").write_text("1")
    with stage_of_a_program(into) as stage:
        (stage / "top/link").symlink_to(outside)
        (stage / "top/d/link").symlink_to("../../../../outside")
        os.mkfifo(stage / "pipe")
        for number in range(1500):  # more than one batch of the removal
            (stage / f"top/d/{number}").touch()
        sweep_root(THIS_MACHINE)
        assert stage.exists(), "its program is still running"
    sweep_root(THIS_MACHINE)
    assert list(into.iterdir()) == list(noted.iterdir()) == []
    assert (outside / "kept").read_text() == "1"


def test_a_stage_is_looked_for_in_its_own_container(into: Path, noted: Path) -> None:
    class Container(Root):
        container_id = "c2"

        def find(self, path: bytes, *, follow: bool) -> int:
            return super().find(os.fsencode(into.parent / "c2") + path, follow=follow)

    moved = into.parent / "c2" / str(into).lstrip("/")
    moved.parent.mkdir(parents=True)
    with stage_of_a_program(into, "c2"):
        pass
    sweep_root(THIS_MACHINE)
    assert len(list(noted.iterdir())) == 1
    into.rename(moved)
    sweep_root(Container())
    assert list(moved.iterdir()) == list(noted.iterdir()) == []


@pytest.mark.parametrize("became", ["link", "nothing", "file"])
def test_a_stage_that_became_something_else(into: Path, noted: Path, became: str) -> None:
    outside = into.parent / "outside"
    with stage_of_a_program(into) as stage:
        stage.rename(outside)
        if became == "link":
            stage.symlink_to(outside)
        else:
            into.rmdir()
        if became == "file":
            into.touch()
    sweep_root(THIS_MACHINE)
    assert list(noted.iterdir()) == stages_in(into) == []
    assert (outside / "top/d/f").read_text() == "1"


@pytest.mark.parametrize("text", ["", "{", "[]", '["", 1, 2]', '["", "/etc", "passwd"]'])
def test_notes_that_say_nothing(noted: Path, text: str) -> None:
    (noted / "x").write_text(text)
    (noted / "link").symlink_to("x")
    os.mkfifo(noted / "pipe")
    sweep_root(THIS_MACHINE)
    assert Path("/etc/passwd").exists()
    assert (noted / "pipe").exists()


@pytest.mark.parametrize("notes", ["written", "open to others", "impossible"])
def test_a_program_that_lives_on_leaves_nothing(into: Path, noted: Path, notes: str) -> None:
    """A copy continues without a note if the folder of notes is unusable or open to others."""
    if notes == "open to others":
        noted.chmod(0o777)
    elif notes == "impossible":
        noted.rmdir()
        noted.touch()
    with open_destination(THIS_MACHINE, bytes(into)) as place:
        stage = Stage(place.directory, lambda _: None)
        assert len(stages_in(into)) == 1
        assert notes == "impossible" or len(list(noted.iterdir())) == (notes == "written")
        stage.remove()
        assert stages_in(into) == []
        into.rmdir()
        with pytest.raises(FileNotFoundError):
            Stage(place.directory, lambda _: None)
    assert noted.is_file() or list(noted.iterdir()) == []


@pytest.mark.root
def test_stages_of_others_are_left_alone(into: Path) -> None:
    with stage_of_a_program(into) as stage:
        os.chown(stage, 1000, 1000)
    sweep_root(THIS_MACHINE)
    assert (stage / "top/d/f").exists()
    shutil.rmtree(stage)


@pytest.mark.root
def test_what_is_mounted_in_a_stage_is_not_emptied(into: Path) -> None:
    with stage_of_a_program(into) as stage:
        pass
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", stage / "top/d"], check=True)
    try:
        (stage / "top/d/kept").write_text("1")
        sweep_root(THIS_MACHINE)
        assert (stage / "top/d/kept").read_text() == "1"
    finally:
        subprocess.run(["umount", stage / "top/d"], check=True)
    sweep_root(THIS_MACHINE)
    assert not any(into.iterdir())
