"""``kubectl container-cp`` with a real kubectl, an agent as a program, and a real containerd."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.copy.trees import listing, stages_in
from tests.proxy.program import Program as Proxy
from tests.waiting import wait_until
from tools.torture.cluster_kills import Kills

from .copying import make_tree
from .in_cluster import Distroless, InCluster, in_cluster
from .lab import MIB, Lab

AWAY_S = 0.7
"""How long each interruption lasts."""


@pytest.fixture(scope="module")
def world(shared_lab: Lab, run_folder: Path) -> Iterator[InCluster]:
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp", prefix="pct-") as folder,
        in_cluster(shared_lab, run_folder, Path(folder)) as made,
    ):
        made.start_agent()
        yield made
    shared_lab.clean()


@pytest.fixture(scope="module")
def container(world: InCluster) -> Distroless:
    return world.add("web")


@pytest.fixture(autouse=True)
def _nothing_is_left(world: InCluster) -> Iterator[None]:
    yield
    world.link.bytes_per_s = 0
    assert (world.archives, world.proxies) == ([], [])


@pytest.mark.parametrize("server", ["proxy", "runtime"])
def test_trees_both_ways(
    world: InCluster, container: Distroless, proxy: Proxy, tmp_path: Path, server: str
) -> None:
    """The agent needs only the socket of the node's proxy."""
    world.start_agent(endpoint=proxy.endpoint if server == "proxy" else "")
    make_tree(tmp_path / "tree")
    for words in (
        (str(tmp_path / "tree"), f"web:/{server}"),
        ("-a", f"web:/{server}", str(tmp_path / "back")),
    ):
        done = world.plugin(*words)
        assert done.returncode == 0, done.stderr
    there = listing(container.root / server)
    assert {*there} == {*listing(tmp_path / "tree")}
    assert listing(tmp_path / "back") == there
    assert stages_in(container.root) == []
    line = f"copy user=admin pod=default/web container=main direction=to path=/{server}"
    assert line in world.agent.log.read_text()


@pytest.mark.parametrize("way", ["to", "from"])
def test_all_that_breaks_on_the_way(
    world: InCluster, container: Distroless, tmp_path: Path, way: str
) -> None:
    """One copy survives four interruptions, and acknowledged data is not sent again."""
    content = os.urandom(24 * MIB)
    source, target, words = tmp_path / "f", container.root / "cut", (f"{tmp_path}/f", "web:/cut")
    if way == "from":
        source, target = container.root / "large", tmp_path / "cut"
        words = ("web:/large", str(target))
    source.write_bytes(content)
    world.link.bytes_per_s = 16 * MIB
    before = world.link.passed
    process = world.plugin.start(*words)

    def pause(stop: Callable[[], object], go_on: Callable[[], object]) -> None:
        stop()
        time.sleep(AWAY_S)
        go_on()

    def kill_kubectl() -> None:
        (proxy,) = world.proxies
        os.kill(proxy, signal.SIGKILL)

    sleep, wake = (
        partial(process.send_signal, number) for number in (signal.SIGSTOP, signal.SIGCONT)
    )
    breaks: tuple[Callable[[], object], ...] = (
        lambda: world.cluster.api.restart(AWAY_S),
        kill_kubectl,
        lambda: pause(world.link.flows.clear, world.link.flows.set),
        lambda: pause(sleep, wake),
    )
    for number, cut in enumerate(breaks):
        due = before + (4 * number + 2) * MIB
        wait_until(lambda due=due: world.link.passed > due or process.poll() is not None)  # type: ignore[misc]  # mypy knows no defaults of lambdas
        assert process.poll() is None, (number, process.communicate())
        cut()
    _, stderr = process.communicate(timeout=100)
    assert process.returncode == 0, stderr
    assert target.read_bytes() == content
    assert world.link.passed - before < 2 * len(content)
    # Once or twice: a restart and a kill may come at once.
    assert b"the copy was interrupted: " in stderr
    assert stages_in(container.root, tmp_path) == []


def test_a_container_that_dies(world: InCluster, tmp_path: Path) -> None:
    container = world.add("dies")
    (tmp_path / "f").write_bytes(os.urandom(64 * MIB))
    world.link.bytes_per_s = 64 * MIB
    due = world.link.passed + MIB
    process = world.plugin.start(str(tmp_path / "f"), "dies:/f")
    wait_until(lambda: world.link.passed > due)
    os.kill(container.pid, signal.SIGKILL)
    _, stderr = process.communicate(timeout=100)
    assert process.returncode == 1
    assert b"has stopped" in stderr, stderr
    assert "has stopped" in world.agent.log.read_text()
    assert stages_in(container.root) == []
    done = world.plugin(str(tmp_path / "f"), "dies:/f")
    assert b'container "main" of pod "default/dies" is not running' in done.stderr


def test_nothing_is_half_done_when_somebody_is_killed(world: InCluster, proxy: Proxy) -> None:
    """A sample of ``make kills``; other tests kill processes during a copy, too."""
    kills = Kills(world, proxy, seed=1)
    assert kills.run(3, ("client", "agent", "proxy")) == []
    assert sum(tally.completed for tally in kills.tallies.values()) > 0
