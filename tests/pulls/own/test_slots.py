from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pycrictl.base.errors import DeadlineExceeded, PycrictlError
from pycrictl.pulls.own.slots import default_directory, pull_slot

PATIENCE_S = 30.0
ROOT = Path(__file__).parents[3]

# Prints its place, holds the slot for hold_s or until its input ends, and prints both times.
WORKER = """
import sys, time
from pathlib import Path
from pycrictl.pulls.own.slots import pull_slot
def say(*words): print(*words, flush=True)
directory, limit, hold_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
with pull_slot(limit, image="a", directory=directory, on_wait=lambda at: say("place", at)):
    say("start", time.monotonic())
    time.sleep(hold_s) if hold_s else sys.stdin.read()
    end = time.monotonic()
say("end", end)
"""


class Worker:
    """Another process that takes a slot."""

    def __init__(self, directory: Path, *, limit: int = 1, hold_s: float = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(directory), str(limit), str(hold_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def line(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()

    def release(self) -> tuple[str, str]:
        return self.process.communicate(timeout=PATIENCE_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "slots"


Start = Callable[..., Worker]


@pytest.fixture
def start(directory: Path) -> Iterator[Start]:
    """Return a function that starts workers; they are killed at the end of the test."""
    workers: list[Worker] = []

    def started(*, limit: int = 1, hold_s: float = 0) -> Worker:
        workers.append(Worker(directory, limit=limit, hold_s=hold_s))
        return workers[-1]

    yield started
    for worker in workers:
        worker.kill()


def is_free(directory: Path, limit: int = 1) -> bool:
    try:
        with pull_slot(limit, image="a", directory=directory, timeout_s=0):
            return True
    except DeadlineExceeded:
        return False


# Among processes


def test_six_processes_never_hold_more_than_two_slots(start: Start) -> None:
    begun = [(worker, worker.line()) for worker in [start(limit=2) for _ in range(6)]]
    holding = [each for each in begun if each[1][0] == "start"]
    in_line = sorted((each for each in begun if each[1][0] == "place"), key=lambda each: each[1])
    assert (len(holding), len(in_line)) == (2, 4)
    changes: list[tuple[float, int]] = []
    for worker, head in holding + in_line:
        out, err = worker.release()
        times = dict([head, *(line.split() for line in out.splitlines())])
        assert worker.process.returncode == 0, err
        changes += [(float(times["start"]), 1), (float(times["end"]), -1)]
    held = peak = 0
    for _, change in sorted(changes):
        held += change
        peak = max(peak, held)
    assert len(changes) == 12
    assert peak == 2


def test_first_come_first_served_and_a_killed_process_frees_its_slot_and_its_place(
    start: Start,
) -> None:
    holder = start()
    assert holder.line()[0] == "start"
    waiters = []
    for place in "123":
        waiters.append(start())
        assert waiters[-1].line() == ["place", place]
    first, second, third = waiters
    second.kill()
    assert third.line() == ["place", "2"]
    holder.release()
    assert first.line()[0] == "start"
    assert third.line() == ["place", "1"]
    first.kill()
    assert third.line()[0] == "start"


def test_a_child_process_does_not_keep_the_slot(directory: Path, tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys, time\n"
        "from pathlib import Path\n"
        "from pycrictl.pulls.own.slots import pull_slot\n"
        "with pull_slot(1, image='a', directory=Path(sys.argv[1])):\n"
        "    child = subprocess.Popen(['sleep', '60'], close_fds=False)\n"
        "    forked = os.fork() or time.sleep(60) or os._exit(0)\n"
        "print(child.pid, forked)\n"
    )
    # Into a file: a pipe would stay open as long as the children live.
    with (tmp_path / "pids").open("w+") as pids:
        subprocess.run(
            [sys.executable, "-c", code, directory],
            stdout=pids,
            check=True,
            timeout=PATIENCE_S,
            cwd=ROOT,
        )
        pids.seek(0)
        children = [int(pid) for pid in pids.read().split()]
    try:
        assert len(children) == 2
        assert is_free(directory)
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)


def test_a_limit_counts_all_slots_that_are_held(directory: Path) -> None:
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(pull_slot(3, image="a", directory=directory))
        assert not is_free(directory, 2)
        assert not is_free(directory, 3)
        assert is_free(directory, 4)
    assert is_free(directory, 1)


# The directory


def test_the_directory_and_its_file_are_private(directory: Path) -> None:
    with pull_slot(1, image="a", directory=directory):
        assert directory.stat().st_mode & 0o777 == 0o700
        assert (directory / "pulls").stat().st_mode & 0o777 == 0o600


def test_a_planted_link_is_refused(directory: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    directory.symlink_to(elsewhere)
    with pytest.raises(PycrictlError, match=r'cannot use the directory ".*slots" for pull slots'):
        pull_slot(1, image="a", directory=directory).__enter__()
    assert list(elsewhere.iterdir()) == []
    directory.unlink()
    directory.mkdir(mode=0o700)
    (directory / "pulls").symlink_to(tmp_path / "target")
    with pytest.raises(PycrictlError, match="Too many levels of symbolic links"):
        pull_slot(1, image="a", directory=directory).__enter__()
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize(("mode", "stranger"), [(0o770, 0), (0o702, 0), (0o1777, 0), (0o700, 1)])
def test_a_directory_that_others_own_or_may_write_to_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch, mode: int, stranger: int
) -> None:
    directory.mkdir()
    directory.chmod(mode)
    user = os.geteuid() + stranger
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(PycrictlError, match="another user owns it or may write to it") as caught:
        pull_slot(1, image="a", directory=directory).__enter__()
    assert caught.value.hint == "PYCRICTL_SLOTS_DIR names another one"


@pytest.mark.parametrize(
    ("environ", "uid", "path"),
    [
        ({}, 0, "/run/pycrictl-slots"),
        ({"XDG_RUNTIME_DIR": "/run/user/0"}, 0, "/run/pycrictl-slots"),
        ({"XDG_RUNTIME_DIR": "/run/user/7"}, 7, "/run/user/7/pycrictl-slots"),
        ({}, 7, "/tmp/pycrictl-slots-7"),
        ({"PYCRICTL_SLOTS_DIR": "/a/b", "XDG_RUNTIME_DIR": "/c"}, 7, "/a/b"),
    ],
)
def test_default_directory(environ: dict[str, str], uid: int, path: str) -> None:
    assert default_directory(environ, uid) == Path(path)
