"""``kubectl container-cp`` from a slow workstation to containers of a real kubelet."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cluster.agent.copies.conftest import Plugin, spooled
from tests.cluster.agent.copies.relay import Relay
from tests.cluster.kubectl.plugin import proxies_of
from tests.copy.trees import stages_in
from tests.e2e.node.lab import MIB
from tests.support.cluster_copies import Container, assert_equal, workstation
from tests.waiting import settled, wait_until

from .agents import Agents
from .cluster import ADDRESS, Cluster
from .cluster import PORT as API_PORT

SIZE_BYTES = int(os.environ.get("COPY_MIB", "256")) * MIB
"""The size of the copies through four cuts, in each direction."""

LINK_BYTES_PER_S = 20_000_000
AWAY_S = 30.0
ASLEEP_S = float(os.environ.get("COPY_ASLEEP_S", "10"))
PATIENCE_S = 600.0


def fill(path: Path) -> None:
    with path.open("wb") as file:
        for _ in range(SIZE_BYTES // MIB):
            file.write(os.urandom(MIB))


class Copying(NamedTuple):
    """A running copy, over a slow link of its own."""

    link: Relay
    plugin: Plugin
    process: subprocess.Popen[bytes]

    @property
    def carriers(self) -> list[int]:
        """The kubectl processes that carry its connections."""
        return proxies_of(self.plugin.runtime)


@contextmanager
def copying(cluster: Cluster, home: Path, *words: str) -> Iterator[Copying]:
    with closing(Relay("", API_PORT)) as link, workstation(cluster, home, port=link.port) as plugin:
        link.bytes_per_s = LINK_BYTES_PER_S
        with plugin.start(*words, "--progress", "plain", cwd=home) as process:
            try:
                yield Copying(link, plugin, process)
            finally:
                process.kill()


# The cuts


def restart_api(cluster: Cluster) -> None:
    cluster.apiserver.terminate()
    cluster.start_apiserver()


def kill(copies: Sequence[Copying]) -> None:
    for copy in copies:
        (carrier,) = copy.carriers
        os.kill(carrier, signal.SIGKILL)


def away() -> None:
    """Remove the node's address for a while: no bytes arrive, and no connection is closed."""
    for action in ("del", "add"):
        subprocess.run(["ip", "address", action, f"{ADDRESS}/32", "dev", "lo"], check=True)
        time.sleep(AWAY_S if action == "del" else 0)


def sleep(copies: Sequence[Copying]) -> None:
    everything = [pid for copy in copies for pid in (copy.process.pid, *copy.carriers)]
    assert len(everything) == 4
    for number, duration_s in ((signal.SIGSTOP, ASLEEP_S), (signal.SIGCONT, 0)):
        for pid in everything:
            os.kill(pid, number)
        time.sleep(duration_s)


@pytest.mark.timeout(1800)
def test_four_cuts(cluster: Cluster, agents: Agents, tmp_path: Path) -> None:
    """Each cut hits two running copies, one in each direction."""
    cluster.run_pod("web", cluster.lab.reference(cluster.image("web:1", 1200, 1)))
    root, here = Container(cluster, "web").root, tmp_path / "there"
    fill(here)
    fill(root / "tmp/back")
    with (
        copying(cluster, tmp_path, str(here), "web:/there") as to,
        copying(cluster, tmp_path / "other", "web:/tmp/back", "back") as back,
    ):
        copies = (to, back)
        cuts: tuple[Callable[[], object], ...] = (
            lambda: restart_api(cluster), lambda: kill(copies), away, lambda: sleep(copies),
        )  # fmt: skip
        for number, cut in enumerate(cuts):

            def is_due(due_bytes: float = SIZE_BYTES * (number + 0.5) / 5) -> bool:
                least_bytes = min(copy.link.passed for copy in copies)
                for copy in copies:  # the one that is ahead must not end before the last cut
                    waits = least_bytes < due_bytes <= copy.link.passed
                    copy.link.bytes_per_s = LINK_BYTES_PER_S // (20 if waits else 1)
                return least_bytes >= due_bytes

            assert settled(is_due, limit_s=PATIENCE_S), [copy.link.passed for copy in copies]
            for copy in copies:
                assert copy.process.poll() is None, (number, copy.process.communicate())
            cut()
        for copy in copies:
            _, stderr = copy.process.communicate(timeout=PATIENCE_S)
            assert copy.process.returncode == 0, stderr
            # Cuts with nothing copied in between count once, and not all break a connection.
            assert b"; retrying" in stderr, stderr
            # Bytes in flight at each cut are sent again.
            assert SIZE_BYTES < copy.link.passed < SIZE_BYTES + 4 * 40 * MIB
    assert_equal(root / "there", here)
    assert_equal(root / "tmp/back", tmp_path / "other/back")
    assert stages_in(tmp_path, root / "tmp") == []
    wait_until(lambda: spooled(agents.folder / "spool") == [])
