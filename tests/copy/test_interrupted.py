"""Merges and removals that signals fall into: all of it, or nothing, and nothing that was there."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import pytest

from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.tree.commit import Merge
from pycrictl.copy.tree.janitor import VARIABLE, sweep_root
from pycrictl.copy.tree.places import THIS_MACHINE
from pycrictl.copy.tree.rootfs import Directory
from pycrictl.errors import CopyError
from pycrictl.signals import undisturbed
from tests.copy.hostile import snapshot
from tests.copy.trees import PLAIN, directly, nothing_is_left, stages_in

__all__ = ["nothing_is_left"]

NEW: Final = {"a": "1", "b": "2", "d/a": "3", "d/b": "4", "e/f": "5"}
OLD: Final = {"a": "old", "d/b": "old", "d/kept": "old"}
BOTH: Final = OLD | NEW


def killed(
    source: Path, into: Path, how: str, *, rules: Rules = PLAIN, fails_at: int, killed_at: int
) -> bool:
    """Copy in another process.

    Args:
        how: what the file system is able to: ``links`` to the old files, or ``moves`` alone, which
            replace what is in their way.
        fails_at: the move that fails.
        killed_at: the move before which the process is killed.

    Returns:
        Whether it was.
    """
    pid = os.fork()
    if pid:
        return os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    moves, move, link = 0, Directory.move, Directory.link

    def counted(
        self: Directory, name: bytes, to: Directory, to_name: bytes, *, flags: int = 0
    ) -> None:
        nonlocal moves
        moves += 1
        if moves == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if moves == fails_at:
            raise OSError(errno.EIO, "disk")
        if flags and how == "moves":
            moves -= 1
            raise OSError(errno.EINVAL, "flags")
        move(self, name, to, to_name, flags=flags)

    def linked(self: Directory, other: Directory, other_name: bytes, name: bytes) -> None:
        if how == "moves":
            raise OSError(errno.EPERM, "links")
        link(self, other, other_name, name)

    setattr(Directory, "move", counted)  # noqa: B010 (it is replaced)
    setattr(Directory, "link", linked)  # noqa: B010 (the same)
    try:
        directly(f"{source}/.", into, rules)
    finally:
        os._exit(0)


@pytest.fixture(autouse=True)
def noted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    os.environ[VARIABLE] = str(tmp_path_factory.mktemp("noted"))
    yield
    del os.environ[VARIABLE]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    fill(tmp_path / "source", NEW)
    return tmp_path / "source"


@pytest.fixture
def into(tmp_path: Path) -> Path:
    fill(tmp_path / "into", OLD)
    return tmp_path / "into"


def fill(top: Path, files: dict[str, str]) -> None:
    for path, data in files.items():
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_text(data)


def found(top: Path) -> dict[str, str]:
    files = [path for path in top.rglob("*") if path.is_file()]
    return {str(path.relative_to(top)): path.read_text() for path in files}


@pytest.fixture
def handlers() -> Iterator[None]:
    """Signals as the program has them, an exception each, whatever the tests' own are."""

    def terminate(*_: object) -> None:
        raise SystemExit

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, terminate)
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("how", "rules"),
    [("links", PLAIN), ("moves", PLAIN), ("links", Rules(no_clobber=True))],
    ids=["links", "moves", "no-clobber"],
)
def test_killed_in_a_merge_that_fails(source: Path, into: Path, how: str, rules: Rules) -> None:
    """Whatever step fails, and wherever the program is killed in taking back the others."""
    complete = NEW | OLD if rules.no_clobber else BOTH
    seen = []
    for fails_at in (3, 6, 1000):
        for killed_at in range(1, 40):
            before = snapshot(into)
            was_killed = killed(
                source, into, how, rules=rules, fails_at=fails_at, killed_at=killed_at
            )
            assert len(stages_in(into)) == was_killed
            assert sweep_root(THIS_MACHINE) == was_killed
            seen.append(found(into))
            assert seen[-1] in (OLD, complete), (fails_at, killed_at)
            if not was_killed and seen[-1] == OLD:
                assert snapshot(into) == before
            shutil.rmtree(into)
            fill(into, OLD)
            if not was_killed:
                break
        else:
            pytest.fail("it was killed every time")
    assert OLD in seen
    assert complete in seen


def last_fails(last: int) -> Callable[..., None]:
    replace, done = Merge._replace, 0

    def replacing(*arguments: Any) -> None:
        nonlocal done
        replace(*arguments)
        done += 1
        if done == last:
            raise KeyboardInterrupt

    return replacing


def with_signal(function: Callable[..., None], number: int) -> Callable[..., None]:
    """A function that a signal falls into."""

    def interrupted(*arguments: Any) -> None:
        signal.raise_signal(number)
        function(*arguments)

    return interrupted


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_while_a_merge_is_taken_back(
    source: Path, into: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    before = snapshot(into)
    monkeypatch.setattr(Merge, "_take_back", with_signal(Merge._take_back, number))
    monkeypatch.setattr(Merge, "_replace", last_fails(2))
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        directly(f"{source}/.", into)
    assert snapshot(into) == before


@pytest.mark.usefixtures("handlers")
def test_a_signal_in_a_step_takes_effect_after_it(
    source: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(into)
    link = Mock(side_effect=with_signal(Directory.link, signal.SIGINT))
    monkeypatch.setattr(Directory, "link", lambda *words: link(*words))
    with pytest.raises(KeyboardInterrupt):
        directly(f"{source}/.", into)
    assert snapshot(into) == before
    assert link.call_count == 1


def test_what_cannot_be_taken_back_stays(
    source: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who clears up finishes the merge then, as far as it can."""
    monkeypatch.setattr(Merge, "_replace", last_fails(2))

    monkeypatch.setattr(Merge, "_take_back", Mock(side_effect=OSError(5, "disk")))
    with pytest.raises(CopyError, match="failed halfway") as info:
        directly(f"{source}/.", into)
    assert "/into/.pycrictl-" in str(info.value.hint)
    monkeypatch.undo()
    sweep_root(THIS_MACHINE)
    assert stages_in(into) == []
    assert found(into) == BOTH


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("is_over", [False, True], ids=["given up", "finished"])
def test_a_signal_while_the_stage_is_removed(
    source: Path, into: Path, monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    remove, removed = Directory.remove, count(1)

    def interrupted(self: Directory, name: bytes, *, depth: int = 0) -> None:
        if next(removed) == 2:
            signal.raise_signal(signal.SIGINT)
        remove(self, name, depth=depth)

    monkeypatch.setattr(Directory, "remove", interrupted)
    if not is_over:
        monkeypatch.setattr(Merge, "_replace", last_fails(2))
    with pytest.raises(KeyboardInterrupt):
        directly(f"{source}/.", into)
    monkeypatch.undo()
    sweep_root(THIS_MACHINE)
    assert stages_in(into) == []
    assert found(into) == (BOTH if is_over else OLD)


def test_what_is_being_removed_is_not_finished(source: Path, into: Path) -> None:
    """A copy that was taken back, and whose stage somebody has begun to remove."""
    assert killed(source, into, "links", fails_at=1000, killed_at=2)
    [stage] = stages_in(into)
    (stage / "commit").rename(stage / "top")
    (stage / "top/a").unlink()
    sweep_root(THIS_MACHINE)
    assert found(into) == OLD


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("lets", [True, False])
@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_undisturbed(number: int, error: type[BaseException], lets: bool) -> None:
    steps = []

    def work() -> None:
        with undisturbed() as let_through:
            signal.raise_signal(number)
            steps.append("held back")
            if lets:
                let_through()
            steps.append("to the end")

    with pytest.raises(error):
        work()
    assert steps == ["held back", "to the end"][: 2 - lets]
    with pytest.raises(error):
        signal.raise_signal(number)


@pytest.mark.usefixtures("handlers")
def test_undisturbed_leaves_alone_what_does_nothing() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with undisturbed():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    seen: list[object] = []

    def work() -> None:
        with undisturbed() as let_through:
            let_through()
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
