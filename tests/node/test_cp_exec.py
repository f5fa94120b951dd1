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


def test_tar_is_ended_with_a_copy_that_is_killed(containers: Containers, folder: Path) -> None:
    cp = containers("exec")
    (folder / "top").mkdir()
    for number in range(300):
        (folder / f"top/{number}").write_bytes(bytes(10_000))
    archive = subprocess.check_output(["tar", "-c", "-C", folder, "top"])
    (cp.root / "tmp/dst").mkdir()
    with cp.start("-", "C:/tmp/dst", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(archive[: len(archive) // 2])
        process.stdin.flush()
        wait_until((cp.root / "tmp/dst/top").exists)
        process.kill()
        process.communicate(timeout=WAIT_S)
    assert settled(lambda: cp.processes() == {}), cp.processes()
    left = contents(cp.root / "tmp/dst")
    time.sleep(1)
    assert contents(cp.root / "tmp/dst") == left


@pytest.mark.parametrize("direction", ["in", "out"])
@pytest.mark.parametrize("has_gnu", [False, True], ids=["busybox", "gnu"])
def test_no_program_outlives_this_one_in_the_container(
    shared_lab: Lab, start_container: Start, folder: Path, has_gnu: bool, direction: str
) -> None:
    cp = start_container("exec", gnu(shared_lab) if has_gnu else None)
    for path in (folder / "big", cp.root / "root/big"):
        with path.open("wb") as file:
            file.truncate(4096 * MIB)
    words = (folder / "big", "C:/tmp/new") if direction == "in" else ("C:/root/big", folder / "new")
    for number, more_s in ((signal.SIGKILL, 0.0), (signal.SIGKILL, 0.5), (signal.SIGINT, 0.2)):
        with cp.start(*words) as process:
            wait_until(lambda: any(words.startswith("tar ") for words in cp.processes().values()))
            time.sleep(more_s)
            process.send_signal(number)
            process.communicate(timeout=WAIT_S)
        assert settled(lambda: cp.processes() == {}), (number, more_s, cp.processes())
        assert not (folder / "new").exists()
    assert stages_in(folder) == []  # each copy has removed what a killed one before it had left


def test_names_of_any_bytes(containers: Containers, folder: Path) -> None:
    cp = containers("exec")
    bad = os.fsdecode(b"\xff\xfe")
    for text in ("first", "second"):
        for name in (bad, f"d{bad}/{bad}", "new\nline", "ok"):
            (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "tree" / name).write_text(text)
        cp.ok(folder / "tree", "C:/tmp")
        assert contents(cp.root / "tmp/tree") == contents(folder / "tree")
    # The runtime passes on no others.
    assert "is not UTF-8" in cp.refused(folder / "tree", f"C:/tmp/tree/d{bad}")
    assert "is not UTF-8" in cp.refused(folder / "tree" / bad, "C:/tmp/")
