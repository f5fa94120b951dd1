"""Commits in a container that fail, or are interrupted or killed at any of their steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from pycrictl.copy.exec import remote_commit, remote_stage
from pycrictl.copy.exec.over_exec import OverExec
from pycrictl.copy.exec.remote import Ended, Session
from pycrictl.copy.exec.remote_stage import RemoteStage, remove
from pycrictl.copy.method import Watch
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.tree.survivor import Survivor
from pycrictl.errors import ConnectError, CopyError
from tests.copy.exec.test_over_exec import ThisMachine, seen
from tests.copy.node.test_on_node import UNWATCHED
from tests.copy.trees import stages_in

BAD = os.fsdecode(b"\xff\xfe")


class Killed(BaseException):
    """This program is no more."""


class NoSurvivor(Survivor):
    """Whoever it was made for clears up in the test itself."""

    def __init__(self) -> None:
        self.is_released = False

    def dismiss(self) -> None:
        pass

    def release(self) -> None:
        self.is_released = True


class Unsteady(ThisMachine):
    """Calls ``before`` with the words of each program; what that returns is how it ended."""

    def __init__(self, before: Callable[[Sequence[str]], Ended | None] = lambda _: None) -> None:
        super().__init__()
        self.before = before
        self.its_survivor = NoSurvivor()

    def survivor(self, stage: str) -> Survivor:
        return self.its_survivor

    def _run_now(self, command: Sequence[str], limit_s: int) -> Ended:
        ended = self.before(command)
        return super()._run_now(command, limit_s) if ended is None else ended

    def stream(self, *command: str, stdin: bool) -> Session:
        self.before(command)
        return super().stream(*command, stdin=stdin)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_commit, "_PAUSE_S", 0.0)
    monkeypatch.setattr(remote_stage, "_REMOVAL_PAUSE_S", 0.0)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """``src`` to be merged with ``dst``, which has some of it already."""
    for top, names in (
        ("src", ["a", "b", BAD, "d/a", "d/b", "d/sub/a", "new/x/y"]),
        ("dst", ["a", "d/a", "d/sub/a", "d/sub/other"]),
    ):
        for name in names:
            path = tmp_path / top / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{top} {name}", errors="surrogateescape")
    (tmp_path / "dst/d/b").symlink_to("nowhere")
    return tmp_path


def merge(remote: ThisMachine, tree: Path) -> None:
    OverExec(remote).copy_to(bytes(tree / "src") + b"/.", bytes(tree / "dst"), Rules(), UNWATCHED)


def contents(top: Path) -> dict[str, object]:
    return {path: row[2:] for path, row in seen(top).items()}


def is_of_moves(command: Sequence[str]) -> bool:
    """Whether it is the program that moves everything."""
    return command[0] == "xargs" and any(word.endswith("/moves") for word in command)


def half_of(command: Sequence[str]) -> Ended:
    """Move half of what is listed."""
    words = Path(command[5]).read_bytes().split(b"\0")[:-1]
    pairs = list(zip(words[::2], words[1::2], strict=True))
    for source, target in pairs[: len(pairs) // 2]:
        Path(os.fsdecode(source)).replace(os.fsdecode(target))
    return Ended(123, b"", b"mv: can't rename 'x': Read-only file system\n")


def test_a_merge_without_a_failure(tree: Path) -> None:
    remote = Unsteady()
    merge(remote, tree)
    found = contents(tree / "dst")
    assert found.items() >= contents(tree / "src").items()
    assert found.keys() - contents(tree / "src").keys() == {"d/sub/other"}
    assert stages_in(tree) == []
    # Names are in no command unless they are looked at, and programs are few.
    acts = [words for words in remote.commands if words[0] in ("mv", "tar", "cp") or "env" in words]
    assert len(acts) <= 8


def test_a_failure_in_the_middle_is_undone(tree: Path) -> None:
    before = contents(tree / "dst")
    remote = Unsteady(lambda command: half_of(command) if is_of_moves(command) else None)
    with pytest.raises(CopyError, match="read-only file system") as info:
        merge(remote, tree)
    assert "incomplete" not in info.value.message
    assert contents(tree / "dst") == before
    assert stages_in(tree) == []


@pytest.mark.parametrize("missing", ["ln", "xargs", "env", "-a"])
def test_without_a_program_that_helps(tree: Path, missing: str) -> None:
    before = contents(tree / "dst")

    def act(command: Sequence[str]) -> Ended | None:
        if command[0] == "xargs" and missing in command:
            return Ended(1 if missing == "-a" else 127, b"", b"xargs: usage\n")
        return half_of(command) if is_of_moves(command) else None

    remote = Unsteady(act)
    remote.missing = {missing}
    if missing == "ln":
        with pytest.raises(CopyError, match="read-only file system"):
            merge(remote, tree)
        assert contents(tree / "dst") == before
    else:
        with pytest.raises(CopyError, match="is not UTF-8"):
            merge(remote, tree)
        assert contents(tree / "dst") == before
        (tree / "src" / BAD).unlink()
        merge(remote, tree)
        assert contents(tree / "dst").items() >= contents(tree / "src").items()
    assert stages_in(tree) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ConnectError("the runtime is gone")])
def test_what_cannot_be_undone_is_told(
    tree: Path, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    before = contents(tree / "dst")
    is_gone = False

    def act(command: Sequence[str]) -> None:
        nonlocal is_gone
        if is_of_moves(command) and not is_gone:
            half_of(command)
            is_gone = True
            raise error
        if is_gone:
            raise ConnectError("the runtime is gone")

    remote = Unsteady(act)
    with pytest.raises(BaseException) as info:  # noqa: PT011
        merge(remote, tree)
    told = str(info.value) if isinstance(error, Exception) else caplog.text
    assert "the copy is incomplete" in told
    assert remote.its_survivor.is_released
    # It is done as soon as the runtime is back.
    (stage,) = stages_in(tree)
    assert remove(ThisMachine(), str(stage), undo=True)
    assert contents(tree / "dst") == before
    assert stages_in(tree) == []


@pytest.mark.parametrize("is_done", [False, True])
def test_one_rename_is_not_undone_but_asked_for(tmp_path: Path, is_done: bool) -> None:
    (tmp_path / "f").write_text("new")
    (tmp_path / "dst").mkdir()
    (tmp_path / "dst/f").write_text("old")
    ended = False

    class Ending(Unsteady):
        is_gone = False

        def _run_now(self, command: Sequence[str], limit_s: int) -> Ended:
            nonlocal ended
            if command[0] == "mv" and not ended:
                ended = True
                if is_done:
                    super()._run_now(command, limit_s)
                raise ConnectError("it is gone") if self.is_gone else KeyboardInterrupt
            if ended and self.is_gone:
                raise ConnectError("it is gone")
            return super()._run_now(command, limit_s)

    def copy() -> None:
        OverExec(Ending()).copy_to(
            bytes(tmp_path / "f"), bytes(tmp_path / "dst"), Rules(), UNWATCHED
        )

    if is_done:
        copy()  # whoever interrupts it is too late
    else:
        with pytest.raises(KeyboardInterrupt):
            copy()
    assert (tmp_path / "dst/f").read_text() == ("new" if is_done else "old")
    assert stages_in(tmp_path) == []
    Ending.is_gone, ended = True, False
    with pytest.raises(CopyError, match="it is gone; it is not known whether") as info:
        copy()
    assert [str(stage) in (info.value.hint or "") for stage in stages_in(tmp_path)] == [True]


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("is_killed", [False, True])
def test_an_end_at_any_step(tmp_path: Path, is_killed: bool, is_done: bool) -> None:
    """All is new or all is old, whenever the program is interrupted, or killed."""
    results: list[str] = []
    step = 0
    while "not interrupted" not in results:
        top = tmp_path / str(step)
        top.mkdir()
        prepare(top)
        before = contents(top / "dst")
        results.append(end_at(step, top, is_killed=is_killed, is_done=is_done))
        after = contents(top / "dst")
        if results[-1] == "ended":
            results[-1] = "old" if after == before else "new"
        if results[-1] != "old":
            assert after.items() >= contents(top / "src").items(), step
        else:
            assert after == before, step
        assert stages_in(top) == []
        step += 1
    assert len(results) > 10
    # There is one moment from which on everything is new.
    changes = [first != second for first, second in pairwise(results)]
    assert results[0] == "old"
    assert sum(changes) <= 2


def prepare(top: Path) -> None:
    for name in ("src/a", "src/b", "src/d/a", "dst/a", "dst/d/a"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(name)


def end_at(wanted: int, top: Path, *, is_killed: bool, is_done: bool) -> str:
    """Copy; end that at a step, with or without that step being done; clear up if killed."""
    step = -1
    ended = False

    class Ending(Unsteady):
        def _run_now(self, command: Sequence[str], limit_s: int) -> Ended:
            nonlocal step, ended
            step += 1
            if ended and is_killed:
                raise Killed
            if step == wanted:
                ended = True
                if is_done:
                    ThisMachine._run_now(self, command, limit_s)
                raise Killed if is_killed else KeyboardInterrupt
            return super()._run_now(command, limit_s)

    remote = Ending()
    try:
        merge(remote, top)
    except (Killed, KeyboardInterrupt):
        return "ended"
    finally:
        for stage in stages_in(top):
            assert is_killed or remote.its_survivor.is_released
            remove(ThisMachine(), str(stage), undo=True)
    return "new" if ended else "not interrupted"


@pytest.mark.parametrize("keep", [False, True])
def test_writing_in_place_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    new.write_text("a new text")
    old.write_text("the old text, which is longer")
    os.utime(old, (1_000_000_000, 1_000_000_000))
    inode = old.stat().st_ino
    monkeypatch.setattr(RemoteStage, "_mounted", lambda _: frozenset({bytes(old)}))
    failures = 1

    def act(command: Sequence[str]) -> Ended | None:
        nonlocal failures
        if command[0] == "cp" and command[-1] == str(old) and failures:
            failures -= 1
            old.write_text("")
            return Ended(1, b"", b"cp: write error: No space left on device\n")
        return None

    def copy() -> None:
        rules = Rules(in_place=True, archive=keep)
        OverExec(Unsteady(act)).copy_to(bytes(new), bytes(old), rules, UNWATCHED)

    with pytest.raises(CopyError, match="no space left on device"):
        copy()
    assert old.read_text() == "the old text, which is longer"
    assert (old.stat().st_mtime, old.stat().st_ino) == (1_000_000_000, inode)
    assert stages_in(tmp_path) == []
    failures = 1000
    with pytest.raises(CopyError, match="incomplete: cannot undo it") as info:
        copy()
    (stage,) = stages_in(tmp_path)
    assert str(stage) in (info.value.hint or "")
    assert (stage / "old/0").read_text() == "the old text, which is longer"
    failures = 0
    assert remove(ThisMachine(), str(stage), undo=True)
    assert old.read_text() == "the old text, which is longer"
    copy()
    assert old.read_text() == "a new text"
    assert old.stat().st_ino == inode
    assert stages_in(tmp_path) == []


def test_files_that_cannot_be_linked_are_copied(tree: Path) -> None:
    def act(command: Sequence[str]) -> Ended | None:
        if command[0] == "xargs" and "ln" in command:
            return Ended(123, b"", b"ln: Operation not permitted\n")
        return half_of(command) if is_of_moves(command) else None

    (tree / "dst/b").unlink(missing_ok=True)
    (tree / "dst/b").symlink_to("a")
    before = contents(tree / "dst")
    with pytest.raises(CopyError, match="read-only"):
        merge(Unsteady(act), tree)
    assert contents(tree / "dst") == before
    assert (tree / "dst/b").is_symlink()


def test_a_file_system_that_is_mounted_below(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(tree / "dst")
    monkeypatch.setattr(RemoteStage, "_mounted", lambda _: frozenset({bytes(tree / "dst/d")}))
    with pytest.raises(CopyError, match="another file system is mounted"):
        merge(Unsteady(), tree)
    assert contents(tree / "dst") == before
    # What has nothing to do there is no reason.
    for path in (tree / "src/d").rglob("*"):
        if path.is_file():
            path.unlink()
    merge(Unsteady(), tree)


def test_a_name_of_any_bytes_for_a_single_file(tmp_path: Path) -> None:
    (tmp_path / BAD).write_text("1")
    (tmp_path / "dst").mkdir()
    watch = Watch(lambda _: None, lambda _: None)
    for text in ("1", "2"):
        (tmp_path / BAD).write_text(text)
        OverExec(Unsteady()).copy_to(bytes(tmp_path / BAD), bytes(tmp_path / "dst"), Rules(), watch)
        assert (tmp_path / "dst" / BAD).read_text() == text
    with suppress(CopyError):
        OverExec(Unsteady()).copy_to(
            bytes(tmp_path / BAD), bytes(tmp_path / "dst" / BAD) + b"/", Rules(), watch
        )
    assert stages_in(tmp_path) == []
