"""Copies through a whole proxy, with a pretended container: a process with a root of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pycrictl.errors import CopyError
from pycrictl.proxy.copies.job import LARGE_BYTES, REST_S
from tests.copy.test_on_node import ID
from tests.copy.trees import needs_root, stages_in
from tests.processes import descriptors
from tests.proxy.copier import MIB, Copier, Pretended, spools, stream
from tests.waiting import wait_until

pytestmark = needs_root


def listing(top: Path) -> dict[str, object]:
    return {
        str(path.relative_to(top)): (
            path.readlink()
            if path.is_symlink()
            else (path.stat().st_mode, path.read_bytes() if path.is_file() else None)
        )
        for path in (top, *top.rglob("*"))
    }


def make_tree(top: Path) -> None:
    (top / "sub/empty").mkdir(parents=True)
    (top / "sub/f").write_bytes(os.urandom(3 * MIB + 5))
    (top / "sub/f").chmod(0o640)
    (top / "new\nline \udcff").write_text("odd")
    (top / "sub/hard").hardlink_to(top / "sub/f")
    (top / "link").symlink_to("sub/f")


# What is copied


def test_a_tree_both_ways(copier: Copier, container: Pretended, tmp_path: Path) -> None:
    make_tree(tmp_path / "tree")
    there = copier.into(tmp_path / "tree", "/to")
    assert listing(container.root / "to/tree") == listing(tmp_path / "tree")
    back = copier.out("/to/tree", tmp_path / "back")
    assert listing(tmp_path / "back") == listing(tmp_path / "tree")
    assert there == back
    assert (there.files, there.directories, there.links) == (3, 3, 1)
    assert stages_in(container.root) == []
    wait_until(lambda: copier.proxy.log().count(" copy ") == 2)
    lines = [line for line in copier.proxy.log().splitlines() if " copy " in line]
    assert [line.count("end=done") for line in lines] == [1, 1]
    assert f"container={ID} pod=pod1 path=/to size_bytes=" in lines[0]
    assert "/copy/" not in copier.proxy.log()  # where the token is


def test_large_files_take_little_memory(
    copier: Copier, container: Pretended, tmp_path: Path
) -> None:
    copier.into(tmp_path, "/to/warm")
    copier.out("/to/warm", tmp_path / "warm")
    before = copier.proxy.peak_bytes()
    with (tmp_path / "big").open("wb") as file:
        for _ in range(64):
            file.write(os.urandom(MIB))
        file.truncate(256 * MIB)  # the rest is a hole
    copier.into(tmp_path / "big", "/to/big")
    inside = (container.root / "to/big").stat()
    assert (inside.st_size, inside.st_blocks * 512 < 66 * MIB) == (256 * MIB, True)
    copier.out("/to/big", Path(container.root.parent, "back"))
    back = Path(container.root.parent, "back").stat()
    assert (back.st_size, back.st_blocks * 512 < 66 * MIB) == (256 * MIB, True)
    assert copier.proxy.peak_bytes() - before <= 16 * MIB


# Large files at rest, which are read twice instead of spooled


def at_rest(path: Path) -> bytes:
    """A large file that nobody has written to for a while; its content."""
    data = os.urandom(LARGE_BYTES + 5)
    path.write_bytes(data)
    os.utime(path, (time.time() - REST_S - 1,) * 2)
    return data


def test_only_a_large_file_at_rest_is_not_spooled(
    copier: Copier, container: Pretended, tmp_path: Path
) -> None:
    big = container.root / "to/big"
    data = at_rest(big)
    messages = stream(copier.ask_from("/to/big").url)
    wait_until(lambda: [copy["state"] for copy in copier.copies] == ["copying"])
    assert spools(copier.proxy.pid) == []
    messages.abort()
    summary = copier.out("/to/big", tmp_path / "big")
    assert (summary.files, summary.size_bytes) == (1, len(data))
    assert (tmp_path / "big").read_bytes() == data

    # What is held is the file, not its name.
    def replace(_: int) -> None:
        (container.root / "to/new").write_text("new")
        (container.root / "to/new").rename(big)

    copier.out("/to/big", tmp_path / "again", on_total=replace)
    assert (tmp_path / "again").read_bytes() == data
    copier.wait_until_idle()
    assert not [name for name in descriptors(copier.proxy.pid) if "/to/big" in name]

    for age_s, size in ((0, LARGE_BYTES), (REST_S + 1, LARGE_BYTES - 1)):
        big.write_bytes(bytes(size))
        os.utime(big, (time.time() - age_s,) * 2)
        url = copier.ask_from("/to/big").url
        assert len(spools(copier.proxy.pid)) == 1
        stream(url).abort()
        copier.wait_until_idle()


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(LARGE_BYTES // 2)
        file.write(b"something else")


CHANGES: tuple[tuple[Callable[[Path], None], str], ...] = (
    (overwrite, "another checksum than announced"),
    (lambda path: os.truncate(path, LARGE_BYTES // 2), "the source changed while"),
    (lambda path: os.truncate(path, 2 * LARGE_BYTES), "the source changed while"),
    (os.utime, "another checksum than announced"),
)


def test_a_change_between_the_call_and_the_stream_is_noticed(
    copier: Copier, container: Pretended, tmp_path: Path
) -> None:
    big = container.root / "to/big"
    (tmp_path / "big").write_text("old")
    before = listing(tmp_path)

    def copy(act: Callable[[Path], None]) -> None:
        copier.out("/to/big", tmp_path / "big", on_total=lambda _: act(big))

    for act, why in CHANGES:
        at_rest(big)
        with pytest.raises(CopyError, match=why):
            copy(act)
        assert listing(tmp_path) == before
