"""Merges and removals that fail or are killed, and that signals fall into."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.tree.janitor import VARIABLE, sweep_root
from pycrictl.copy.tree.places import THIS_MACHINE
from pycrictl.copy.tree.rootfs import Directory
from pycrictl.errors import CopyError
from pycrictl.signals import undisturbed
from tests.copy.hostile import snapshot
from tests.copy.trees import PLAIN, contents, directly, nothing_is_left, stages_in

__all__ = ["nothing_is_left"]

NEW: Final = {"a": "1", "b": "2", "d/a": "3", "d/b": "4", "e/f": "5"}
OLD: Final = {"a": "old", "d/b": "old", "d/kept": "old"}
BOTH: Final = OLD | NEW


@pytest.fixture(autouse=True)
def noted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as own:
        own.setenv(VARIABLE, str(tmp_path_factory.mktemp("noted")))
        yield


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


def at_move(
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    act: Callable[[], object],
    *,
    has_flags: bool = True,
    goes_on: bool = False,
) -> None:
    """Do something before a move, or all from that; the first says that the merge begins."""
    moves, move = 0, Directory.move

    def counted(
        self: Directory, name: bytes, to: Directory, to_name: bytes, *, flags: int = 0
    ) -> None:
        nonlocal moves
        if flags and not has_flags:
            raise OSError(errno.EINVAL, "flags")
        moves += 1
        if moves == number or (goes_on and moves > number):
            act()
        move(self, name, to, to_name, flags=flags)

    monkeypatch.setattr(Directory, "move", counted)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise OSError(errno.EIO, "disk")


@pytest.mark.parametrize(
    ("has_flags", "rules"),
    [(True, PLAIN), (False, PLAIN), (True, Rules(no_clobber=True))],
    ids=["flags", "no-flags", "no-clobber"],
)
def test_killed_in_a_merge(
    source: Path, into: Path, monkeypatch: pytest.MonkeyPatch, has_flags: bool, rules: Rules
) -> None:
    """The next one finishes what has begun."""
    complete = NEW | OLD if rules.no_clobber else BOTH
    for killed_at in range(1, 20):
        pid = os.fork()
        if pid == 0:
            at_move(monkeypatch, killed_at, kill, has_flags=has_flags)
            try:
                directly(f"{source}/.", into, rules)
            finally:
                os._exit(0)
        was_killed = os.WIFSIGNALED(os.waitpid(pid, 0)[1])
        assert len(stages_in(into)) == was_killed
        assert sweep_root(THIS_MACHINE) == was_killed
        assert contents(into) == (OLD if killed_at == 1 else complete), killed_at
        if not was_killed:
            break
        shutil.rmtree(into)
        fill(into, OLD)
    assert 3 < killed_at < 19


@pytest.mark.parametrize("links", [True, False], ids=["links", "no-links"])
@pytest.mark.parametrize("fails_at", range(1, 6))
def test_a_move_that_fails(
    source: Path, into: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int, links: bool
) -> None:
    before = snapshot(into)
    at_move(monkeypatch, fails_at, fail)
    if not links:
        monkeypatch.setattr(Directory, "link", lambda *_: fail())
    with pytest.raises(CopyError, match="input/output error"):
        directly(f"{source}/.", into)
    monkeypatch.undo()
    assert snapshot(into) == before
    assert stages_in(into) == []


def test_moves_that_cannot_be_undone(
    source: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has begun is finished once that is possible."""
    at_move(monkeypatch, 4, fail, goes_on=True)
    with pytest.raises(CopyError, match=r"failed halfway: .*input/output error") as info:
        directly(f"{source}/.", into)
    monkeypatch.undo()
    assert "/into/.pycrictl-" in str(info.value.hint)
    sweep_root(THIS_MACHINE)
    assert stages_in(into) == []
    assert contents(into) == BOTH


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


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_in_a_merge_takes_effect_after_it(
    source: Path,
    into: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    error: type[BaseException],
) -> None:
    at_move(monkeypatch, 3, lambda: signal.raise_signal(number))
    with pytest.raises(error):
        directly(f"{source}/.", into)
    assert contents(into) == BOTH
    assert stages_in(into) == []
    with pytest.raises(error):  # as before
        signal.raise_signal(number)


@pytest.mark.usefixtures("handlers")
def test_a_signal_while_the_stage_of_a_failure_is_removed(
    source: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove, removed = Directory.remove, 0

    def interrupted(self: Directory, name: bytes, *, depth: int = 0) -> None:
        nonlocal removed
        removed += 1
        if removed == 2:
            signal.raise_signal(signal.SIGINT)
        remove(self, name, depth=depth)

    monkeypatch.setattr(Directory, "remove", interrupted)
    at_move(monkeypatch, 2, fail)
    with pytest.raises(KeyboardInterrupt):
        directly(f"{source}/.", into)
    monkeypatch.undo()
    [stage] = stages_in(into)
    assert (stage / "top").exists()  # it is not finished
    sweep_root(THIS_MACHINE)
    assert stages_in(into) == []
    assert contents(into) == OLD


@pytest.mark.usefixtures("handlers")
def test_undisturbed_leaves_alone_what_does_nothing() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with undisturbed():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
