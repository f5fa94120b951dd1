"""Archives of other programs, and other programs on archives of ours."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from pycrictl.wire.tar.reader import Entry, EntryType
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


@pytest.mark.parametrize("tar_format", ["posix", "gnu"])
def test_gnu_tar_is_read(tmp_path: Path, tar_format: str) -> None:
    make_tree(tmp_path)
    archive = subprocess.run(
        ["tar", f"--format={tar_format}", "-C", tmp_path, "-cf", "-", "d"],
        check=True,
        capture_output=True,
    ).stdout
    check_tree(archive, exact_times=tar_format == "posix")


def test_busybox_is_read(tmp_path: Path) -> None:
    make_tree(tmp_path)
    command = ["busybox", "tar", "-C", str(tmp_path), "-cf", "-", "d"]
    archive = subprocess.run(command, check=True, capture_output=True).stdout
    check_tree(archive, exact_times=False)


@pytest.mark.parametrize("tar_format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_python_is_read(tmp_path: Path, tar_format: int) -> None:
    make_tree(tmp_path)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format) as archive:
        archive.add(tmp_path / "d", "d")
    found = {entry.name: entry for entry, _ in content_of(buffer.getvalue())}
    assert found[b"d/\xff\xfe bytes"].size_bytes == 3
    assert found[b"d/" + LONG].kind is EntryType.FILE
    assert found[b"d/link"].link == b"f"


@pytest.mark.parametrize("name", ["bsdtar-pax.tar", "bsdtar-gnutar.tar"])
def test_bsdtar_is_read(name: str) -> None:
    check_tree((DATA / name).read_bytes(), exact_times="pax" in name)


@pytest.mark.parametrize("old_format", ["v7", "oldgnu", "ustar"])
def test_old_formats_of_gnu_tar_are_read(tmp_path: Path, old_format: str) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_bytes(b"hello")
    archive = subprocess.run(
        ["tar", f"--format={old_format}", "-C", tmp_path, "-cf", "-", "d"],
        check=True,
        capture_output=True,
    ).stdout
    found = {entry.name: (entry.kind, data) for entry, data in content_of(archive)}
    assert found == {b"d": (EntryType.DIRECTORY, b""), b"d/f": (EntryType.FILE, b"hello")}


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


def listing(top: Path, *, exact_times: bool) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for path in top.rglob("*"):
        status = path.lstat()
        content: object = None
        if path.is_symlink():
            content = path.readlink()
        elif path.is_file():
            content = (status.st_nlink, path.read_bytes())
        time = status.st_mtime_ns if exact_times else status.st_mtime_ns // NS
        found[str(path.relative_to(top))] = (status.st_mode, time, content)
    return found


@pytest.mark.parametrize("busybox", [False, True])
def test_gnu_tar_reads_what_is_written(tmp_path: Path, busybox: bool) -> None:
    made, read = tmp_path / "made", tmp_path / "read"
    made.mkdir()
    read.mkdir()
    make_tree(made)
    result = subprocess.run(
        ["tar", "-C", read, "-xpf", "-"],
        input=written_tree(busybox=busybox),
        check=True,
        capture_output=True,
    )
    assert result.stderr == b""
    assert listing(read, exact_times=True) == listing(made, exact_times=True)


def test_busybox_reads_what_is_written_for_it(tmp_path: Path) -> None:
    made, read = tmp_path / "made", tmp_path / "read"
    made.mkdir()
    read.mkdir()
    make_tree(made)
    subprocess.run(
        ["busybox", "tar", "-C", read, "-xpf", "-"], input=written_tree(busybox=True), check=True
    )
    wanted, found = listing(made, exact_times=False), listing(read, exact_times=False)
    assert {name: (kept[0], kept[2]) for name, kept in found.items()} == {
        name: (kept[0], kept[2]) for name, kept in wanted.items()
    }
    # BusyBox keeps the times of files only.
    assert found["d/f"] == wanted["d/f"]


@pytest.mark.parametrize("busybox", [False, True])
def test_python_reads_what_is_written(busybox: bool) -> None:
    with tarfile.open(fileobj=io.BytesIO(written_tree(busybox=busybox))) as archive:
        members = {os.fsencode(member.name): member for member in archive.getmembers()}
    assert members[b"d/\xff\xfe bytes"].size == 3
    assert members[b"d/" + LONG].isreg()
    assert members[b"d/hard"].islnk()
    assert members[b"d/link"].linkname == "f"
    assert {member.mtime for member in members.values()} == {MTIME_NS / NS}


def test_large_numbers_are_read_by_gnu_tar() -> None:
    entry = Entry(b"f", EntryType.DIRECTORY, 0, 0o755, -5 * NS, 3_000_000, 4_000_000)
    listed = subprocess.run(
        ["tar", "--numeric-owner", "--utc", "-tvf", "-"],
        input=packed((entry, b"")),
        check=True,
        capture_output=True,
        text=False,
    ).stdout
    assert b"3000000/4000000" in listed
    assert b"1969-12-31 23:59" in listed
