"""What is special about ``cp --method exec`` on the real node; see ``test_cp`` for the rest."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.copy.trees import stages_in
from tests.waiting import wait_until

from .copying import (
    WAIT_S,
    Cp,
    Start,
    contents,
)
from .lab import MIB

Containers = Callable[[str], Cp]
COUNT = 15


@pytest.mark.parametrize(
    ("number", "later_s"),
    [
        (signal.SIGINT, 0.0),
        (signal.SIGINT, 0.05),
        (signal.SIGTERM, 0.0),
        (signal.SIGKILL, 0.0),
        (signal.SIGKILL, 0.05),
    ],
)
def test_a_merge_that_is_ended_is_whole_or_undone(
    containers: Containers, folder: Path, number: signal.Signals, later_s: float
) -> None:
    cp = containers("exec")
    top = cp.root / "tmp/dst"
    for place, text in ((folder / "src", "new"), (top, "old")):
        for index in range(COUNT):
            (place / str(index)).mkdir(parents=True)
            (place / str(index) / "f").write_text(text)
    (folder / "src/0/added/deep").mkdir(parents=True)
    (folder / "src/0/added/deep/g").write_text("new")

    def texts() -> list[str]:
        return [(top / str(index) / "f").read_text() for index in range(COUNT)]

    def has_begun() -> bool:
        return process.poll() is not None or "new" in texts()

    with cp.start(f"{folder}/src/.", "C:/tmp/dst") as process:
        wait_until(has_begun)
        time.sleep(later_s)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=WAIT_S)
    wait_until(lambda: stages_in(top) == [])
    is_new = "new" in texts()
    assert texts() == ["new" if is_new else "old"] * COUNT
    assert (top / "0/added/deep/g").exists() is is_new
    if number != signal.SIGKILL:
        # Who is too late is told of the copy.
        assert process.returncode == (0 if is_new else 128 + number), stderr


def test_a_merge_changes_nothing_when_a_part_of_it_cannot(
    start_container: Start, folder: Path
) -> None:
    (folder / "volume").mkdir()
    cp = start_container("exec", mounts=[(folder / "volume", "/dst/volume")])
    for name in ("a", "z", "volume/f", "sub/t"):
        (folder / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "src" / name).write_text("new")
    (cp.root / "dst/sub").mkdir()
    (cp.root / "dst/a").write_text("old")
    before = contents(cp.root / "dst")
    line = cp.refused(f"{folder}/src/.", "C:/dst")
    assert 'mounted at "/dst/volume"' in line
    assert contents(cp.root / "dst") == before
    # A file that cannot be replaced comes to light when everything else has been moved.
    (folder / "src/volume/f").unlink()
    subprocess.run(["chattr", "+i", cp.root / "dst/a"], check=True)
    try:
        assert "operation not permitted" in cp.refused(f"{folder}/src/.", "C:/dst")
    finally:
        subprocess.run(["chattr", "-i", cp.root / "dst/a"], check=True)
    assert contents(cp.root / "dst") == before
    cp.ok(f"{folder}/src/.", "C:/dst")
    assert (cp.root / "dst/sub/t").read_text() == "new"
    assert stages_in(cp.root / "dst") == []


def test_names_of_any_bytes(containers: Containers, folder: Path) -> None:
    cp = containers("exec")
    bad = os.fsdecode(b"\xff\xfe")
    for text in ("first", "second"):
        for name in (bad, f"d{bad}/{bad}", "new\nline", "ok"):
            (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "tree" / name).write_text(text)
        cp.ok(folder / "tree", "C:/tmp")
        cp.ok(folder / "tree" / bad, "C:/tmp/")
        assert contents(cp.root / "tmp/tree") == contents(folder / "tree")
        assert (cp.root / "tmp" / bad).read_text() == text
    line = cp.refused(folder / "tree", f"C:/tmp/tree/d{bad}")
    assert "is not UTF-8" in line
    assert stages_in(cp.root / "tmp") == []


def test_a_file_that_does_not_fit_in_place(start_container: Start, folder: Path) -> None:
    (folder / "small").mkdir()
    (folder / "big").write_bytes(os.urandom(3 * MIB))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", folder / "small"], check=True)
    try:
        old = os.urandom(MIB)
        (folder / "small/f").write_bytes(old)
        cp = start_container("exec", mounts=[(folder / "small/f", "/etc/single")])
        line = cp.refused("--in-place", folder / "big", "C:/etc/single")
        assert "no space left on device" in line
        assert (folder / "small/f").read_bytes() == old
        assert stages_in(cp.root / "etc") == []
    finally:
        subprocess.run(["umount", "--lazy", folder / "small"], check=True)
