"""Agents and clients that are killed at random moments."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pycrictl.copy.tree.janitor import sweep_root
from pycrictl.copy.tree.places import THIS_MACHINE
from pycrictl.errors import CopyError
from tests.agent.copies.conftest import spooled
from tests.copy.trees import needs_root, stages_in
from tests.fakecri.server import FakeServer
from tests.kubectl.copies.workstation import Workstation
from tests.proxy.copier import MIB, Pretended
from tests.waiting import wait_until

pytestmark = needs_root

ROOT = Path(__file__).parents[3]
CLIENT = """
import os, sys
from pathlib import Path
from tests.kubectl.copies.workstation import Workstation
folder, way, local = sys.argv[1:]
work = Workstation(Path(folder))
work.into(local, "/to") if way == "to" else work.out("/to/f", local)
"""
StartProcess = Callable[[float], None]


@pytest.fixture
def start_process(folder: Path, fake: FakeServer) -> Iterator[StartProcess]:
    """Starts an agent as a process, with the lifetime of its sessions; kills the one before."""
    with ExitStack() as stack:

        def start(lifetime_s: float) -> None:
            stack.close()
            words = ["-m", "tests.agent.copies.small", str(folder), fake.path]
            process = subprocess.Popen(
                [sys.executable, *words, f"lifetime_s={lifetime_s}"],
                cwd=ROOT,
                stdout=subprocess.PIPE,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"

        yield start


@pytest.mark.parametrize("way", ["to", "from"])
def test_an_agent_that_is_killed(
    way: str,
    start_process: StartProcess,
    work: Workstation,
    container: Pretended,
    tmp_path: Path,
    leftovers: Callable[[], list[Path | str]],
) -> None:
    content = os.urandom(32 * MIB)
    (tmp_path / "f").write_bytes(content)
    (container.root / "to/f").write_bytes(content)
    chance = random.Random(way)
    work.retries = 1000
    start_process(900)
    for number in range(3):
        before = work.relay.passed
        limit = before + chance.randrange(len(content))

        def kill(limit: int = limit) -> None:
            wait_until(lambda: work.relay.passed > limit)
            start_process(900)

        thread = threading.Thread(target=kill)
        thread.start()
        error = ""
        try:
            if way == "to":
                work.into(tmp_path / "f", f"/to/g{number}")
            else:
                work.out("/to/f", tmp_path / f"g{number}")
        except CopyError as exc:
            error = exc.message
        thread.join()
        found = (container.root / "to" if way == "to" else tmp_path) / f"g{number}"
        if error:
            assert "restarted while the copy was put into its place" in error
        assert (error and not found.exists()) or found.read_bytes() == content
        # It begins anew with the next agent, once.
        assert work.relay.passed - before < 2 * len(content) + 3 * MIB
    wait_until(lambda: stages_in(container.root) == [])
    assert leftovers() == []


@pytest.mark.parametrize("way", ["to", "from"])
def test_clients_that_are_killed_leave_nothing_for_long(
    way: str,
    start_process: StartProcess,
    work: Workstation,
    container: Pretended,
    folder: Path,
    tmp_path: Path,
) -> None:
    for top in (tmp_path, container.root / "to"):
        (top / "f").write_bytes(os.urandom(16 * MIB))
    local = str(tmp_path / ("f" if way == "to" else "out"))
    chance = random.Random(way)
    start_process(2)
    for _ in range(3):
        words = [sys.executable, "-c", CLIENT, str(folder), way, local]
        with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL) as client:
            limit = work.relay.passed + chance.randrange(17 * MIB)
            while work.relay.passed <= limit and client.poll() is None:
                time.sleep(0.001)
            client.send_signal(signal.SIGKILL)
    wait_until(lambda: spooled(folder / "store") == [])
    wait_until(lambda: stages_in(container.root) == [])
    sweep_root(THIS_MACHINE)  # as the next copy does
    assert stages_in(tmp_path) == []
    assert [one.name for one in (container.root / "to").iterdir()] == ["f"]
    # What the clients have kept is removed by a later one.
    for kept in work.kept:
        os.utime(work.state / "pycrictl/copies" / kept, (1, 1))
    work.method()
    assert work.kept == []
