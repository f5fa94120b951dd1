"""``pycrictl cp`` as users meet it, with containers of the real containerd, by every method."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from pycrictl.wire.tar.writer import END_OF_ARCHIVE
from tests.copy.hostile import HOSTILE
from tests.copy.trees import listing, stages_in
from tests.waiting import wait_until

from .copying import BY_STREAM, METHODS, WAIT_S, Cp, Start, contents, plain, whole_seconds
from .lab import MIB
from .test_copy_node import make_tree


def test_a_tree_there_and_back(cp: Cp, folder: Path) -> None:
    make_tree(folder / "tree")
    told = cp.ok(*cp.keep, folder / "tree", "C:/root")
    assert re.fullmatch(r"copied 9 files, 4 directories, 2 links \(3\.0 MiB\) in [0-9.]+ s\n", told)
    cp.ok("-a", "C:/root/tree", folder / "back")
    expected = listing(folder / "tree", ids=True)
    there, back = (listing(path, ids=True) for path in (cp.root / "root/tree", folder / "back"))
    if cp.method == "exec":
        expected, there, back = map(whole_seconds, (expected, there, back))
    if cp.method == "rpc":
        assert back == there
        expected, there, back = map(plain, (expected, there, back))
    assert there == expected
    assert back == expected
    for name, is_there in (("nothing", Path.is_file), ("empty", Path.is_dir)):
        cp.ok(folder / "tree" / name, f"C:/root/{name}")
        cp.ok(f"C:/root/{name}", folder / name)
        assert is_there(cp.root / "root" / name)
        assert is_there(folder / name)
        assert (cp.root / "root" / name).stat().st_mode == (folder / name).stat().st_mode
    assert stages_in(folder, cp.root / "root") == []


def test_what_is_not_kept_without_archive(cp: Cp, folder: Path) -> None:
    (folder / "f").write_text("1")
    (folder / "f").chmod(0o4751)
    os.utime(folder / "f", (1, 1))
    os.chown(folder / "f", 12, 34)
    for source, target, copied in (
        (folder / "f", "C:/root/f", cp.root / "root/f"),
        ("C:/root/f", folder / "g", folder / "g"),
    ):
        cp.ok(source, target)
        status = copied.stat()
        assert (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (0o751, 0, 0)
        assert status.st_mtime > time.time() - 100


# Set-up below /tmp of the destination, source, destination, and what is there afterwards, or None
# where the copy is refused.
RULES = [
    ((), "src/f", "new", {"new": "f"}),
    ((), "src/f", "nowhere/new", None),
    (("old",), "src/f", "old/", None),
    (("dir/", "dir/f"), "src/f", "dir/", {"dir/f": "f"}),
    (("old",), "src", "old", None),
    (
        ("dir/", "dir/src/", "dir/src/f", "dir/src/old"),
        "src",
        "dir",
        {"dir/src/f": "f", "dir/src/old": "old", "dir/src/sub/g": "g"},
    ),
    ((), "src/.", "new", {"new/f": "f", "new/sub/g": "g"}),
    (("dir/", "dir/sub"), "src/.", "dir", None),
    (("dir/", "link=dir"), "src/f", "link", {"dir/f": "f"}),
    (("old", "link=old"), "src/f", "link", {"link": "f", "old": "old"}),
]


def prepare(top: Path, names: Sequence[str]) -> None:
    for name in names:
        path, _, target = name.partition("=")
        if target:
            (top / path).symlink_to(target)
        elif path.endswith("/"):
            (top / path).mkdir(parents=True)
        else:
            (top / path).write_text("old")


@pytest.mark.parametrize(
    ("cp", "direction"),
    [*((method, "to") for method in METHODS), ("node", "from")],
    indirect=["cp"],
)
def test_the_rules_of_the_destination(cp: Cp, folder: Path, direction: str) -> None:
    inside, outside = cp.root / "tmp", folder
    source_top, target_top = (outside, inside) if direction == "to" else (inside, outside)
    prefixes = (f"{outside}", "C:/tmp") if direction == "to" else ("C:/tmp", f"{outside}")
    (source_top / "a/src/sub").mkdir(parents=True)
    (source_top / "a/src/f").write_text("f")
    (source_top / "a/src/sub/g").write_text("g")
    as_it_was = []
    for number, (before, *_) in enumerate(RULES):
        (target_top / f"case{number}").mkdir()
        prepare(target_top / f"case{number}", before)
        as_it_was.append(contents(target_top / f"case{number}"))

    for number, (before, source, destination, expected) in enumerate(RULES):
        words = f"{prefixes[0]}/a/{source}", f"{prefixes[1]}/case{number}/{destination}"
        old = as_it_was[number]
        if expected is None:
            assert cp.refused(*words), (before, source, destination)
            found = contents(target_top / f"case{number}")
            # By exec, what had arrived stays.
            assert (old.items() <= found.items()) if cp.method == "exec" else (found == old)
        else:
            cp.ok(*words)
            found = contents(target_top / f"case{number}")
            assert expected.items() <= found.items(), (before, source, destination)
            # Nothing else has changed or come.
            assert found.keys() - expected.keys() <= {"dir/src/sub/g", *old}

    assert stages_in(outside, inside) == []


def test_archives_on_the_standard_streams(cp: Cp, folder: Path) -> None:
    make_tree(folder / "tree")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.add(folder / "tree", "tree")
    with cp.start(*cp.keep, "-", "C:/root", stdin=subprocess.PIPE) as process:
        _, told = process.communicate(buffer.getvalue(), timeout=100)
    assert (process.returncode, told[:14]) == (0, b"copied 9 files")
    code, stdout, stderr = cp("C:/root/tree", "-")
    assert (code, stderr) == (0, "")
    with tarfile.open(fileobj=io.BytesIO(stdout)) as tar:
        members = {member.name: member for member in tar.getmembers()}
        deep = tar.extractfile("tree/sub/deeper/big")
        assert deep is not None
        assert deep.read() == (folder / "tree/sub/deeper/big").read_bytes()
    assert len(members) == 15
    assert members["tree/sub/hard"].islnk() != members["tree/f"].islnk()
    assert members["tree/link"].linkname == "sub/deeper"
    expected = listing(folder / "tree", ids=True)
    there = listing(cp.root / "root/tree", ids=True)
    form = plain if cp.method == "rpc" else whole_seconds  # tarfile rounds them
    assert form(there) == form(expected)
    # What is cut off or no archive changes nothing; but by exec, what had arrived stays.
    before = contents(cp.root / "root")
    cut_off = buffer.getvalue()[: 5000 if cp.method == "exec" else -9000]
    for data in (cut_off, buffer.getvalue()[:5000], b"", b"x" * 5000):
        assert cp.refused("-", "C:/root", stdin=data)
    assert "no directory" in cp.refused("-", "C:/nowhere", stdin=buffer.getvalue())
    assert "not a directory" in cp.refused("C:/root/tree/f/", "-")
    assert cp.ok("-", "C:/root", stdin=END_OF_ARCHIVE).startswith("copied 0 files in ")
    assert contents(cp.root / "root") == before
    assert stages_in(cp.root / "root") == []


@pytest.mark.parametrize("cp", ["exec"], indirect=True)
def test_outputs_that_fail(cp: Cp, folder: Path) -> None:
    with Path("/dev/full").open("wb") as full, cp.start("C:/bin", "-", stdout=full) as process:
        told = process.communicate(timeout=100)[1].decode()
    assert process.returncode == 1
    reason = "pycrictl: cannot write to standard output: no space left on device"
    assert told.splitlines()[0] == reason
    with cp.start("C:/bin", "-") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1000)
        process.stdout.close()
        told = process.stderr.read().decode()
    assert process.returncode == 1
    assert told.splitlines()[0] == "pycrictl: cannot write to standard output: broken pipe"


def test_links_and_what_is_left_out(cp: Cp, folder: Path) -> None:
    tree = cp.root / "root/tree"
    tree.mkdir()
    (tree / "f").write_text("1")
    (tree / "out").symlink_to("/etc/passwd")
    os.mkfifo(tree / "pipe")
    (cp.root / "root/way").symlink_to("tree")
    (cp.root / "root/file").symlink_to("tree/f")
    code, _, stderr = cp("C:/root/tree", folder)
    assert code == 1
    assert sorted(path.name for path in (folder / "tree").iterdir()) == ["f"]
    warnings = [line for line in stderr.splitlines() if "warning" in line]
    assert len(warnings) == 2
    assert "tree/pipe: it is a named pipe" in stderr
    assert 'tree/out: it points outside, to "/etc/passwd"' in stderr
    assert stderr.splitlines()[-1].endswith("left out 2")
    said = "pycrictl: left out 2 entries\nhint: without --quiet, each is named\n"
    assert cp("-q", "C:/root/tree", folder) == (1, b"", said)
    # A link is copied as such only where it stays inside; -L copies what it leads to.
    (cp.root / "root/away").symlink_to("/etc")
    assert "it points outside" in cp("C:/root/away", folder / "x")[2]
    assert not (folder / "x").exists()
    cp.ok("C:/root/way", folder / "link")
    assert (folder / "link").readlink() == Path("tree")
    if cp.method == "rpc":
        assert "cannot follow" in cp.refused("-L", "C:/root/way", folder)
        return
    cp("-L", "-q", "C:/root/way", folder)
    cp.ok("-L", "C:/root/file", folder)
    assert (folder / "way/f").read_text() == "1"
    assert (folder / "file").read_text() == "1"
    assert not (folder / "file").is_symlink()
    code, stdout, _ = cp("-L", "C:/root/way", "-")
    with tarfile.open(fileobj=io.BytesIO(stdout)) as tar:
        assert sorted(tar.getnames()) == ["way", "way/f", "way/out"]
    assert code == 1


def test_no_clobber(cp: Cp, folder: Path) -> None:
    (folder / "d/sub").mkdir(parents=True)
    (folder / "d/f").write_text("new")
    (folder / "d/sub/g").write_text("new")
    (cp.root / "root/d").mkdir()
    (cp.root / "root/d/f").write_text("old")
    if cp.method != "node":
        line = cp.refused("--no-clobber", folder / "d", "C:/root")
        assert "cannot leave existing files alone" in line
        return
    told = cp.ok("--no-clobber", folder / "d", "C:/root")
    assert told.startswith("copied 1 file, 2 directories (3 B) in")
    assert ", kept 1 existing" in told
    assert contents(cp.root / "root/d") == {"f": "old", "sub/g": "new"}


BROKEN = {case.refused: case for case in HOSTILE.values() if case.refused and not case.before}
"""An archive for each rule that one breaks without anything being in its way."""


def test_all_rules_hold_by_every_method(cp: Cp, folder: Path) -> None:
    for top in (folder / "src", cp.root / "root/src"):
        (top / "d").mkdir(parents=True)
        for number in range(20):
            (top / f"d/{number}").write_text("1")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(folder / "src", "src")
    (cp.root / "tmp/to").mkdir()
    (folder / "to").mkdir()
    # 22 entries, 20 bytes.
    for option, least, said in (
        ("--max-entries", 22, "allows no more than 21 entries"),
        ("--max-size", 20, "more than 19 bytes would be copied"),
    ):
        for source, destination in (
            (str(folder / "src"), "C:/tmp/to"),
            ("C:/root/src", str(folder / "to")),
            ("-", "C:/tmp/to"),
            ("C:/root/src", "-"),
        ):
            stdin = buffer.getvalue() if source == "-" else b""
            line = cp.refused(option, str(least - 1), source, destination, stdin=stdin)
            assert said in line, (source, destination)
            assert contents(cp.root / "tmp/to") == contents(folder / "to") == {}
            status, _, stderr = cp(option, str(least), source, destination, stdin=stdin)
            assert status == 0, stderr
            for top in (cp.root / "tmp/to", folder / "to"):
                shutil.rmtree(top / "src", ignore_errors=True)
    for rule, case in BROKEN.items() if cp.method != "node" else ():  # see test_copy_hostile
        status, _, stderr = cp("-", "C:/tmp/to", stdin=case.data)
        assert (status, "Traceback" in stderr) == (1, False), (rule, stderr)
        assert contents(cp.root / "tmp/to") == {}, rule
    assert stages_in(cp.root / "tmp") == []


def test_file_systems_that_are_not_written(cp: Cp, start_container: Start, folder: Path) -> None:
    (folder / "volume").mkdir()
    (folder / "f").write_text("new")
    (folder / "single").write_text("a longer old text")
    closed = start_container(
        cp.method,
        mounts=[
            (folder / "volume", "/volume"),
            (folder / "volume", "/closed:ro"),
            (folder / "single", "/etc/single"),
        ],
        read_only=True,
        user=0 if cp.method == "exec" else 1234,
    )
    for path in ("/f", "/closed/f"):
        told = closed(folder / "f", f"C:{path}").stderr
        assert f'cannot copy to "{path}": read-only file system' in told
        assert "copy to a writable volume" in told
    closed.ok(folder / "f", "C:/volume/f")
    assert (folder / "volume/f").read_text() == "new"
    assert (folder / "volume/f").stat().st_uid == (0 if cp.method == "exec" else 1234)
    inode = (folder / "single").stat().st_ino
    in_the_way = "" if cp.method == "exec" else "mounted there"  # tar has its own words
    assert in_the_way in closed.refused(folder / "f", "C:/etc/single")
    assert (folder / "single").read_text() == "a longer old text"
    assert (folder / "single").stat().st_ino == inode
    for path in ("/proc/sys/kernel", "/sys/kernel"):
        assert "never copied" in cp.refused(folder / "f", f"C:{path}")
    assert "never copied" in cp.refused("C:/proc/1/environ", folder / "x")
    assert "is a device, pipe or socket" in cp.refused(folder / "f", "C:/dev/null")
    hosts = (cp.root / "etc/hosts").read_bytes()
    (folder / "etc").mkdir()
    (folder / "etc/hosts").write_text("new")
    for source, target in ((folder / "f", "C:/etc/hosts"), (f"{folder}/etc/.", "C:/etc")):
        assert in_the_way in cp.refused(source, target)
        assert (cp.root / "etc/hosts").read_bytes() == hosts
    assert stages_in(folder, cp.root / "etc") == []


@pytest.mark.parametrize("cp", BY_STREAM, indirect=True)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_copy_that_is_ended_leaves_nothing(cp: Cp, folder: Path, number: signal.Signals) -> None:
    """As ``kills`` does with SIGKILL."""
    for source, top, words in (
        (folder / "d", cp.root / "tmp", (folder / "d", "C:/tmp/new")),
        (cp.root / "root/d", folder, ("C:/root/d", folder / "new")),
    ):
        source.mkdir()
        with (source / "big").open("wb") as file:
            file.truncate((4096 if cp.method == "exec" else 512) * MIB)
        with cp.start(*map(str, words)) as process:
            in_place = cp.method == "exec" and top != folder
            wait_until((top / "new").exists if in_place else partial(stages_in, top))
            process.send_signal(number)
            _, stderr = process.communicate(timeout=WAIT_S)
        assert process.returncode == 128 + number, stderr
        if in_place:
            assert b'the copy is incomplete: what had arrived was left in "/tmp/new"' in stderr
            continue
        assert stderr == (b"pycrictl: interrupted\n" if number == signal.SIGINT else b"")
        assert not (top / "new").exists()
        wait_until(partial(has_no_stage, top))


def test_a_disk_that_is_full(cp: Cp, start_container: Start, folder: Path) -> None:
    (folder / "small").mkdir()
    # Hardly too much: a runtime may lose what tar had to say if that leaves more to be read.
    (folder / "big").write_bytes(os.urandom(8 * MIB + 10_000))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", folder / "small"], check=True)
    try:
        (folder / "small/old").write_text("old")
        full = start_container(cp.method, mounts=[(folder / "small", "/small")])
        (full.root / "root/big").write_bytes((folder / "big").read_bytes())
        assert "no space left on device" in full.refused(folder / "big", "C:/small/old")
        (folder / "small/old").write_text("old")
        assert "no space left on device" in full.refused("C:/root/big", folder / "small/old")
        if cp.method != "exec":
            assert contents(folder / "small") == {"old": "old"}
        assert stages_in(folder / "small") == []
    finally:
        subprocess.run(["umount", "--lazy", folder / "small"], check=True)


@pytest.mark.parametrize("how", ["copy", "sweep"])
def test_what_a_killed_copy_has_left(
    containers: Callable[[str], Cp], folder: Path, how: str
) -> None:
    """The next copy from the same container removes it, wherever it goes, and so does --sweep."""
    cp = containers("node")
    (folder / "src").mkdir()
    (folder / "src/f").write_bytes(bytes(3 * MIB))
    archive = subprocess.run(
        ["tar", "-c", "-C", folder, "src"], check=True, capture_output=True
    ).stdout
    (cp.root / "tmp/dst").mkdir()
    with cp.start("-", "C:/tmp/dst", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(archive[:MIB])
        process.stdin.flush()
        wait_until(lambda: stages_in(cp.root / "tmp/dst") != [])
        cp.ok("C:/bin/busybox", folder)  # the living are left alone
        assert stages_in(cp.root / "tmp/dst") != []
        process.kill()
        process.communicate()
    assert stages_in(cp.root / "tmp/dst") != []
    if how == "copy":
        cp.ok("C:/bin/busybox", folder)
    else:
        ended = cp.program.run("-r", cp.endpoint, "cp", "--sweep")
        assert ended == (0, b"removed what 1 killed copy had left\n", "")
        ended = cp.program.run("-r", cp.endpoint, "cp", "--sweep")
        assert ended == (0, b"removed what 0 killed copies had left\n", "")
    assert stages_in(cp.root / "tmp") == []


def has_no_stage(top: Path) -> bool:
    return not stages_in(top)
