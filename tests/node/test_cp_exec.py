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
from tests.waiting import settled, wait_until

from .copying import (
    WAIT_S,
    Cp,
    Start,
    contents,
    gnu,
)
from .lab import MIB, Lab

Containers = Callable[[str], Cp]
COUNT = 300


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
def test_a_merge_that_is_ended_has_whole_files(
    containers: Containers, folder: Path, number: signal.Signals, later_s: float
) -> None:
    cp = containers("exec")
    top = cp.root / "tmp/dst"
    texts = {"new": "new" * 50_000, "old": "old" * 50_000}
    for place, text in ((folder / "src", "new"), (top, "old")):
        for index in range(COUNT):
            (place / str(index)).mkdir(parents=True)
            (place / str(index) / "f").write_text(texts[text])
    (folder / "src/0/added/deep").mkdir(parents=True)
    (folder / "src/0/added/deep/g").write_text("new")

    def kinds() -> set[str]:
        found = {(top / str(index) / "f").read_text() for index in range(COUNT)}
        return {kind for kind, text in texts.items() if text in found} | found - {*texts.values()}

    def nodes() -> list[int]:
        return [(top / str(index) / "f").stat().st_ino for index in range(COUNT)]

    before = nodes()
    with cp.start(f"{folder}/src/.", "C:/tmp/dst") as process:
        wait_until(lambda: process.poll() is not None or nodes() != before)
        time.sleep(later_s)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=WAIT_S)
    wait_until(lambda: stages_in(top) == [])
    wait_until(lambda: cp.processes() == {})
    assert kinds() <= {"new", "old"}
    if number != signal.SIGKILL:
        # Who is too late is told of the copy.
        is_new = kinds() == {"new"} and (top / "0/added/deep/g").exists()
        assert process.returncode in ((0, 128 + number) if is_new else (128 + number,)), stderr
        assert (b"the copy is incomplete" in stderr) is (process.returncode != 0)


def test_a_merge_compares_everything_and_stops_at_a_failure(
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
    # A file that cannot be replaced comes to light when it is its turn.
    (folder / "src/volume/f").unlink()
    subprocess.run(["chattr", "+i", cp.root / "dst/a"], check=True)
    try:
        line = cp.refused(f"{folder}/src/.", "C:/dst")
    finally:
        subprocess.run(["chattr", "-i", cp.root / "dst/a"], check=True)
    assert line.endswith("operation not permitted; the copy is incomplete")
    assert (cp.root / "dst/a").read_text() == "old"
    assert stages_in(cp.root / "dst") == []
    cp.ok(f"{folder}/src/.", "C:/dst")
    assert (cp.root / "dst/a").read_text() == "new"
    assert (cp.root / "dst/sub/t").read_text() == "new"
    assert stages_in(cp.root / "dst") == []


@pytest.mark.parametrize("direction", ["in", "out", "stdout"])
@pytest.mark.parametrize("has_gnu", [False, True], ids=["busybox", "gnu"])
def test_no_program_outlives_this_one_in_the_container(
    shared_lab: Lab, start_container: Start, folder: Path, has_gnu: bool, direction: str
) -> None:
    cp = start_container("exec", gnu(shared_lab) if has_gnu else None)
    for path in (folder / "big", cp.root / "root/big"):
        with path.open("wb") as file:
            file.truncate(4096 * MIB)
    words = {
        "in": (str(folder / "big"), "C:/tmp/new"),
        "out": ("C:/root/big", str(folder / "new")),
        "stdout": ("C:/root/big", "-"),
    }[direction]
    for number, more_s in ((signal.SIGKILL, 0.0), (signal.SIGKILL, 0.5), (signal.SIGINT, 0.2)):
        with cp.start(*words) as process:
            wait_until(lambda: any(words.startswith("tar ") for words in cp.processes().values()))
            time.sleep(more_s)
            process.send_signal(number)
            process.communicate(timeout=WAIT_S)
        assert settled(lambda: cp.processes() == {}), (number, more_s, cp.processes())
        wait_until(lambda: stages_in(cp.root / "tmp", folder) == [])
        assert not (cp.root / "tmp/new").exists()
        assert not (folder / "new").exists()


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
