"""Copying through programs; those of this machine replace a container's."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from pycrictl.base.errors import CopyError, PycrictlError, Unimplemented
from pycrictl.copy import methods
from pycrictl.copy.over_exec import CommandResult, OverExec, Remote
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules, Skipped
from pycrictl.copy.tree.walk import Watch
from pycrictl.streams.pump import Ends
from pycrictl.streams.wire.command import ExitReported
from pycrictl.streams.wire.tar.header import END_OF_ARCHIVE
from tests.copy.hostile import archive, file, member
from tests.copy.trees import KEEP, PLAIN, contents, listing, stages_in

if TYPE_CHECKING:
    from pycrictl.runtime.cri.calls.client import CriClient

NOBODY = cast("CriClient", None)  # no runtime is called
ENVIRON = {"PATH": os.environ["PATH"], "LC_ALL": "C"}


class Copies(Remote):
    """Copies by the method exec, and records its callbacks. Programs run here; shells must not.

    Attributes:
        tar: output and exit status of a fake ``tar``; None runs the real one. The fake reads no
            input; if its status is 0, it is as if the runtime had lost the real status.
    """

    def __init__(self) -> None:
        super().__init__(NOBODY, "c")
        self.method = OverExec(self)
        self.tar: CommandResult | None = None
        self.commands: list[tuple[str, ...]] = []
        self.skipped: list[Skipped] = []
        self.counted: list[int] = []
        self.watch = Watch(self.counted.append, self.skipped.append)

    def copy_to(self, local: Path, path: Path | str, rules: Rules = PLAIN) -> Summary:
        return methods.copy_to(
            self.method, [os.fsencode(local)], os.fsencode(path), rules, self.watch
        )

    def copy_from(self, path: Path | str, local: Path, rules: Rules = PLAIN) -> Summary:
        return methods.copy_from(
            self.method, os.fsencode(path), os.fsencode(local), rules, self.watch
        )

    def run(self, *command: str) -> CommandResult:
        self._note(command)
        return done(command)

    def _note(self, command: tuple[str, ...]) -> None:
        assert not {"sh", "ash", "bash"} & set(command)
        self.commands.append(command)

    async def stream(self, command: Sequence[str], ends: Ends) -> ExitReported:
        self._note(tuple(command))
        ended = self.tar or await run_here(command, ends)
        await ends.stdout.write(ended.stdout)
        await ends.stderr.write(ended.stderr)
        return ExitReported(ended.status)


def done(command: Sequence[str], given: bytes = b"") -> CommandResult:
    words = list(map(os.fsencode, command))
    ended = subprocess.run(words, input=given, capture_output=True, check=False, env=ENVIRON)
    return CommandResult(ended.returncode, ended.stdout, ended.stderr)


async def run_here(command: Sequence[str], ends: Ends) -> CommandResult:
    given = b""
    while ends.stdin is not None and (data := await ends.stdin.read()):
        given += data
    return await asyncio.to_thread(done, command, given)


@pytest.fixture
def copies() -> Copies:
    return Copies()


def test_there_and_back_with_gnu_programs(copies: Copies, tree: Path, tmp_path: Path) -> None:
    there = copies.copy_to(tree, tmp_path / "new", KEEP)
    back = copies.copy_from(tmp_path / "new", tmp_path / "back", KEEP)
    assert there == back == Summary(4, 3, 1, there.size_bytes)
    assert listing(tmp_path / "new") == listing(tree) == listing(tmp_path / "back")
    assert copies.skipped == []
    assert sum(copies.counted) > 0
    assert stages_in(tmp_path) == []
    assert {command[0] for command in copies.commands} == {"tar", "stat"}


def test_a_directory_that_is_there_keeps_its_mode(copies: Copies, tmp_path: Path) -> None:
    for path in ("src/d/a", "dst/d/a"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(path)
    (tmp_path / "dst/d").chmod(0o750)
    assert copies.copy_to(tmp_path / "src/d", tmp_path / "dst") == Summary(1, 1, 0, 7)
    assert (tmp_path / "dst/d/a").read_text() == "src/d/a"
    assert (tmp_path / "dst/d").stat().st_mode & 0o777 == 0o750
    with pytest.raises(Unimplemented, match="tar in the container cannot"):
        copies.copy_to(tmp_path / "src/d", tmp_path / "dst", Rules(no_clobber=True))


def test_paths_that_look_like_options(copies: Copies, tmp_path: Path) -> None:
    for name in ("-rf", "--checkpoint-action=exec=touch x", "*?[a]", "$(x)", "a b\nc"):
        (tmp_path / "in").write_text(name)
        copies.copy_to(tmp_path / "in", tmp_path / name)
        assert (tmp_path / name).read_text() == name
        copies.copy_from(tmp_path / name, tmp_path / "out")
        assert (tmp_path / "out").read_text() == name
    with pytest.raises(CopyError, match="is not UTF-8"):
        Remote(NOBODY, "c").run("ls", os.fsdecode(b"/\xff"))


def test_wildcards(copies: Copies, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "[1]").write_text("1")
    copies.copy_from(inside / "[1]", tmp_path / "exact")  # there is a file of exactly this name
    assert (tmp_path / "exact").read_text() == "1"
    with pytest.raises(Unimplemented, match="expands no wildcards"):
        copies.copy_from(inside / "*", tmp_path)


def test_what_a_refused_copy_leaves_is_named(copies: Copies, tmp_path: Path) -> None:
    """If nothing was sent before the refusal, nothing is left, and there is no hint."""
    dst = tmp_path / "dst"
    dst.mkdir()
    large = file(b"top/1", b"x" * 300_000)
    bad = archive(member(b"top/../f"))
    for data, is_left in ((bad, False), (large + bad, True)):
        (tmp_path / "a.tar").write_bytes(data)
        with (tmp_path / "a.tar").open("rb") as tar, pytest.raises(CopyError) as info:
            methods.unpack_to(copies.method, tar.fileno(), bytes(dst), PLAIN, copies.watch)
        assert 'contains ".."' in info.value.message
        assert info.value.message.endswith("the copy is incomplete") is is_left
        hint = f'anything that had arrived was left in "{dst}"' if is_left else None
        assert info.value.hint == hint


GOOD = archive(file(b"./f", b"new"))


@pytest.mark.parametrize(
    ("status", "stdout", "stderr", "line"),
    [
        (0, GOOD[:700], b"", "ends"),
        (0, GOOD[:-1024], b"", "ends"),
        (0, b"", b"", "archive"),
        (0, b"usage: tar", b"", "archive"),
        (2, GOOD, b"tar: ./f: Input/output error\n", "input/output error"),
        (137, GOOD, b"Killed\n", "Killed"),
        (2, GOOD, b"", "it ended with status 2"),
        (2, b"", b"tar: ./f: No such file or directory\n", "no such file or directory"),
        (0, archive(member(b"../f")), b"", 'contains ".."'),
        (0, archive(member(b"./g")), b"", "not below"),
        (0, GOOD[:-1024] + archive(file(b"./f", b"2")), b"", "the same name came before"),
        (0, GOOD + b"x" * 512, b"", "there is data after the end"),
    ],
)
def test_what_tar_must_not_write(
    copies: Copies, tmp_path: Path, status: int, stdout: bytes, stderr: bytes, line: str
) -> None:
    (tmp_path / "out").mkdir()
    for name in ("f", "out/f"):
        (tmp_path / name).write_text("old")
    copies.tar = CommandResult(status, stdout, stderr)
    with pytest.raises(PycrictlError, match=line):
        copies.copy_from(tmp_path / "f", tmp_path / "out")
    pieces = methods.pack_from(copies.method, os.fsencode(tmp_path / "f"), PLAIN, copies.watch)
    passed: list[bytes] = []
    with pytest.raises(PycrictlError, match=line):
        passed.extend(map(bytes, pieces))
    assert END_OF_ARCHIVE not in passed
    assert contents(tmp_path) == {"f": "old", "out/f": "old"}


def test_complaints_of_a_tar_that_went_on(copies: Copies, tmp_path: Path) -> None:
    changed = b"tar: ./f: file changed as we read it\n"
    removed = b"tar: ./gone: File removed before we read it\n"
    copies.tar = CommandResult(1, GOOD, changed + removed)
    copies.copy_from("/etc/f", tmp_path / "new")
    assert (tmp_path / "new").read_text() == "new"
    assert [(each.path, each.rule) for each in copies.skipped] == [(b"./gone", "tar")]
    copies.tar = CommandResult(2, GOOD, b"x" * 10_000_000 + b"\n")
    with pytest.raises(CopyError) as info:
        copies.copy_from("/etc/f", tmp_path / "newer")
    assert len(info.value.message) < 400


@pytest.mark.parametrize(
    ("stderr", "status", "line"),
    [
        (b"", 0, "ended before it had read everything"),
        (b"tar: No space left on device", 1, "no space left on device"),
    ],
)
def test_a_tar_that_does_not_read(
    copies: Copies, tmp_path: Path, stderr: bytes, status: int, line: str
) -> None:
    (tmp_path / "f").touch()
    os.truncate(tmp_path / "f", 4 << 30)
    (tmp_path / "out").mkdir()
    copies.tar = CommandResult(status, b"", stderr)
    with pytest.raises(CopyError, match=line):
        copies.copy_to(tmp_path / "f", tmp_path / "out")
    assert sum(copies.counted) < 1 << 30
