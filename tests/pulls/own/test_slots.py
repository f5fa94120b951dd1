from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from pycrictl.base.errors import DeadlineExceeded, PycrictlError
from pycrictl.pulls.own.slots import default_directory, pull_slot

PATIENCE_S = 30.0
ROOT = Path(__file__).parents[3]

# Says when it waits and when it has the slot, which it holds until its input ends.
WORKER = """
import sys
from pathlib import Path
from pycrictl.pulls.own.slots import pull_slot
def say(word): print(word, flush=True)
directory, limit = Path(sys.argv[1]), int(sys.argv[2])
with pull_slot(limit, image="a", directory=directory, on_wait=lambda: say("waits")):
    say("pulls")
    sys.stdin.read()
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "slots"


def is_free(directory: Path, limit: int = 1) -> bool:
    try:
        with pull_slot(limit, image="a", directory=directory, timeout_s=0):
            return True
    except DeadlineExceeded:
        return False


def test_processes_never_hold_more_slots_than_the_limit(directory: Path) -> None:
    """One that waits gets the slot of one that ends or is killed."""
    with ExitStack() as stack:

        def start() -> subprocess.Popen[str]:
            words = [sys.executable, "-c", WORKER, str(directory), "2"]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            worker = stack.enter_context(subprocess.Popen(words, text=True, cwd=ROOT, **pipes))  # type: ignore[call-overload]
            stack.callback(worker.kill)
            return worker  # type: ignore[no-any-return]

        def line(worker: subprocess.Popen[str]) -> str:
            assert worker.stdout is not None
            return worker.stdout.readline().strip()

        first, second = start(), start()
        assert [line(first), line(second)] == ["pulls", "pulls"]
        waiting = [start(), start()]
        assert [line(worker) for worker in waiting] == ["waits", "waits"]
        assert not is_free(directory, 2)
        first.kill()
        second.communicate(timeout=PATIENCE_S)
        assert [line(worker) for worker in waiting] == ["pulls", "pulls"]
        assert not is_free(directory, 2)
        for worker in waiting:
            worker.communicate(timeout=PATIENCE_S)
        assert is_free(directory, 2)


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


# The directory


def test_the_directory_and_its_file_are_private(directory: Path) -> None:
    with pull_slot(1, image="a", directory=directory):
        assert directory.stat().st_mode & 0o777 == 0o700
        assert (directory / "slot-0").stat().st_mode & 0o777 == 0o600


def test_a_planted_link_is_refused(directory: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    directory.symlink_to(elsewhere)
    with pytest.raises(PycrictlError, match=r'cannot use the directory ".*slots" for pull slots'):
        pull_slot(1, image="a", directory=directory).__enter__()
    assert list(elsewhere.iterdir()) == []
    directory.unlink()
    directory.mkdir(mode=0o700)
    (directory / "slot-0").symlink_to(tmp_path / "target")
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
    assert caught.value.hint == "set PYCRICTL_SLOTS_DIR to another one"


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
