"""Merges and removals that fail, are killed, or are interrupted by signals."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
from collections.abc import Callable, Container, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from pycrictl.base.errors import CopyError
from pycrictl.copy.tree.commit import sweep_root
from pycrictl.copy.tree.places import THIS_MACHINE
from pycrictl.copy.tree.rootfs import Directory
from tests.copy.hostile import snapshot
from tests.copy.trees import PLAIN, contents, directly, stages_in

NEW: Final = {"a": "1", "b": "2", "d/a": "3", "d/b": "4", "e/f": "5"}
OLD: Final = {"a": "old", "d/b": "old", "d/kept": "old"}
BOTH: Final = OLD | NEW


@pytest.fixture
def into(tmp_path: Path) -> Path:
    fill(tmp_path / "source", NEW)
    fill(tmp_path / "into", OLD)
    return tmp_path / "into"


def merge(into: Path) -> None:
    directly(f"{into.parent}/source/.", into, PLAIN)


def fill(top: Path, files: dict[str, str]) -> None:
    for path, data in files.items():
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_text(data)


def at_move(
    monkeypatch: pytest.MonkeyPatch,
    numbers: Container[int],
    act: Callable[[], object],
    *,
    has_flags: bool = True,
) -> None:
    """Call ``act`` before the moves with these numbers; move 1 marks the start of the merge."""
    moves, move = count(1), Directory.move

    def counted(*words: Any, flags: int = 0) -> None:
        if flags and not has_flags:
            raise OSError(errno.EINVAL, "flags")
        if next(moves) in numbers:
            act()
        move(*words, flags=flags)

    monkeypatch.setattr(Directory, "move", counted)


def fail(*_: object) -> None:
    raise OSError(errno.EIO, "disk")


@pytest.mark.parametrize("has_flags", [True, False])
def test_killed_in_a_merge(into: Path, monkeypatch: pytest.MonkeyPatch, has_flags: bool) -> None:
    """The next program finishes a merge that had begun."""
    killed = partial(signal.raise_signal, signal.SIGKILL)
    for killed_at in range(1, 20):
        pid = os.fork()
        if pid == 0:
            at_move(monkeypatch, [killed_at], killed, has_flags=has_flags)
            try:
                merge(into)
            finally:
                os._exit(0)
        was_killed = os.WIFSIGNALED(os.waitpid(pid, 0)[1])
        assert len(stages_in(into)) == was_killed
        sweep_root(THIS_MACHINE)
        assert stages_in(into) == []
        assert contents(into) == (OLD if killed_at == 1 else BOTH), killed_at
        if not was_killed:
            break
        shutil.rmtree(into)
        fill(into, OLD)
    assert 3 < killed_at < 19


@pytest.mark.parametrize("links", [True, False], ids=["links", "no-links"])
@pytest.mark.parametrize("fails_at", range(1, 6))
def test_a_move_that_fails(
    into: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int, links: bool
) -> None:
    before = snapshot(into)
    at_move(monkeypatch, [fails_at], fail)
    if not links:
        monkeypatch.setattr(Directory, "link", fail)
    with pytest.raises(CopyError, match="input/output error"):
        merge(into)
    assert snapshot(into) == before
    assert stages_in(into) == []


def test_moves_that_cannot_be_undone(into: Path) -> None:
    """A merge that had begun is finished by a later sweep, once that is possible."""
    with pytest.MonkeyPatch.context() as broken:
        at_move(broken, range(4, 99), fail)
        with pytest.raises(CopyError, match=r"failed halfway: .*input/output error") as info:
            merge(into)
    assert "/into/.pycrictl-" in str(info.value.hint)
    sweep_root(THIS_MACHINE)
    assert stages_in(into) == []
    assert contents(into) == BOTH


@pytest.fixture
def terminating() -> Iterator[None]:
    """Make SIGTERM raise an exception, as the program does and as SIGINT does by default."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("terminating")
@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_in_a_merge_takes_effect_after_it(
    into: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, error: type[BaseException]
) -> None:
    at_move(monkeypatch, [3], partial(signal.raise_signal, number))
    with pytest.raises(error):
        merge(into)
    assert contents(into) == BOTH
    assert stages_in(into) == []
    with pytest.raises(error):  # the handler is restored
        signal.raise_signal(number)


def test_a_signal_while_the_stage_of_a_failure_is_removed(into: Path) -> None:
    remove, removed = Directory.remove, count(1)

    def interrupted(*words: Any, depth: int = 0) -> None:
        if next(removed) == 2:
            signal.raise_signal(signal.SIGINT)
        remove(*words, depth=depth)

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(Directory, "remove", interrupted)
        at_move(broken, [2], fail)
        with pytest.raises(KeyboardInterrupt):
            merge(into)
    [stage] = stages_in(into)
    assert (stage / "top").exists()  # under this name no sweep finishes the merge
    sweep_root(THIS_MACHINE)
    assert stages_in(into) == []
    assert contents(into) == OLD
