"""Copies through programs: those of this machine stand for a container's."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from pycrictl.copy import ends
from pycrictl.copy.exec.over_exec import OverExec, watchdog
from pycrictl.copy.exec.remote import CommandResult, Remote, Running
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules, Skipped
from pycrictl.copy.tree.walk import Watch
from pycrictl.cri.calls.client import CriClient
from pycrictl.errors import CopyError, PycrictlError, Unimplemented
from pycrictl.streaming.pump import Ends
from pycrictl.wire.command import ExitReported
from pycrictl.wire.tar.writer import END_OF_ARCHIVE
from tests.copy.hostile import archive, file, member
from tests.copy.trees import KEEP, PLAIN, listing, stages_in, tree
from tests.waiting import wait_until

__all__ = ["tree"]


class ThisMachine(Remote):
    """Runs the programs here, and remembers them. A shell would be none.

    Attributes:
        tar: what ``tar`` writes and how it ends, in place of what it is; None: it is what it is.
        stops_reading: ``tar`` reads nothing and reports success, as a runtime may that has lost
            the exit status.
        delay_s: how long it takes to open the streams of a program with input.
        begun: the programs that had been asked for when such streams were opened.
    """

    def __init__(self) -> None:
        super().__init__(CriClient("/nowhere.sock", timeout_s=1), "c")
        self.commands: list[tuple[str, ...]] = []
        self.tar: tuple[bytes, bytes, int] | None = None
        self.stops_reading = False
        self.delay_s = 0.0
        self.begun: list[tuple[str, ...]] = []

    def run(self, *command: str) -> CommandResult:
        self._note(command)
        done = subprocess.run(
            list(map(os.fsencode, command)), capture_output=True, check=False, env=ENVIRON
        )
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def _note(self, command: Sequence[str]) -> None:
        assert not {"sh", "ash", "bash"} & set(command)
        self.commands.append(tuple(command))

    def check_running(self) -> None:
        """It always does."""

    def stream(self, *command: str, stdin: bool) -> Running:
        self._note(command)

        async def begin(ends: Ends) -> ExitReported:
            if stdin:
                await asyncio.sleep(self.delay_s)
                self.begun += self.commands
            if self.tar is not None:
                stdout, stderr, status = self.tar
                await ends.stdout.write(stdout)
                await ends.stderr.write(stderr)
                return ExitReported(status)
            if self.stops_reading:
                return ExitReported(0)
            return await run_here(command, ends)

        return Running(command[0], begin, stdin=stdin)


ENVIRON = {"PATH": os.environ["PATH"], "LC_ALL": "C"}


async def run_here(command: Sequence[str], ends: Ends) -> ExitReported:
    process = await asyncio.create_subprocess_exec(
        *map(os.fsencode, command),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=ENVIRON,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        while ends.stdin is not None and (data := await ends.stdin.read()):
            process.stdin.write(data)
            await process.stdin.drain()
        process.stdin.close()
        while piece := await process.stdout.read(100_000):
            await ends.stdout.write(piece)
        await ends.stderr.write(await process.stderr.read())
        return ExitReported(await process.wait())
    finally:
        if process.returncode is None:  # it was hung up on
            process.kill()
            await process.wait()


class Copies:
    """Copies by the method, and what they told."""

    def __init__(self) -> None:
        self.remote = ThisMachine()
        self.method = OverExec(self.remote)
        self.skipped: list[Skipped] = []
        self.watch = Watch(self.count, self.skipped.append)
        self.bytes = 0

    def count(self, count: int) -> None:
        self.bytes += count

    def copy_to(self, local: Path, path: Path | str, rules: Rules = PLAIN) -> Summary:
        return ends.copy_to(self.method, os.fsencode(local), os.fsencode(path), rules, self.watch)

    def copy_from(self, path: Path | str, local: Path, rules: Rules = PLAIN) -> Summary:
        return ends.copy_from(self.method, os.fsencode(path), os.fsencode(local), rules, self.watch)


@pytest.fixture
def copies() -> Copies:
    return Copies()


def test_there_and_back_with_gnu_programs(copies: Copies, tree: Path, tmp_path: Path) -> None:
    there = copies.copy_to(tree, tmp_path / "new", KEEP)
    back = copies.copy_from(tmp_path / "new", tmp_path / "back", KEEP)
    assert there == back == Summary(4, 3, 1, there.size_bytes)
    assert listing(tmp_path / "new") == listing(tree) == listing(tmp_path / "back")
    assert copies.skipped == []
    assert copies.bytes > 0
    assert stages_in(tmp_path) == []
    assert {command[0] for command in copies.remote.commands} == {"tar", "stat", "xargs"}


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
        Remote(CriClient("/nowhere.sock", timeout_s=1), "c").run("ls", os.fsdecode(b"/\xff"))


def test_what_a_refused_copy_leaves_is_named(copies: Copies, tmp_path: Path) -> None:
    """Nothing where nothing had been sent yet."""
    (tmp_path / "dst").mkdir()
    large = file(b"top/1", b"x" * 300_000)
    bad = archive(member(b"top/../f"))
    for data, is_left in ((bad, False), (large + bad, True)):
        (tmp_path / "a.tar").write_bytes(data)
        with (tmp_path / "a.tar").open("rb") as tar, pytest.raises(CopyError) as info:
            ends.unpack_to(
                copies.method, tar.fileno(), bytes(tmp_path / "dst"), PLAIN, copies.watch
            )
        assert 'contains ".."' in info.value.message
        assert info.value.message.endswith("the copy is incomplete") is is_left
        hint = f'what had arrived was left in "{tmp_path}/dst"'
        assert info.value.hint == (hint if is_left else None)


GOOD = archive(file(b"./f", b"new"))


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ((GOOD[:700], b"", 0), "ends"),
        ((GOOD[:-1024], b"", 0), "ends"),
        ((b"", b"", 0), "archive"),
        ((b"usage: tar", b"", 0), "archive"),
        ((GOOD, b"tar: ./f: Input/output error\n", 2), "input/output error"),
        ((GOOD, b"Killed\n", 137), "Killed"),
        ((GOOD, b"", 2), "it ended with status 2"),
        ((b"", b"tar: ./f: No such file or directory\n", 2), "no such file or directory"),
        ((archive(member(b"../f")), b"", 0), 'contains ".."'),
        ((archive(member(b"./g")), b"", 0), "not below"),
        ((GOOD[:-1024] + archive(file(b"./f", b"2")), b"", 0), "the same name came before"),
        ((GOOD + b"x" * 512, b"", 0), "something follows the end"),
    ],
)
def test_what_tar_must_not_write(
    copies: Copies, tmp_path: Path, output: tuple[bytes, bytes, int], line: str
) -> None:
    (tmp_path / "f").write_text("old")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/f").write_text("old")
    copies.remote.tar = output
    with pytest.raises(PycrictlError, match=line):
        copies.copy_from(tmp_path / "f", tmp_path / "out")
    pieces = ends.pack_from(copies.method, os.fsencode(tmp_path / "f"), PLAIN, copies.watch)
    passed: list[bytes] = []
    with pytest.raises(PycrictlError, match=line):
        passed.extend(map(bytes, pieces))
    assert END_OF_ARCHIVE not in passed
    assert (tmp_path / "out/f").read_text() == "old"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["f", "f", "out"]


def test_complaints_of_a_tar_that_went_on(copies: Copies, tmp_path: Path) -> None:
    complaints = (
        b"tar: ./f: file changed as we read it\n",
        b"tar: ./gone: File removed before we read it\n",
    )
    copies.remote.tar = (GOOD, b"".join(complaints), 1)
    copies.copy_from("/etc/f", tmp_path / "new")
    assert (tmp_path / "new").read_text() == "new"
    (skipped,) = copies.skipped
    assert (skipped.path, skipped.rule) == (b"./gone", "tar")
    copies.remote.tar = (GOOD, b"x" * 10_000_000 + b"\n", 2)
    with pytest.raises(CopyError) as info:
        copies.copy_from("/etc/f", tmp_path / "newer")
    assert len(info.value.message) < 400


def test_a_success_that_is_none(copies: Copies, tmp_path: Path) -> None:
    with (tmp_path / "f").open("wb") as large:
        large.truncate(4 << 30)
    (tmp_path / "out").mkdir()
    copies.remote.stops_reading = True
    with pytest.raises(CopyError, match="ended before it had read everything"):
        copies.copy_to(tmp_path / "f", tmp_path / "out")
    copies.remote.tar = (b"", b"tar: No space left on device", 1)
    with pytest.raises(CopyError, match="no space left on device"):
        copies.copy_to(tmp_path / "f", tmp_path / "out")
    assert copies.bytes < 1 << 30


def test_tar_does_not_begin_before_what_is_to_end_it(copies: Copies, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("content")
    copies.remote.delay_s = 0.3
    copies.copy_from(tmp_path / "f", tmp_path / "new")
    assert (tmp_path / "new").read_text() == "content"
    begun = {command[:2] for command in copies.remote.begun}
    assert ("xargs", "-0") in begun
    assert ("tar", "-c") not in begun


# What ends a tar that nobody reads, by the programs that containers have

PROGRAMS = ("xargs", "find", "grep", "sleep", "start-stop-daemon", "pkill")


@pytest.mark.parametrize("missing", ["pkill", "start-stop-daemon"])
def test_what_bears_the_mark_ends(tmp_path: Path, missing: str) -> None:
    """By the programs of Debian; those of BusyBox are seen on the node."""
    (tmp_path / "bin").mkdir()
    for name in PROGRAMS:
        if name != missing:
            program = shutil.which(name, path="/usr/bin:/usr/sbin")
            if program is None:
                pytest.skip(f"there is no {name} here")
            (tmp_path / "bin" / name).symlink_to(program)
    (tmp_path / "f").write_bytes(bytes(1_000_000))
    marks = ("/.//.//./././/.", "/.//.//././././.")
    tars = [
        subprocess.Popen(
            ["tar", "-c", "-f", "-", "-C", f"{tmp_path}{mark}", "f"], stdout=subprocess.PIPE
        )
        for mark in marks
    ]
    try:
        with subprocess.Popen(
            [tmp_path / "bin/xargs", *watchdog(marks[0])[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": str(tmp_path / "bin")},
        ) as dog:
            time.sleep(0.3)
            assert [tar.poll() for tar in tars] == [None, None]
            assert dog.stdin is not None
            dog.stdin.close()
            wait_until(lambda: tars[0].poll() is not None)
        assert [tar.poll() for tar in tars] == [-signal.SIGKILL, None]
    finally:
        for tar in tars:
            tar.kill()
            tar.communicate()
