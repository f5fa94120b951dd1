"""Agents and clients that are killed at random moments."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


class Agents:
    """One agent after another, each a process.

    Attributes:
        kills: how many were killed.
    """

    def __init__(self, folder: Path, runtime: str, lifetime_s: float) -> None:
        self.kills = 0
        self._command = [
            *(sys.executable, "-m", "tests.agent.copies.small"),
            *(str(folder), runtime, f"lifetime_s={lifetime_s}"),
        ]
        self._process = self._start()

    def kill(self) -> None:
        self.kills += 1
        self._end()
        self._process = self._start()

    def close(self) -> None:
        self._end()

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(self._command, cwd=ROOT, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def agents(folder: Path, runtime: str, lifetime_s: float = 900) -> Iterator[Agents]:
    made = Agents(folder, runtime, lifetime_s)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("way", ["to", "from"])
def test_an_agent_that_is_killed(
    way: str,
    work: Workstation,
    container: Pretended,
    fake: FakeServer,
    folder: Path,
    tmp_path: Path,
    leftovers: Callable[[], list[Path | str]],
) -> None:
    content = os.urandom(32 * MIB)
    (tmp_path / "f").write_bytes(content)
    (container.root / "to/f").write_bytes(content)
    chance = random.Random(way)
    work.retries = 1000
    with agents(folder, fake.path) as running:
        for _ in range(3):
            before = work.relay.passed
            limit = before + chance.randrange(len(content))

            def kill(limit: int = limit) -> None:
                wait_until(lambda: work.relay.passed > limit)
                running.kill()

            thread = threading.Thread(target=kill)
            thread.start()
            name = f"g{running.kills}"
            error = ""
            try:
                if way == "to":
                    work.into(tmp_path / "f", f"/to/{name}")
                else:
                    work.out("/to/f", tmp_path / name)
            except CopyError as exc:
                error = exc.message
            thread.join()
            found = (container.root / "to" if way == "to" else tmp_path) / name
            if error:
                assert "restarted while the copy was put into its place" in error
            assert (error and not found.exists()) or found.read_bytes() == content
            # It begins anew with the next agent, once.
            assert work.relay.passed - before < 2 * len(content) + 3 * MIB
        assert running.kills == 3
    wait_until(lambda: stages_in(container.root) == [])
    assert leftovers() == []


@pytest.mark.parametrize("way", ["to", "from"])
def test_clients_that_are_killed_leave_nothing_for_long(
    way: str,
    work: Workstation,
    container: Pretended,
    fake: FakeServer,
    folder: Path,
    tmp_path: Path,
) -> None:
    (tmp_path / "f").write_bytes(os.urandom(16 * MIB))
    (container.root / "to/f").write_bytes(os.urandom(16 * MIB))
    before = os.listdir(container.root / "to")  # noqa: PTH208 (names alone)
    local = str(tmp_path / ("f" if way == "to" else "out"))
    chance = random.Random(way)
    with agents(folder, fake.path, lifetime_s=2):
        for _ in range(3):
            client = subprocess.Popen(
                [sys.executable, "-c", CLIENT, str(folder), way, local],
                cwd=ROOT,
                stderr=subprocess.DEVNULL,
            )
            limit = work.relay.passed + chance.randrange(17 * MIB)
            wait_until(
                lambda limit=limit, client=client: (  # type: ignore[misc]  # mypy knows no defaults of lambdas
                    work.relay.passed > limit or client.poll() is not None
                )
            )
            client.send_signal(signal.SIGKILL)
            client.wait()
        wait_until(lambda: spooled(folder / "store") == [])
        wait_until(lambda: stages_in(container.root) == [])
        sweep_root(THIS_MACHINE)  # as the next copy does
        assert stages_in(tmp_path) == []
    made = {"f"} if way == "to" else set()
    assert set(os.listdir(container.root / "to")) - made == set(before) - made  # noqa: PTH208 (names alone)
    # What the clients have kept is removed by a later one.
    state = folder / "state/pycrictl/copies"
    for kept in state.iterdir():
        os.utime(kept, (1, 1))
    work.method()
    assert list(state.iterdir()) == []
