"""Reading archives of other programs, and other programs reading ours."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pycrictl.copy.archive.pack import pack
from pycrictl.copy.tree.places import THIS_MACHINE, open_source
from pycrictl.streams.wire.tar.header import Entry, EntryType
from tests.copy.trees import KEEP, Archive, ignore, listing, put_at
from tests.streams.wire.archives import NS, packed

DATA = Path(__file__).parents[1] / "data"
MTIME_NS = 1_700_000_000_123_456_789
FILES = {
    "f": "hello",
    os.fsdecode(b"\xff\xfe bytes"): "odd",
    "n" * 255: "long",
    "/".join(["p" * 60] * 4) + "/deep": "deep",
}

Listing = dict[str, tuple[object, ...]]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Make a tree ``d`` of names and types that every tar supports."""
    folder = tmp_path / "made/d"
    (folder / "sub").mkdir(parents=True)
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    (folder / "hard").hardlink_to(folder / "f")
    (folder / "link").symlink_to("f")
    for path in (*folder.rglob("*"), folder):
        os.utime(path, ns=(MTIME_NS, MTIME_NS), follow_symlinks=False)
    return folder


def in_seconds(listing: Listing) -> Listing:
    return {
        name: (mode, int(str(time)) // NS, rest) for name, (mode, time, rest) in listing.items()
    }


@pytest.mark.parametrize(
    ("command", "form"),
    [
        (("tar", "--format=posix"), dict),
        (("tar", "--format=gnu"), in_seconds),
        pytest.param(("busybox", "tar"), in_seconds, marks=pytest.mark.debian),
        ("bsdtar-pax.tar", dict),
        ("bsdtar-gnutar.tar", in_seconds),
    ],
    ids=["posix", "gnu", "busybox", "bsdtar-pax", "bsdtar-gnu"],
)
def test_programs_are_read(
    tree: Path, tmp_path: Path, command: tuple[str, ...] | str, form: Callable[[Listing], Listing]
) -> None:
    if isinstance(command, str):
        archive = (DATA / command).read_bytes()
    else:
        archive = subprocess.check_output([*command, "-C", tree.parent, "-cf", "-", "d"])
    (tmp_path / "read").mkdir()
    pieces = [archive[start : start + 10_240] for start in range(0, len(archive), 10_240)]
    put_at(tmp_path / "read", Archive(pieces), KEEP)
    assert form(listing(tmp_path / "read/d")) == form(listing(tree))


def test_gnu_tar_reads_what_is_written(tree: Path, tmp_path: Path) -> None:
    with open_source(THIS_MACHINE, os.fsencode(tree)) as source:
        archive = b"".join(map(bytes, pack(source, on_skip=ignore)))
    (tmp_path / "read").mkdir()
    subprocess.run(["tar", "-C", tmp_path / "read", "-xpf", "-"], input=archive, check=True)
    assert listing(tmp_path / "read/d") == listing(tree)


def test_large_numbers_are_read_by_gnu_tar() -> None:
    entry = Entry(b"f", EntryType.DIRECTORY, 0, 0o755, -5 * NS, 3_000_000, 4_000_000)
    words = ["tar", "--numeric-owner", "--utc", "-tvf", "-"]
    listed = subprocess.run(words, input=packed((entry, b"")), check=True, capture_output=True)
    assert b"3000000/4000000" in listed.stdout
    assert b"1969-12-31 23:59" in listed.stdout
