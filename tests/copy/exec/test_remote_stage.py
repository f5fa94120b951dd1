"""Stages in a container, filled and emptied: what fails, is interrupted or killed at any step."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pycrictl.copy.exec import remote_stage
from pycrictl.copy.exec.over_exec import OverExec
from pycrictl.copy.exec.remote_stage import remove
from pycrictl.copy.exec.running import Ended
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.tree.survivor import Survivor
from pycrictl.errors import ConnectError, CopyError
from tests.copy.exec.test_over_exec import ENVIRON, PLAIN, ThisMachine, seen
from tests.copy.node.test_on_node import UNWATCHED
from tests.copy.trees import stages_in

BAD = os.fsdecode(b"\xff\xfe")
OLD = {"a": "old", "d/a": "old", "d/sub/other": "old", "{}/a": "old", "elsewhere/kept": "old"}
NEW = {"a": "new", "b": "new", "d/a": "new", "d/l": "new", "new/x/y": "new", "{}/a": "new"}


class Killed(BaseException):
    """This program is no more."""


class Unsteady(ThisMachine):
    """Calls ``before`` with the words of each program; what that returns is how it ended."""

    def __init__(self, before: Callable[[Sequence[str]], Ended | None] = lambda _: None) -> None:
        super().__init__()
        self.before = before

    def _run_now(self, command: Sequence[str], limit_s: int) -> Ended:
        ended = self.before(command)
        return super()._run_now(command, limit_s) if ended is None else ended


@pytest.fixture(autouse=True)
def survivors(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What became of each survivor; whoever it was made for clears up in the test itself."""
    ends: list[str] = []
    monkeypatch.setattr(Survivor, "__init__", lambda *_: None)
    monkeypatch.setattr(Survivor, "dismiss", lambda _: ends.append("dismissed"))
    monkeypatch.setattr(Survivor, "release", lambda _: ends.append("released"))
    monkeypatch.setattr(remote_stage, "_REMOVAL_PAUSE_S", 0.0)
    return ends


def fill(top: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    return top


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """``src`` to be merged with ``dst``, which has some of it already."""
    fill(tmp_path / "src", NEW)
    (fill(tmp_path / "dst", OLD) / "d/l").symlink_to("../elsewhere")
    return tmp_path


def copy(remote: ThisMachine, source: Path | bytes, target: Path, rules: Rules = PLAIN) -> None:
    OverExec(remote).copy_to(os.fsencode(source), bytes(target), rules, UNWATCHED)


def merge(remote: ThisMachine, tree: Path) -> None:
    copy(remote, bytes(tree / "src") + b"/.", tree / "dst")


def contents(top: Path) -> dict[str, object]:
    return {path: row[2:] for path, row in seen(top).items()} if top.exists() else {}


def is_merged(tree: Path) -> bool:
    return contents(tree / "dst").items() >= contents(tree / "src").items()


def is_old_or_new(tree: Path, before: dict[str, object]) -> bool:
    """Whether everything in ``dst`` is what it was, or what ``src`` has."""
    new, after = contents(tree / "src"), contents(tree / "dst")
    return before.keys() <= after.keys() and all(
        found in (before.get(path), new.get(path)) for path, found in after.items()
    )


def moves(command: Sequence[str]) -> bool:
    return command[0] == "find" and "mv" in command


@pytest.mark.parametrize("name", ["plain", BAD])
def test_a_merge_without_a_failure(tree: Path, name: str) -> None:
    (tree / "src" / name).write_text("new")
    kept = fill(tree / "kept", {"elsewhere/kept": "old", "d/sub/other": "old"})
    remote = Unsteady()
    merge(remote, tree)
    assert is_merged(tree)
    # A link is replaced, wherever it leads, and nothing else is touched.
    assert contents(tree / "dst").items() >= contents(kept).items()
    assert stages_in(tree) == []
    # However many are moved, programs are few, but where there are braces.
    assert len([words for words in remote.commands if "mv" in words]) <= 2


def test_a_link_to_a_directory_is_replaced_by_a_file(tmp_path: Path) -> None:
    fill(tmp_path, {"f": "new", "elsewhere/kept": "old", "dst/other": "old"})
    (tmp_path / "dst/f").symlink_to("../elsewhere")
    copy(Unsteady(), tmp_path / "f", tmp_path / "dst")
    assert not (tmp_path / "dst/f").is_symlink()
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["kept"]


def test_a_merge_that_breaks_off(tree: Path, survivors: list[str]) -> None:
    """``find`` succeeds where what it runs fails."""
    target = tree / "dst/d/a"
    before = contents(tree / "dst")
    del before["d/a"]

    def act(command: Sequence[str]) -> None:
        if moves(command):
            target.unlink()
            fill(target, {"in-the-way": "old"})

    with pytest.raises(CopyError, match="the copy is incomplete"):
        merge(Unsteady(act), tree)
    (target / "in-the-way").unlink()
    target.rmdir()
    assert (tree / "dst/a").read_text() == "new"
    assert is_old_or_new(tree, before)
    assert (stages_in(tree), survivors) == ([], ["dismissed"])
    merge(Unsteady(), tree)
    assert is_merged(tree)


def test_without_a_program_for_odd_names(tree: Path) -> None:
    (tree / "src" / BAD).write_text("new")
    remote = Unsteady()
    remote.missing = {"xargs"}
    before = contents(tree / "dst")
    with pytest.raises(CopyError, match="is not UTF-8"):
        merge(remote, tree)
    assert contents(tree / "dst") == before
    (tree / "src" / BAD).unlink()
    merge(remote, tree)
    assert is_merged(tree)
    assert stages_in(tree) == []


def test_names_that_are_cut_off_move_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection may break anywhere; what came before runs all the same."""
    fill(tmp_path, {f"src/dir/sub/{BAD}": "new", f"dst/dir/sub/{BAD}": "old", "dst/d/x": "old"})
    before = contents(tmp_path / "dst")
    run_bytes, cuts = ThisMachine.run_bytes, []

    def cut_off(self: ThisMachine, *command: bytes) -> Ended:
        if b"mv" in command:
            words = b"".join(word + b"\0" for word in command[1:])
            for count in range(0, words.index(b"\0;\0"), 7):
                xargs = [b"xargs", b"-0", command[0]]
                subprocess.run(
                    xargs, check=False, input=words[:count], capture_output=True, env=ENVIRON
                )
                cuts.append(contents(tmp_path / "dst") == before)
        return run_bytes(self, *command)

    monkeypatch.setattr(ThisMachine, "run_bytes", cut_off)
    # The stage is in the destination, and is not what is looked at.
    monkeypatch.setattr(remote_stage, "random_name", lambda: b"../.pycrictl-stage")
    merge(Unsteady(), tmp_path)
    assert len(cuts) > 20
    assert all(cuts)
    assert is_merged(tmp_path)


class Ending(Unsteady):
    """A container's programs, at one of which this program ends.

    Args:
        step: the number of that one.
        error: how it ends; but for Ctrl-C, nothing can be run after that.
        is_done: the program runs to its end.
    """

    def __init__(self, step: int, error: type[BaseException], *, is_done: bool) -> None:
        super().__init__()
        self.has_ended = False
        self._step = step
        self._error = error
        self._is_done = is_done

    def _run_now(self, command: Sequence[str], limit_s: int) -> Ended:
        self._step -= 1
        ended = None
        if self._step == -1 and self._is_done:
            ended = super()._run_now(command, limit_s)
        self.has_ended |= self._step == -1
        if self._step == -1 and self._error is KeyboardInterrupt:
            signal.raise_signal(signal.SIGINT)
        elif self.has_ended and self._error is not KeyboardInterrupt:
            raise self._error("it is gone")
        return ended or super()._run_now(command, limit_s)


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("error", [Killed, KeyboardInterrupt, ConnectError])
@pytest.mark.parametrize("is_merge", [False, True])
def test_an_end_at_any_step(
    tmp_path: Path,
    survivors: list[str],
    caplog: pytest.LogCaptureFixture,
    is_merge: bool,
    error: type[BaseException],
    is_done: bool,
) -> None:
    """A new name has all or nothing; in a merge every file is whole, and what is not is said."""
    step, has_ended = 0, True
    while has_ended:
        top = tmp_path / str(step)
        fill(top / "src", {"a": "new", "b": "new", "d/a": "new"})
        if is_merge:
            fill(top / "dst", {"a": "old", "d/a": "old"})
        before = contents(top / "dst")
        remote = Ending(step, error, is_done=is_done)
        said = ""
        caplog.clear()
        try:
            merge(remote, top)
        except (Killed, KeyboardInterrupt, CopyError, ConnectError) as exc:
            said = f"{exc} {caplog.text}"
        for stage in stages_in(top):
            assert error is Killed or survivors[-1] == "released"
            remove(ThisMachine(), str(stage))
        assert stages_in(top) == []
        assert is_old_or_new(top, before)
        assert said or is_merged(top)
        assert is_merge or contents(top / "dst") in ({}, contents(top / "src"))
        if error is not Killed and said and contents(top / "dst") != before:
            assert "the copy is incomplete" in said or "it is not known whether" in said
        step, has_ended = step + 1, remote.has_ended
    assert step > 8


@pytest.mark.parametrize("keep", [False, True])
def test_writing_in_place_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    text = "the old text, which is longer"
    new, old = (
        fill(tmp_path, {"new": "a new text", "old": text}) / name for name in ("new", "old")
    )
    os.utime(old, (1_000_000_000, 1_000_000_000))
    inode = old.stat().st_ino
    monkeypatch.setattr(ThisMachine, "mounts", lambda _: frozenset({bytes(old)}))
    failures = 1

    def act(command: Sequence[str]) -> Ended | None:
        nonlocal failures
        if command[0] == "cp" and command[-1] == str(old) and failures:
            failures -= 1
            old.write_text("")
            return Ended(1, b"", b"cp: write error: No space left on device\n")
        return None

    def overwrite() -> None:
        copy(Unsteady(act), new, old, Rules(in_place=True, archive=keep))

    with pytest.raises(CopyError, match="no space left on device"):
        overwrite()
    assert (old.read_text(), stages_in(tmp_path)) == (text, [])
    assert (old.stat().st_mtime, old.stat().st_ino) == (1_000_000_000, inode)
    failures = 1000
    with pytest.raises(CopyError, match="the copy is incomplete") as info:
        overwrite()
    (stage,) = stages_in(tmp_path)
    assert str(stage / "old") in (info.value.hint or "")
    assert (stage / "old").read_text() == text
    remove(ThisMachine(), str(stage))
    failures = 0
    overwrite()
    assert (old.read_text(), old.stat().st_ino) == ("a new text", inode)
    assert stages_in(tmp_path) == []


def test_a_file_system_that_is_mounted_below(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(tree / "dst")
    monkeypatch.setattr(ThisMachine, "mounts", lambda _: frozenset({bytes(tree / "dst/d")}))
    with pytest.raises(CopyError, match="another file system is mounted"):
        merge(Unsteady(), tree)
    assert contents(tree / "dst") == before
    # It is no reason where nothing goes there.
    for path in (tree / "src/d").iterdir():
        path.unlink()
    merge(Unsteady(), tree)


def test_what_is_there_must_be_seen(tree: Path) -> None:
    before = contents(tree / "dst")

    def act(command: Sequence[str]) -> Ended | None:
        has_no_option = command[0] == "find" and "-print0" in command
        return Ended(1, b"", b"find: unrecognized: -print0\n") if has_no_option else None

    with pytest.raises(CopyError, match="unrecognized: -print0"):
        merge(Unsteady(act), tree)
    assert contents(tree / "dst") == before


def test_a_name_of_any_bytes_for_a_single_file(tmp_path: Path) -> None:
    (tmp_path / "dst").mkdir()
    for text in ("1", "2"):
        (tmp_path / BAD).write_text(text)
        copy(Unsteady(), tmp_path / BAD, tmp_path / "dst")
        assert (tmp_path / "dst" / BAD).read_text() == text
    with pytest.raises(CopyError, match="not a directory"):
        OverExec(Unsteady()).copy_to(
            bytes(tmp_path / BAD), bytes(tmp_path / "dst" / BAD) + b"/", PLAIN, UNWATCHED
        )
    assert stages_in(tmp_path) == []
