"""Stages in a container, filled and emptied: what fails, is interrupted or killed at any step."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from pycrictl.copy.exec import remote_stage
from pycrictl.copy.exec.over_exec import OverExec
from pycrictl.copy.exec.remote_stage import remove
from pycrictl.copy.exec.running import Ended, Running
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.tree.survivor import Survivor
from pycrictl.errors import ConnectError, CopyError, StreamError
from pycrictl.streaming.pump import Ends
from pycrictl.wire.command import ExitReported
from tests.copy.exec.test_over_exec import ThisMachine, run_here, seen
from tests.copy.node.test_on_node import UNWATCHED
from tests.copy.trees import stages_in

BAD = os.fsdecode(b"\xff\xfe")


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

    class Noted(Survivor):
        def __init__(self, *_: object) -> None:
            self._process = None

        def dismiss(self) -> None:
            ends.append("dismissed")

        def release(self) -> None:
            ends.append("released")

    monkeypatch.setattr(remote_stage, "Survivor", Noted)
    monkeypatch.setattr(remote_stage, "_REMOVAL_PAUSE_S", 0.0)
    return ends


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """``src`` to be merged with ``dst``, which has some of it already."""
    for top, names in (
        ("src", ["a", "b", BAD, "d/a", "d/b", "d/sub/a", "new/x/y", "{}/a", "{}/b"]),
        ("dst", ["a", "d/a", "d/sub/a", "d/sub/other", "{}/a", "elsewhere/kept"]),
    ):
        for name in names:
            path = tmp_path / top / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{top} {name}", errors="surrogateescape")
    (tmp_path / "dst/d/b").symlink_to("../elsewhere")
    return tmp_path


def copy(remote: ThisMachine, source: Path | bytes, target: Path, rules: Rules = Rules()) -> None:  # noqa: B008 (it is immutable)
    OverExec(remote).copy_to(os.fsencode(source), bytes(target), rules, UNWATCHED)


def merge(remote: ThisMachine, tree: Path) -> None:
    copy(remote, bytes(tree / "src") + b"/.", tree / "dst")


def contents(top: Path) -> dict[str, object]:
    return {path: row[2:] for path, row in seen(top).items()}


def is_old_or_new(tree: Path, before: dict[str, object]) -> bool:
    """Whether everything in ``dst`` is what it was, or what ``src`` has."""
    new = contents(tree / "src")
    after = contents(tree / "dst")
    return before.keys() <= after.keys() and all(
        found in (before.get(path), new.get(path)) for path, found in after.items()
    )


def test_a_merge_without_a_failure(tree: Path) -> None:
    remote = Unsteady()
    before = contents(tree / "dst")
    merge(remote, tree)
    found = contents(tree / "dst")
    assert found.items() >= contents(tree / "src").items()
    assert found.keys() - contents(tree / "src").keys() == {
        "d/sub/other",
        "elsewhere",
        "elsewhere/kept",
    }
    # A link is replaced, wherever it leads.
    assert found["elsewhere/kept"] == before["elsewhere/kept"]
    assert stages_in(tree) == []
    # However many are moved, programs are few, but where there are braces.
    moves = [words for words in remote.commands if "mv" in words]
    assert len(moves) <= 3


def test_a_link_to_a_directory_is_replaced_by_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("new")
    (tmp_path / "dst").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "dst/f").symlink_to("../elsewhere")
    copy(Unsteady(), tmp_path / "f", tmp_path / "dst")
    assert (tmp_path / "dst/f").read_text() == "new"
    assert not (tmp_path / "dst/f").is_symlink()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def half_of(command: Sequence[str]) -> Ended:
    """Move the first half of what ``find`` is to have moved."""
    moves = [index for index, word in enumerate(command) if word == "mv"]
    for index in moves[: len(moves) // 2]:
        source, folder = command[index + 2 : index + 4]
        Path(source).replace(folder + Path(source).name)
    return Ended(0, b"", b"mv: can't rename 'x': Read-only file system\n")


def moves_many(command: Sequence[str]) -> bool:
    return command[0] == "find" and "mv" in command


def test_a_merge_that_breaks_off(tree: Path, survivors: list[str]) -> None:
    before = contents(tree / "dst")
    (tree / "src" / BAD).unlink()
    remote = Unsteady(lambda command: half_of(command) if moves_many(command) else None)
    with pytest.raises(CopyError, match="read-only file system; the copy is incomplete"):
        merge(remote, tree)
    assert is_old_or_new(tree, before)
    assert contents(tree / "dst") != before
    assert stages_in(tree) == []
    assert survivors == ["dismissed"]
    merge(Unsteady(), tree)
    assert contents(tree / "dst").items() >= contents(tree / "src").items()


def test_a_failure_is_seen_whatever_the_status(tree: Path) -> None:
    """``find`` succeeds where what it runs fails."""
    target = tree / "dst/d/sub"

    def act(command: Sequence[str]) -> None:
        if moves_many(command):
            (target / "a").unlink()
            (target / "a").mkdir()
            (target / "a/in-the-way").touch()

    (tree / "src" / BAD).unlink()
    with pytest.raises(CopyError, match="incomplete"):
        merge(Unsteady(act), tree)
    assert (target / "a/in-the-way").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ConnectError("the runtime is gone")])
def test_a_runtime_that_goes_in_the_middle(
    tree: Path, error: BaseException, caplog: pytest.LogCaptureFixture, survivors: list[str]
) -> None:
    before = contents(tree / "dst")
    is_gone = False

    def act(command: Sequence[str]) -> None:
        nonlocal is_gone
        if moves_many(command) and not is_gone:
            half_of(command)
            is_gone = True
            raise error
        if is_gone:
            raise ConnectError("the runtime is gone")

    (tree / "src" / BAD).unlink()
    with pytest.raises(BaseException) as info:  # noqa: PT011
        merge(Unsteady(act), tree)
    told = str(info.value) if isinstance(error, Exception) else caplog.text
    assert "the copy is incomplete" in told
    assert survivors == ["released"]
    (stage,) = stages_in(tree)
    assert remove(ThisMachine(), str(stage))
    assert is_old_or_new(tree, before)
    assert stages_in(tree) == []


def test_without_a_program_for_odd_names(tree: Path) -> None:
    remote = Unsteady()
    remote.missing = {"xargs"}
    before = contents(tree / "dst")
    with pytest.raises(CopyError, match="is not UTF-8"):
        merge(remote, tree)
    assert contents(tree / "dst") == before
    (tree / "src" / BAD).unlink()
    merge(remote, tree)
    assert contents(tree / "dst").items() >= contents(tree / "src").items()
    assert stages_in(tree) == []


def test_names_that_are_cut_off_move_nothing_elsewhere(tmp_path: Path) -> None:
    """The connection may break anywhere; what came before runs all the same."""
    for name in ("src/dir/sub", "dst/d", "dst/dir/sub"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "src/dir/sub" / BAD).write_text("new")
    (tmp_path / "dst/dir/sub" / BAD).write_text("old")
    before = contents(tmp_path / "dst")

    class CutOff(Unsteady):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.count = count
            self.is_whole = True

        def stream(self, *command: str, stdin: bool) -> Running:
            if command[0] != "xargs" or len(command) > 3:
                return super().stream(*command, stdin=stdin)

            async def begin(ends: Ends) -> ExitReported:
                assert ends.stdin is not None
                words = b""
                while data := await ends.stdin.read():
                    words += data
                if b"mv\0" in words:
                    self.is_whole = self.count >= len(words)
                    words = words[: self.count]
                reported = await run_here(command, ends, words)
                if not self.is_whole:
                    raise StreamError("the connection broke")
                return reported

            return Running(command[0], begin, stdin=stdin)

    count, results = 0, []
    while True:
        remote = CutOff(count)
        with suppress(CopyError):
            merge(remote, tmp_path)
        found = contents(tmp_path / "dst")
        assert stages_in(tmp_path) == []
        if remote.is_whole:
            break
        results.append(found == before)
        assert found.keys() == before.keys(), count
        (tmp_path / "dst/dir/sub" / BAD).write_text("old")
        count += 9
    assert found.items() >= contents(tmp_path / "src").items()
    assert len(results) > 20
    # The last item alone may be missing.
    assert all(results[:-1])


@pytest.mark.parametrize("is_done", [False, True])
def test_one_rename_is_done_or_not(tmp_path: Path, is_done: bool) -> None:
    (tmp_path / "f").write_text("new")
    (tmp_path / "dst").mkdir()
    (tmp_path / "dst/f").write_text("old")

    class Ending(Unsteady):
        is_gone = False

        def _run_now(self, command: Sequence[str], limit_s: int) -> Ended:
            if command[0] == "mv":
                if is_done:
                    super()._run_now(command, limit_s)
                self.is_gone = True
            if self.is_gone:
                raise ConnectError("it is gone")
            return super()._run_now(command, limit_s)

    with pytest.raises(CopyError, match="it is gone; it is not known whether") as info:
        copy(Ending(), tmp_path / "f", tmp_path / "dst")
    assert [str(stage) in (info.value.hint or "") for stage in stages_in(tmp_path)] == [True]
    assert (tmp_path / "dst/f").read_text() == ("new" if is_done else "old")


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("is_merge", [False, True])
def test_an_end_at_any_step(
    tmp_path: Path, survivors: list[str], is_merge: bool, is_killed: bool, is_done: bool
) -> None:
    """A new name has all or nothing; in a merge every file is whole."""
    results: list[str] = []
    while "not interrupted" not in results:
        top = tmp_path / str(len(results))
        for name in ("src/a", "src/b", "src/d/a", *(["dst/a", "dst/d/a"] if is_merge else [])):
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).write_text(name)
        before = contents(top / "dst") if is_merge else {}
        remote = Ending(len(results), is_killed=is_killed, is_done=is_done)
        try:
            copy(remote, bytes(top / "src") + b"/.", top / "dst")
            results.append("new" if remote.has_ended else "not interrupted")
        except (Killed, KeyboardInterrupt):
            results.append("ended")
        for stage in stages_in(top):
            assert is_killed or survivors[-1] == "released"
            remove(ThisMachine(), str(stage))
        after = contents(top / "dst") if (top / "dst").exists() else {}
        if results[-1] != "ended":
            assert after.items() >= contents(top / "src").items()
        elif is_merge:
            assert is_old_or_new(top, before)
        else:
            assert after in ({}, contents(top / "src"))
        assert stages_in(top) == []
    assert len(results) > 8


class Ending(Unsteady):
    """A container's programs, at one of which this program ends.

    Args:
        step: the number of that one.
        is_killed: nothing can be run any more.
        is_done: it runs to its end.

    Attributes:
        has_ended: it was reached.
    """

    def __init__(self, step: int, *, is_killed: bool, is_done: bool) -> None:
        super().__init__()
        self.has_ended = False
        self._step = step
        self._is_killed = is_killed
        self._is_done = is_done

    def _run_now(self, command: Sequence[str], limit_s: int) -> Ended:
        self._step -= 1
        if self.has_ended and self._is_killed:
            raise Killed
        if self._step == -1:
            self.has_ended = True
            if self._is_done:
                super()._run_now(command, limit_s)
            raise Killed if self._is_killed else KeyboardInterrupt
        return super()._run_now(command, limit_s)


@pytest.mark.parametrize("keep", [False, True])
def test_writing_in_place_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    new.write_text("a new text")
    old.write_text("the old text, which is longer")
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
    assert old.read_text() == "the old text, which is longer"
    assert (old.stat().st_mtime, old.stat().st_ino) == (1_000_000_000, inode)
    assert stages_in(tmp_path) == []
    failures = 1000
    with pytest.raises(CopyError, match="incomplete") as info:
        overwrite()
    (stage,) = stages_in(tmp_path)
    assert str(stage / "old") in (info.value.hint or "")
    assert (stage / "old").read_text() == "the old text, which is longer"
    failures = 0
    assert remove(ThisMachine(), str(stage))
    overwrite()
    assert old.read_text() == "a new text"
    assert old.stat().st_ino == inode
    assert stages_in(tmp_path) == []


def test_a_file_system_that_is_mounted_below(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(tree / "dst")
    monkeypatch.setattr(ThisMachine, "mounts", lambda _: frozenset({bytes(tree / "dst/d")}))
    with pytest.raises(CopyError, match="another file system is mounted"):
        merge(Unsteady(), tree)
    assert contents(tree / "dst") == before
    # What has nothing to do there is no reason.
    for path in (tree / "src/d").rglob("*"):
        if path.is_file():
            path.unlink()
    merge(Unsteady(), tree)


def test_a_name_of_any_bytes_for_a_single_file(tmp_path: Path) -> None:
    (tmp_path / "dst").mkdir()
    for text in ("1", "2"):
        (tmp_path / BAD).write_text(text)
        copy(Unsteady(), tmp_path / BAD, tmp_path / "dst")
        assert (tmp_path / "dst" / BAD).read_text() == text
    with pytest.raises(CopyError, match="not a directory"):
        OverExec(Unsteady()).copy_to(
            bytes(tmp_path / BAD), bytes(tmp_path / "dst" / BAD) + b"/", Rules(), UNWATCHED
        )
    assert stages_in(tmp_path) == []


def test_what_is_there_must_be_seen(tree: Path) -> None:
    before = contents(tree / "dst")

    def act(command: Sequence[str]) -> Ended | None:
        if command[0] == "find" and "-print0" in command:
            return Ended(1, b"", b"find: unrecognized: -print0\n")
        return None

    (tree / "src" / BAD).unlink()
    with pytest.raises(CopyError, match="unrecognized: -print0"):
        merge(Unsteady(act), tree)
    assert contents(tree / "dst") == before
