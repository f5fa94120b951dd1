"""Special files stay, whatever is copied over them, and nothing of a killed copy does."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.copy.trees import stages_in
from tests.proxy.program import Program
from tests.waiting import wait_until

from .copying import (
    Cp,
)
from .lab import MIB, Lab

Containers = Callable[[str], Cp]
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
                cp.refused("C:/root/null", folder / "d"),
            ):
                assert 'd/null" is a device, pipe or socket' in told
            if cp.method == "exec":  # below the destination, tar replaces what is there
                continue
            assert 'd/null" is a device' in cp.refused(f"{tree}/.", "C:/root/d")
            told = cp.refused(f"{pipes}/.", "C:/root/d/masked")
            assert 'd/masked/pipe" is a device, pipe or socket' in told
            assert (by_node.root / "root/d/masked/pipe").is_fifo()
            # What a link in a tree leads to is not touched: only the link is replaced.
            cp.ok(f"{tree}/.", "C:/root/d/masked")
            assert not (by_node.root / "root/d/masked/null").is_symlink()
    proxy.log_path.unlink()
    assert kinds(folder) == before
    assert kinds(by_node.root / "root") == before


@pytest.mark.parametrize("how", ["copy", "sweep"])
def test_what_a_killed_copy_has_left(containers: Containers, folder: Path, how: str) -> None:
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
