"""Stages whose program is killed: their janitors, and the sweep of the next copy."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

import pycrictl
from pycrictl.copy.tree import janitor
from pycrictl.copy.tree.janitor import OWNER, Janitor, claim, random_name, sweep
from pycrictl.copy.tree.places import LocalRoot, open_destination
from pycrictl.copy.tree.rootfs import Directory
from pycrictl.copy.tree.stage import Stage
from tests.copy.trees import stages_in
from tests.waiting import wait_until

PACKAGE: Final = Path(pycrictl.__file__).parent
NAME: Final = b".pycrictl-0123456789abcdef"

# A program that has a stage with a tree in it, and waits.
PROGRAM: Final = """
import os, sys
from pycrictl.copy.tree.places import LocalRoot, open_destination
from pycrictl.copy.rules.policy import Item, Make
from pycrictl.copy.tree.stage import Stage

if len(sys.argv) > 2:
    sys.executable, sys.frozen = sys.argv[2], True
with open_destination(LocalRoot(), os.fsencode(sys.argv[1])) as place:
    stage = Stage(place.directory, lambda _: None)
    stage.make(Item((b"d",), Make.DIRECTORY))
    os.write(stage.make(Item((b"d", b"f"), Make.FILE)), b"1")
    print(stage._janitor._process.pid, flush=True)
    sys.stdin.read()
"""


class Victim:
    """A program with a stage in ``into``, in a session of its own."""

    def __init__(
        self, into: Path, *, script: str = PROGRAM, program: str = "", more: tuple[str, ...] = ()
    ) -> None:
        code = [program] if program else ["-c", script]
        self._process = subprocess.Popen(
            [sys.executable, *code, str(into), *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.janitor = int(self._process.stdout.readline())
        [self.stage] = stages_in(into)
        assert (self.stage / "top/d/f").read_text() == "1"

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def into(tmp_path: Path) -> Path:
    (tmp_path / "into").mkdir()
    return tmp_path / "into"


def until_empty(folder: Path) -> None:
    wait_until(lambda: not any(folder.iterdir()))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def arguments(pid: int) -> list[bytes]:
    """The words that a process was started with: /proc shows none in its first moment."""
    wait_until(Path(f"/proc/{pid}/cmdline").read_bytes)
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


@contextmanager
def opened(folder: Path) -> Iterator[Directory]:
    with open_destination(LocalRoot(), os.fsencode(folder)) as place:
        yield place.directory


def test_the_stage_of_a_killed_program_goes(into: Path) -> None:
    victim = Victim(into)
    outside = into.parent / "outside"
    outside.mkdir()
    (outside / "kept").write_text("1")
    (victim.stage / "top/link").symlink_to(outside)
    (victim.stage / "top/d/link").symlink_to("../../../../outside")
    os.mkfifo(victim.stage / "pipe")
    victim.kill()
    until_empty(into)
    assert (outside / "kept").read_text() == "1"


def test_a_stage_that_became_a_link_is_not_followed(into: Path) -> None:
    victim = Victim(into)
    outside = into.parent / "outside"
    victim.stage.rename(outside)
    victim.stage.symlink_to(outside)
    victim.kill()
    until_empty(into)
    assert (outside / "top/d/f").read_text() == "1"


def test_signals_to_all_processes_spare_the_janitor(into: Path) -> None:
    victim = Victim(into)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        os.kill(victim.janitor, number)
    os.killpg(victim.pid, signal.SIGKILL)
    victim.kill()
    until_empty(into)


def test_a_program_that_lives_on_leaves_no_janitor(into: Path) -> None:
    """Also where many threads copy at once, and signals keep coming as they did."""
    pids: list[int] = []

    def work() -> None:
        for _ in range(5):
            with opened(into) as place:
                stage = Stage(place, lambda _: None)
                process = stage._janitor._process
                assert process is not None
                pids.append(process.pid)
                stage.remove()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pids) == 20
    assert not any(is_alive(pid) for pid in pids)
    assert not any(into.iterdir())
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_stage_that_cannot_be_made_leaves_no_janitor(
    into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Janitor] = []

    class Watched(Janitor):
        def __init__(self, place: Directory, name: bytes) -> None:
            super().__init__(place, name)
            started.append(self)
            into.rmdir()

    monkeypatch.setattr("pycrictl.copy.tree.stage.Janitor", Watched)
    with opened(into) as place, pytest.raises(FileNotFoundError):
        Stage(place, lambda _: None)
    [only] = started
    process = only._process
    assert process is not None
    assert process.returncode == -signal.SIGKILL


def test_without_a_janitor_the_copy_goes_on(into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with opened(into) as place:
        stage = Stage(place, lambda _: None)
        assert any(into.iterdir())
        stage.remove()
    assert not any(into.iterdir())


def test_a_frozen_program_is_its_own_janitor(into: Path) -> None:
    program = into.parent / "frozen"
    program.write_text(
        f"#!{sys.executable}\n"
        f"import sys\n"
        f"sys.frozen = True\n"
        f"sys.path.insert(0, {str(PACKAGE.parent)!r})\n"
        f"from pycrictl.__main__ import run\n"
        f"run()\n"
    )
    program.chmod(0o755)
    victim = Victim(into, more=(str(program),))
    command = arguments(victim.janitor)
    assert b"--survivor" in command
    victim.kill()
    until_empty(into)


def test_a_program_in_an_archive(into: Path) -> None:
    path = into.parent / "program.pyz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("__main__.py", PROGRAM)
        for module in PACKAGE.rglob("*.py"):
            archive.write(module, module.relative_to(PACKAGE.parent))
    victim = Victim(into, program=str(path))
    command = arguments(victim.janitor)
    assert any(word.startswith(os.fsencode(path) + b":") for word in command)
    victim.kill()
    until_empty(into)


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
        wait_until(lambda: not stages_in(into))
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


def killed_with_its_janitor(into: Path) -> Path:
    victim = Victim(into)
    os.kill(victim.janitor, signal.SIGKILL)
    victim.kill()
    assert (victim.stage / "top/d/f").read_text() == "1"
    return victim.stage


def test_the_next_copy_removes_the_stage_of_the_dead(into: Path) -> None:
    killed_with_its_janitor(into)
    with opened(into) as place:
        sweep(place)
    assert not any(into.iterdir())


def test_a_stage_that_was_being_removed(into: Path) -> None:
    """The lock is removed last."""
    stage = killed_with_its_janitor(into)
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
    until_empty(into)


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
    stage = killed_with_its_janitor(into)
    os.chown(stage, 1000, 1000)
    with opened(into) as place:
        sweep(place)
    assert (stage / "top/d/f").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_what_is_mounted_in_a_stage_is_not_emptied(into: Path) -> None:
    stage = killed_with_its_janitor(into)
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
