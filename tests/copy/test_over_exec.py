"""Copying through programs; those of this machine replace a container's."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from pycrictl.base.errors import CopyError, PycrictlError, Unimplemented
from pycrictl.copy import methods
from pycrictl.copy.over_exec import OverExec
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules, Skipped
from pycrictl.copy.tree.walk import Watch
from pycrictl.streams.pump import Ends
from pycrictl.streams.wire.command import ExitReported
from tests.copy.hostile import archive, file, member
from tests.copy.trees import KEEP, PLAIN, contents, listing, stages_in

if TYPE_CHECKING:
    from pycrictl.runtime.cri.calls.client import CriClient

NOBODY = cast("CriClient", None)  # no runtime is called
ENVIRON = {"PATH": os.environ["PATH"], "LC_ALL": "C"}


class Copies(OverExec):
    """Copies by the method exec, and records its callbacks. Programs run here; shells must not.

    Attributes:
        tar: standard output and error and exit status of a fake ``tar``; None runs the real one.
    """

    def __init__(self) -> None:
        super().__init__(NOBODY, "c")
        self.tar: tuple[bytes, bytes, int] | None = None
        self.commands: set[str] = set()
        self.skipped: list[Skipped] = []
        self.counted: list[int] = []
        self.watch = Watch(self.counted.append, self.skipped.append)

    def copy_to(self, local: Path, path: Path | str, rules: Rules = PLAIN) -> Summary:
        return methods.copy_to(self, [os.fsencode(local)], os.fsencode(path), rules, self.watch)

    def copy_from(self, path: Path | str, local: Path, rules: Rules = PLAIN) -> Summary:
        return methods.copy_from(self, os.fsencode(path), os.fsencode(local), rules, self.watch)

    async def stream(self, command: tuple[str, ...], ends: Ends) -> ExitReported:
        self.commands.add(command[0])
        stdout, stderr, status = self.tar or await run_here(command, ends)
        await ends.stdout.write(stdout)
        await ends.stderr.write(stderr)
        return ExitReported(status)


async def run_here(command: tuple[str, ...], ends: Ends) -> tuple[bytes, bytes, int]:
    given = b""
    while ends.stdin is not None and (data := await ends.stdin.read()):
        given += data
    return run(list(map(os.fsencode, command)), given)


def run(words: list[bytes], given: bytes) -> tuple[bytes, bytes, int]:
    ended = subprocess.run(words, input=given, capture_output=True, check=False, env=ENVIRON)
    return ended.stdout, ended.stderr, ended.returncode


@pytest.fixture
def copies() -> Copies:
    return Copies()


def test_there_and_back_with_gnu_programs(copies: Copies, tree: Path, tmp_path: Path) -> None:
    there = copies.copy_to(tree, tmp_path / "new", KEEP)
    back = copies.copy_from(tmp_path / "new", tmp_path / "back", KEEP)
    assert there == back == Summary(4, 3, 1, there.size_bytes)
    assert listing(tmp_path / "new") == listing(tree)
    assert contents(tmp_path / "back") == contents(tree)
    assert copies.skipped == []
    assert sum(copies.counted) > 0
    assert stages_in(tmp_path) == []
    assert copies.commands == {"tar", "stat"}


def test_a_directory_that_is_there_keeps_its_mode(copies: Copies, tmp_path: Path) -> None:
    for path in ("src/d/a", "dst/d/a"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(path)
    (tmp_path / "dst/d").chmod(0o750)
    assert copies.copy_to(tmp_path / "src/d", tmp_path / "dst") == Summary(1, 1, 0, 7)
    assert (tmp_path / "dst/d/a").read_text() == "src/d/a"
    assert (tmp_path / "dst/d").stat().st_mode & 0o777 == 0o750
    (tmp_path / "empty").mkdir()
    copies.copy_from(tmp_path / "empty/.", tmp_path / "new")
    assert contents(tmp_path / "new") == {}


def test_what_it_does_not_do(copies: Copies, tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    with pytest.raises(Unimplemented, match="cannot leave existing files alone"):
        copies.copy_to(tmp_path / "f", tmp_path, Rules(no_clobber=True))
    for path, follow, said in (
        ("/a/*", False, "expands no wildcards"),
        ("/a", True, "cannot follow a single link"),
        ("/", False, "cannot leave out /proc and /sys"),
    ):
        with pytest.raises(Unimplemented, match=said):
            methods.copy_from(
                copies, path.encode(), bytes(tmp_path), PLAIN, copies.watch, follow=follow
            )
    assert copies.commands == set()


def test_paths_that_look_like_options(copies: Copies, tmp_path: Path) -> None:
    for name in ("-rf", "--checkpoint-action=exec=touch x", "$(x)", "a b\nc"):
        (tmp_path / "in").write_text(name)
        copies.copy_to(tmp_path / "in", tmp_path / name)
        assert (tmp_path / name).read_text() == name
        copies.copy_from(tmp_path / name, tmp_path / "out")
        assert (tmp_path / "out").read_text() == name
    with pytest.raises(CopyError, match="is not UTF-8"):
        copies.copy_from(os.fsdecode(b"/\xff"), tmp_path / "out")


def test_a_refused_archive_changes_nothing(copies: Copies, tmp_path: Path) -> None:
    dst = tmp_path / "dst"
    dst.mkdir()
    (tmp_path / "a.tar").write_bytes(file(b"top/1", b"x" * 300_000) + archive(member(b"top/../f")))
    with (tmp_path / "a.tar").open("rb") as tar, pytest.raises(CopyError, match=r'contains "\.\."'):
        methods.unpack_to(copies, tar.fileno(), bytes(dst), PLAIN, copies.watch)
    assert contents(dst) == {}


GOOD = archive(file(b"./f", b"new"))


@pytest.mark.parametrize(
    ("status", "stdout", "stderr", "line"),
    [
        (0, GOOD[:700], b"", "ends"),
        (0, GOOD[:-1024], b"", "ends"),
        (0, b"", b"", "archive"),
        (0, b"usage: tar", b"", "archive"),
        (2, GOOD, b"tar: ./f: Input/output error\n", "Input/output error"),
        (137, GOOD, b"Killed\n", "Killed"),
        (2, GOOD, b"", "it ended with status 2"),
        (2, b"", b"tar: ./f: No such file or directory\n", "No such file or directory"),
        (127, b"", b"", "there is no tar in the container"),
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
    copies.tar = stdout, stderr, status
    with pytest.raises(PycrictlError, match=line):
        copies.copy_from(tmp_path / "f", tmp_path / "out")
    pieces = methods.pack_from(copies, os.fsencode(tmp_path / "f"), PLAIN, copies.watch)
    with pytest.raises(PycrictlError, match=line):
        next(pieces)
    assert contents(tmp_path) == {"f": "old", "out/f": "old"}


def test_complaints_of_a_tar_that_went_on(copies: Copies, tmp_path: Path) -> None:
    copies.tar = GOOD, b"tar: ./s: socket ignored\n", 0
    copies.copy_from("/etc/f", tmp_path / "new")
    assert (tmp_path / "new").read_text() == "new"
    assert [skipped.reason for skipped in copies.skipped] == ['"tar: ./s: socket ignored"']
    copies.tar = GOOD, b"x" * 10_000_000 + b"\n", 2
    with pytest.raises(CopyError) as info:
        copies.copy_from("/etc/f", tmp_path / "newer")
    assert len(info.value.message) < 400


def test_a_tar_that_fails_to_unpack(copies: Copies, tmp_path: Path) -> None:
    """What it leaves is named."""
    (tmp_path / "out").mkdir(0o700)
    (tmp_path / "out/f").mkdir()
    (tmp_path / "out/f/g").touch()
    (tmp_path / "a.tar").write_bytes(archive(file(b"f", b"new")))
    with (tmp_path / "a.tar").open("rb") as tar, pytest.raises(CopyError) as info:
        methods.unpack_to(copies, tar.fileno(), bytes(tmp_path / "out"), PLAIN, copies.watch)
    assert info.value.message.startswith('tar in the container failed: "tar: f: Cannot open')
    assert info.value.message.endswith("; the copy is incomplete")
    assert info.value.hint == f'anything that had arrived was left in "{tmp_path}/out"'
