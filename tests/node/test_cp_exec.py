"""What is special about ``cp --method exec`` on the real node; see ``test_cp`` for the rest."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.copy.trees import stages_in
from tests.waiting import settled, wait_until

from .copying import WAIT_S, Cp, Start, gnu
from .lab import MIB, Lab

Containers = Callable[[str], Cp]


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
