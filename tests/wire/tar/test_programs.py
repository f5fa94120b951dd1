"""Archives of other programs, and other programs on archives of ours."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pycrictl.wire.tar.reader import Entry, EntryType
from tests.copy.trees import listing
from tests.wire.archives import NS, content_of, packed

DATA = Path(__file__).parents[1] / "data"
MTIME_NS = 1_700_000_000_123_456_789
LONG = b"n" * 255
DEEP = b"/".join([b"p" * 60] * 4)
FILES = {
    b"f": b"hello",
    b"\xff\xfe bytes": b"odd",
    LONG: b"long",
    DEEP + b"/deep": b"deep",
}


def make_tree(top: Path) -> None:
    """Names and kinds that every tar knows, in ``top``/d."""
    folder = top / "d"
    (folder / "sub").mkdir(parents=True)
    (folder / os.fsdecode(DEEP)).mkdir(parents=True)
    for name, content in FILES.items():
        (folder / os.fsdecode(name)).write_bytes(content)
    (folder / "hard").hardlink_to(folder / "f")
    (folder / "link").symlink_to("f")
    for path in (*folder.rglob("*"), folder):
        os.utime(path, ns=(MTIME_NS, MTIME_NS), follow_symlinks=False)


def check_tree(archive: bytes, *, exact_times: bool = True) -> None:
    """What is read is the tree of ``make_tree``."""
    found = {entry.name: (entry, data) for entry, data in content_of(archive, 10_240)}
    directories = {b"d", b"d/sub", *(b"d/" + DEEP[:end] for end in (60, 121, 182, 243))}
    files = {
        b"d/\xff\xfe bytes": b"odd",
        b"d/" + LONG: b"long",
        b"d/" + DEEP + b"/deep": b"deep",
    }
    assert set(found) == {*directories, *files, b"d/f", b"d/hard", b"d/link"}
    for name, content in files.items():
        assert found[name][0].kind is EntryType.FILE
        assert found[name][1] == content
    assert all(found[name][0].kind is EntryType.DIRECTORY for name in directories)
    assert found[b"d/link"][0].kind is EntryType.SYMLINK
    assert found[b"d/link"][0].link == b"f"
    linked = sorted(
        (found[name][0].kind.value, found[name][0].link, found[name][1])
        for name in (b"d/f", b"d/hard")
    )
    assert linked[0] == ("file", b"", b"hello")
    assert linked[1][0] == "hard link"
    assert linked[1][1] in (b"d/f", b"d/hard")
    wanted = MTIME_NS if exact_times else MTIME_NS // NS * NS
    assert {entry.mtime_ns for entry, _ in found.values()} == {wanted}


@pytest.mark.parametrize(
    ("command", "exact_times"),
    [
        (("tar", "--format=posix"), True),
        (("tar", "--format=gnu"), False),
        (("busybox", "tar"), False),
    ],
    ids=["posix", "gnu", "busybox"],
)
def test_programs_are_read(tmp_path: Path, command: tuple[str, ...], exact_times: bool) -> None:
    make_tree(tmp_path)
    words = [*command, "-C", str(tmp_path), "-cf", "-", "d"]
    check_tree(subprocess.check_output(words), exact_times=exact_times)


@pytest.mark.parametrize("name", ["bsdtar-pax.tar", "bsdtar-gnutar.tar"])
def test_bsdtar_is_read(name: str) -> None:
    check_tree((DATA / name).read_bytes(), exact_times="pax" in name)


@pytest.mark.parametrize("old_format", ["v7", "oldgnu", "ustar"])
def test_old_formats_of_gnu_tar_are_read(tmp_path: Path, old_format: str) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_bytes(b"hello")
    words = ["tar", f"--format={old_format}", "-C", str(tmp_path), "-cf", "-", "d"]
    found = {entry.name: data for entry, data in content_of(subprocess.check_output(words))}
    assert found == {b"d": b"", b"d/f": b"hello"}


def written_tree(*, busybox: bool) -> bytes:
    """The tree of ``make_tree``, as this program writes it."""
    folders = [b"d", b"d/sub", *(b"d/" + DEEP[:end] for end in (60, 121, 182, 243))]
    members = [(Entry(name, EntryType.DIRECTORY, 0, 0o755, MTIME_NS), b"") for name in folders]
    for name, content in FILES.items():
        members.append(
            (Entry(b"d/" + name, EntryType.FILE, len(content), 0o644, MTIME_NS), content)
        )
    members.append((Entry(b"d/hard", EntryType.HARDLINK, 0, 0o644, MTIME_NS, link=b"d/f"), b""))
    members.append((Entry(b"d/link", EntryType.SYMLINK, 0, 0o777, MTIME_NS, link=b"f"), b""))
    # What a directory holds follows it at once, but a hard link follows its file.
    members.sort(key=lambda member: member[0].name.replace(b"d/hard", b"d/g"))
    return packed(*members, busybox=busybox)


@pytest.mark.parametrize("busybox", [False, True], ids=["gnu", "busybox"])
def test_programs_read_what_is_written(tmp_path: Path, busybox: bool) -> None:
    made, read = tmp_path / "made", tmp_path / "read"
    made.mkdir()
    read.mkdir()
    make_tree(made)
    for command in (["tar"], ["busybox", "tar"])[: 1 + busybox]:
        data = written_tree(busybox=busybox)
        subprocess.run([*command, "-C", read, "-xpf", "-"], input=data, check=True)
        wanted, found = (listing(top / "d") for top in (made, read))
        if command == ["tar"]:
            assert found == wanted
        # BusyBox keeps the times of files only, in whole seconds.
        assert found.keys() == wanted.keys()
        assert all(
            (found[name][0], found[name][-1]) == (row[0], row[-1]) for name, row in wanted.items()
        )
        assert int(str(found["f"][1])) // NS == MTIME_NS // NS
        shutil.rmtree(read / "d")


def test_large_numbers_are_read_by_gnu_tar() -> None:
    entry = Entry(b"f", EntryType.DIRECTORY, 0, 0o755, -5 * NS, 3_000_000, 4_000_000)
    words = ["tar", "--numeric-owner", "--utc", "-tvf", "-"]
    listed = subprocess.run(words, input=packed((entry, b"")), check=True, capture_output=True)
    assert b"3000000/4000000" in listed.stdout
    assert b"1969-12-31 23:59" in listed.stdout
