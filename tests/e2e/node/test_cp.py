"""``pycrictl cp`` as users run it, with containers of the real containerd, by every method."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pycrictl.base.errors import CopyError
from pycrictl.streams.wire.tar.header import END_OF_ARCHIVE
from tests.copy.trees import check_wildcards, contents, listing, stages_in
from tests.waiting import WAIT_S, wait_until

from .copying import METHODS, Cp, Start, make_tree, plain, whole_seconds
from .lab import MIB


def tarred(tree: Path, name: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.add(tree, name)
    return buffer.getvalue()


def opened(archive: bytes) -> tarfile.TarFile:
    return tarfile.open(fileobj=io.BytesIO(archive))


def test_a_tree_there_and_back(cp: Cp, folder: Path) -> None:
    make_tree(folder / "tree")
    told = cp.ok(*cp.keep, folder / "tree", "C:/root")
    assert re.fullmatch(r"copied 9 files, 4 directories, 2 links \(4\.0 MiB\) in [0-9.]+ s\n", told)
    cp.ok("-a", "C:/root/tree", folder / "back")
    expected = listing(folder / "tree", ids=True)
    there, back = (listing(path, ids=True) for path in (cp.root / "root/tree", folder / "back"))
    if cp.method == "rpc":
        assert back == there
        expected, there, back = map(plain, (expected, there, back))
    assert there == expected == back
    assert stages_in(folder, cp.root / "root") == []


def test_wildcards_and_several_sources(cp: Cp, folder: Path) -> None:
    def out(path: str, local: Path) -> None:
        status, _, stderr = cp(f"C:{path}", local)
        if status:
            raise CopyError(stderr)

    inside = cp.root / "root"
    check_wildcards(out, inside, "/root", folder / "here")
    told = cp.ok(folder / "here/into/a.log", folder / "here/into/d", "C:root")
    assert told.startswith("copied 2 files, 1 directory (8 B) in ")
    assert [(inside / name).read_text() for name in ("a.log", "d/x")] == ["a.log", "d/x"]
    cp.ok("C:/root/a.log", "C:root/d", folder / "here")
    assert contents(folder / "here").items() >= {"a.log": "a.log", "d/x": "d/x"}.items()


# What exists before, source, destination, and what is new or changed afterwards, or None if the
# copy is refused. The directory "src" has the files "f" and "sub/g".
RULES = [
    ("", "src/f", "new", {"new": "f"}),
    ("", "src/f", "nowhere/new", None),
    ("old", "src/f", "old/", None),
    ("dir/ dir/f", "src/f", "dir/", {"dir/f": "f"}),
    ("old", "src", "old", None),
    ("dir/src/ dir/src/f dir/src/old", "src", "dir", {"dir/src/f": "f", "dir/src/sub/g": "g"}),
    ("", "src/.", "new", {"new/f": "f", "new/sub/g": "g"}),
    ("dir/ dir/sub", "src/.", "dir", None),
    ("dir/ link=dir", "src/f", "link", {"dir/f": "f"}),
    ("old link=old", "src/f", "link", {"link": "f"}),
]


def prepare(top: Path, before: str) -> None:
    top.mkdir()
    for name in before.split():
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
    ends = [(folder, str(folder)), (cp.root / "tmp", "C:/tmp")]
    (source_top, from_), (target_top, to) = ends if direction == "to" else ends[::-1]
    (source_top / "a/src/sub").mkdir(parents=True)
    (source_top / "a/src/f").write_text("f")
    (source_top / "a/src/sub/g").write_text("g")
    for number, (before, source, destination, expected) in enumerate(RULES):
        top = target_top / f"case{number}"
        prepare(top, before)
        old = contents(top)
        words = f"{from_}/a/{source}", f"{to}/{top.name}/{destination}"
        if expected is not None:
            cp.ok(*words)
            assert contents(top) == old | expected, (before, source, destination)
            continue
        assert cp.refused(*words), (before, source, destination)
        assert contents(top) == old
    assert stages_in(folder, cp.root / "tmp") == []


def test_archives_on_the_standard_streams(cp: Cp, folder: Path) -> None:
    make_tree(folder / "tree")
    archive = tarred(folder / "tree", "tree")
    assert cp.ok(*cp.keep, "-", "C:/root", stdin=archive).startswith("copied 9 files")
    code, stdout, stderr = cp("C:/root/tree", "-")
    assert (code, stderr) == (0, "")
    with opened(stdout) as tar:
        members = {member.name: member for member in tar.getmembers()}
        deep = tar.extractfile("tree/sub/deeper/big")
        assert deep is not None
        assert deep.read() == (folder / "tree/sub/deeper/big").read_bytes()
    assert len(members) == 15
    assert members["tree/sub/hard"].islnk() != members["tree/f"].islnk()
    assert members["tree/link"].linkname == "sub/deeper"
    form = {"rpc": plain, "node": whole_seconds}[cp.method]  # tarfile rounds
    there, expected = (listing(top / "tree", ids=True) for top in (cp.root / "root", folder))
    assert form(there) == form(expected)
    # Input that is cut off or not an archive changes nothing.
    before = contents(cp.root / "root")
    for data in (archive[:-9000], archive[:5000], b"", b"x" * 5000):
        assert cp.refused("-", "C:/root", stdin=data)
    assert "no directory" in cp.refused("-", "C:/nowhere", stdin=archive)
    assert "not a directory" in cp.refused("C:/root/tree/f/", "-").lower()
    assert cp.ok("-", "C:/root", stdin=END_OF_ARCHIVE).startswith("copied 0 files in ")
    assert contents(cp.root / "root") == before
    assert stages_in(cp.root / "root") == []


def test_links_and_what_is_left_out(cp: Cp, folder: Path) -> None:
    tree = cp.root / "root/tree"
    tree.mkdir()
    (tree / "f").write_text("1")
    (tree / "out").symlink_to("/etc/passwd")
    os.mkfifo(tree / "pipe")
    (cp.root / "root/way").symlink_to("tree")
    (cp.root / "root/away").symlink_to("/etc")
    code, _, stderr = cp("C:/root/tree", folder)
    assert code == 1
    assert [path.name for path in (folder / "tree").iterdir()] == ["f"]
    assert stderr.count("warning") == 2
    assert "tree/pipe: it is a named pipe" in stderr
    assert 'tree/out: it points outside the copy, to "/etc/passwd"' in stderr
    assert stderr.splitlines()[-1].endswith("left out 2")
    # A link is copied as a link only if it stays inside; -L copies its target.
    assert "it points outside" in cp("C:/root/away", folder / "x").stderr
    assert not (folder / "x").exists()
    cp.ok("C:/root/way", folder / "link")
    assert (folder / "link").readlink() == Path("tree")
    if cp.method != "node":
        assert "cannot follow" in cp.refused("-L", "C:/root/way", folder)
        return
    cp("-L", "-q", "C:/root/way", folder)
    assert (folder / "way/f").read_text() == "1"
    code, stdout, _ = cp("-L", "C:/root/way", "-")
    with opened(stdout) as tar:
        assert sorted(tar.getnames()) == ["way", "way/f", "way/out"]
    assert code == 1


def test_file_systems_that_are_not_written(cp: Cp, start_container: Start, folder: Path) -> None:
    volume, single = folder / "volume", folder / "single"
    volume.mkdir()
    (folder / "f").write_text("new")
    single.write_text("a longer old text")
    inode = single.stat().st_ino
    closed = start_container(
        cp.method,
        mounts=[(volume, "/volume"), (volume, "/closed:ro"), (single, "/etc/single")],
        read_only=True,
        user=1234,
    )
    for path in ("/f", "/closed/f"):
        told = closed(folder / "f", f"C:{path}").stderr
        assert "read-only file system" in told.lower()
        assert "copy to a writable volume" in told
    closed.ok(folder / "f", "C:/volume/f")
    assert (volume / "f").read_text() == "new"
    assert (volume / "f").stat().st_uid == 1234
    assert "is a mount point" in closed.refused(folder / "f", "C:/etc/single")
    assert (single.read_text(), single.stat().st_ino) == ("a longer old text", inode)
    for path in ("/proc/sys/kernel", "/sys/kernel"):
        assert "never copied" in cp.refused(folder / "f", f"C:{path}")
    assert "never copied" in cp.refused("C:/proc/1/environ", folder / "x")
    assert "is a device, pipe or socket" in cp.refused(folder / "f", "C:/dev/null")
    hosts = (cp.root / "etc/hosts").read_bytes()
    (folder / "etc").mkdir()
    (folder / "etc/hosts").write_text("new")
    for source, target in ((folder / "f", "C:/etc/hosts"), (f"{folder}/etc/.", "C:/etc")):
        assert "is a mount point" in cp.refused(source, target)
        assert (cp.root / "etc/hosts").read_bytes() == hosts
    assert stages_in(folder, cp.root / "etc") == []


def test_file_systems_of_the_kernel(start_container: Start, folder: Path) -> None:
    """However a path leads to them, nothing on them is written or read."""
    kernel = Path("/proc/sys/kernel")
    cp = start_container("node", mounts=[(kernel, "/volume")])
    pattern = (kernel / "core_pattern").read_text()
    for name, target in (
        ("proc-link", "/proc/sys/kernel"),
        ("file-link", "/proc/sys/kernel/core_pattern"),
        ("self-link", "/proc/self/root"),
        ("one-link", "/proc/1/root/root"),
    ):
        (cp.root / name).symlink_to(target)
    source = folder / "core_pattern"
    source.write_text("|/evil")
    for path in ("/proc/sys/kernel", "/proc-link", "/sys", "/sys/kernel", "/dev/pts", "/proc"):
        assert " is on " in cp.refused(source, f"C:{path}"), path
    for path in ("/proc-link/", "/proc/sys/kernel/core_pattern", "/one-link", "/self-link/tmp"):
        assert cp.refused(source, f"C:{path}")
    for path in ("/proc/1/mem", "/proc/1/environ", "/proc/kmsg", "/proc", "/sys/kernel"):
        assert " is on " in cp.refused(f"C:{path}", folder / "out"), path
    for path in ("/dev/null", "/dev/zero"):
        assert "never copied" in cp.refused(f"C:{path}", folder / "out")
    for number, path in enumerate(
        ("proc/sys/kernel/core_pattern", "sys/power/state", "volume/core_pattern", "dev/pts/x")
    ):
        tree = folder / str(number)
        for name in (path, "tmp/new"):
            (tree / name).parent.mkdir(parents=True)
            (tree / name).write_text("|/evil")
        assert " is on " in cp.refused(f"{tree}/.", "C:/"), path
    assert list((cp.root / "tmp").iterdir()) == []
    assert not (folder / "out").exists()
    # A link to a file is replaced, and not written through.
    cp.ok(source, "C:/file-link")
    assert (cp.root / "file-link").read_text() == "|/evil"
    assert cp("C:/", folder / "all").status == 1
    assert (folder / "all/bin/busybox").exists()
    for path in ("proc", "sys", "dev/null", "one-link"):
        assert not os.path.lexists(folder / "all" / path), path
    assert (kernel / "core_pattern").read_text() == pattern
    assert stages_in(cp.root / "tmp", cp.root / "etc") == []


@pytest.mark.parametrize("cp", ["node"], indirect=True)
def test_links_of_the_container_stay_in_it(cp: Cp, folder: Path) -> None:
    outside, new = folder / "host/file", folder / "f"
    outside.parent.mkdir()
    outside.write_text("of the node")
    new.write_text("new")
    (cp.root / "root/abs").symlink_to(outside.parent)
    (cp.root / "root/rel").symlink_to(f"../../../../../../..{outside.parent}")
    for link in ("abs", "rel"):
        for words in ((f"C:/root/{link}/file",), ("-L", f"C:/root/{link}")):
            assert "no such file" in cp.refused(*words, folder / "out")
        assert "no directory" in cp.refused(new, f"C:/root/{link}/file")
    inside = cp.root / str(outside).lstrip("/")
    inside.parent.mkdir(parents=True)
    cp.ok(new, "C:/root/rel/file")
    assert (inside.read_text(), outside.read_text()) == ("new", "of the node")
    cp.ok("C:/root/abs/file", folder / "out")
    assert (folder / "out").read_text() == "new"


@pytest.mark.parametrize("cp", ["rpc"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_copy_that_is_ended_leaves_nothing(cp: Cp, folder: Path, number: signal.Signals) -> None:
    """``kills`` does the same with SIGKILL."""
    ways: list[tuple[Path, Path, tuple[Path | str, Path | str]]] = [
        (folder / "d", cp.root / "tmp", (folder / "d", "C:/tmp/new")),
        (cp.root / "root/d", folder, ("C:/root/d", folder / "new")),
    ]
    for source, top, words in ways:
        source.mkdir()
        (source / "big").touch()
        os.truncate(source / "big", 512 * MIB)
        with cp.start(*words) as process:
            wait_until(partial(stages_in, top))
            process.send_signal(number)
            _, stderr = process.communicate(timeout=WAIT_S)
        assert process.returncode == 128 + number, stderr
        assert stderr == (b"pycrictl: interrupted\n" if number == signal.SIGINT else b"")
        assert not (top / "new").exists()
        wait_until(lambda top=top: not stages_in(top))  # type: ignore[misc]  # mypy knows no defaults of lambdas


def test_a_disk_that_is_full(cp: Cp, start_container: Start, folder: Path) -> None:
    small, big = folder / "small", folder / "big"
    small.mkdir()
    big.write_bytes(os.urandom(8 * MIB + 10_000))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", small], check=True)
    try:
        full = start_container(cp.method, mounts=[(small, "/small")])
        (full.root / "root/big").write_bytes(big.read_bytes())
        (small / "old").write_text("old")
        assert "no space left on device" in full.refused(big, "C:/small/old")
        assert contents(small) == {"old": "old"}
        assert "no space left on device" in full.refused("C:/root/big", small / "old")
        assert contents(small) == {"old": "old"}
        assert stages_in(small) == []
    finally:
        subprocess.run(["umount", "--lazy", small], check=True)


def test_what_a_killed_copy_has_left(containers: Callable[[str], Cp], folder: Path) -> None:
    """It is removed by the next copy from the same container to any destination."""
    cp = containers("node")
    archive = tarred(Path("/bin/busybox"), "busybox")
    with cp.start("-", "C:/tmp", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(archive[:MIB])
        process.stdin.flush()
        wait_until(lambda: stages_in(cp.root / "tmp") != [])
        cp.ok("C:/bin/busybox", folder)  # running copies are left alone
        assert stages_in(cp.root / "tmp") != []
        process.kill()
        process.communicate()
    assert stages_in(cp.root / "tmp") != []
    cp.ok("C:/bin/busybox", folder)
    assert stages_in(cp.root / "tmp") == []
