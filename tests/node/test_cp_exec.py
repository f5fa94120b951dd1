"""What is special about ``cp --method exec`` on the real node; see ``test_cp`` for the rest."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import tarfile
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


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL, "refused"])
def test_tar_is_ended_with_a_copy_and_what_is_left_is_named(
    containers: Containers, folder: Path, how: signal.Signals | str
) -> None:
    cp = containers("exec")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for number in range(COUNT):
            member = tarfile.TarInfo(f"top/{number}")
            member.size = 10_000
            tar.addfile(member, io.BytesIO(bytes(member.size)))
        tar.addfile(tarfile.TarInfo("top/../f"))
    (cp.root / "tmp/dst").mkdir()
    with cp.start("-", "C:/tmp/dst", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        if isinstance(how, str):
            _, stderr = process.communicate(buffer.getvalue(), timeout=WAIT_S)
        else:
            process.stdin.write(buffer.getvalue()[: COUNT * 5_000])
            process.stdin.flush()
            wait_until((cp.root / "tmp/dst/top").exists)
            process.send_signal(how)
            _, stderr = process.communicate(timeout=WAIT_S)
    assert settled(lambda: cp.processes() == {}), cp.processes()
    if how is not signal.SIGKILL:
        assert process.returncode == (1 if how == "refused" else 128 + signal.SIGINT)
        assert b"the copy is incomplete" in stderr
        assert b'what had arrived was left in "/tmp/dst/top"' in stderr
    left = contents(cp.root / "tmp/dst")
    time.sleep(1)
    assert contents(cp.root / "tmp/dst") == left


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
