"""Devices, pipes and sockets stay, whatever is copied over them, by every method and both ways."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.proxy.program import Program

from .copying import (
    Cp,
)
from .lab import Lab

NULL = os.makedev(1, 3)


def make_special(top: Path) -> None:
    (top / "d").mkdir()
    os.mknod(top / "d/null", stat.S_IFCHR | 0o666, NULL)
    os.mkfifo(top / "d/pipe")
    (top / "d/link").symlink_to("null")
    (top / "d/out").symlink_to("/proc/self/fd/1")
    (top / "d/masked").mkdir()
    (top / "d/masked/null").symlink_to("../null")


def kinds(top: Path) -> dict[str, int]:
    return {path.name: path.lstat().st_mode for path in sorted((top / "d").iterdir())}


def test_special_files_stay(
    lab: Lab, start_container: Callable[..., Cp], folder: Path, tmp_path: Path
) -> None:
    by_node = start_container("node")
    (tmp_path / "null").write_text("content")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "null").write_text("content")
    pipes = tmp_path / "pipes"
    pipes.mkdir()
    (pipes / "pipe").write_text("content")
    for top in (folder, by_node.root / "root"):
        make_special(top)
    os.mkfifo(by_node.root / "root/d/masked/pipe")
    (by_node.root / "root/null").write_text("content")
    before = kinds(folder)
    with Program(lab.folder, lab.node.endpoint) as proxy:
        for cp in (
            by_node,
            replace(by_node, method="exec"),
            replace(by_node, method="rpc", endpoint=proxy.endpoint),
        ):
            for name in ("null", "pipe", "link", "out") if cp is by_node else ("null", "link"):
                for told in (
                    cp.refused(tmp_path / "null", f"C:/root/d/{name}"),
                    cp.refused("C:/root/null", folder / "d" / name),
                ):
                    assert f'd/{name}" is a device, pipe or socket' in told
            for told in (
                cp.refused(tmp_path / "null", "C:/root/d"),
                cp.refused(f"{tree}/.", "C:/root/d"),
                cp.refused("C:/root/null", folder / "d"),
            ):
                assert 'd/null" is a device, pipe or socket' in told
            told = cp.refused(f"{pipes}/.", "C:/root/d/masked")
            assert 'd/masked/pipe" is a device, pipe or socket' in told
            assert (by_node.root / "root/d/masked/pipe").is_fifo()
            # What a link in a tree leads to is not touched: only the link is replaced.
            cp.ok(f"{tree}/.", "C:/root/d/masked")
            assert not (by_node.root / "root/d/masked/null").is_symlink()
    proxy.log_path.unlink()
    assert kinds(folder) == before
    assert kinds(by_node.root / "root") == before


@pytest.mark.parametrize("name", ["null", "link"])
def test_no_clobber_leaves_them_alone_too(
    start_container: Callable[..., Cp], folder: Path, name: str
) -> None:
    cp = start_container("node")
    make_special(folder)
    before = kinds(folder)
    cp("--no-clobber", "C:/etc/passwd", folder / "d" / name)
    assert kinds(folder) == before
