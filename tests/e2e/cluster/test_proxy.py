"""The proxy between a real kubelet and a real containerd."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.node.lab import MIB
from tests.proxy.program import Program
from tests.support.cluster_pulls import pull_slowly, run
from tests.waiting import wait_until

from .cluster import NODE, Cluster

EVERY_S = 2.0


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[Program]:
    """A proxy as both of the kubelet's endpoints, which reports pulls as Events."""
    folder = cluster.folder / "px"
    folder.mkdir(exist_ok=True)
    flags = ("--events", str(cluster.kubeconfig("kubelet")), "--max-parallel-image-pulls", "2")
    with Program(folder, cluster.lab.node.endpoint, *flags) as program:
        cluster.restart_kubelet(program.endpoint)
        yield program
        cluster.remove_pods()
        cluster.restart_kubelet(cluster.lab.node.endpoint)


class Watched:
    """The node as seen by a user and by the API server, over time."""

    def __init__(self, cluster: Cluster) -> None:
        self.execs: list[tuple[int, str, float]] = []
        self.readiness: list[str] = []
        self._cluster = cluster

    def poll(self) -> None:
        began_at = time.monotonic()
        done = self._cluster.kubectl("exec", "shell", "--", "echo", "alive")
        took_s = time.monotonic() - began_at
        self.execs.append((done.returncode, done.stdout + done.stderr, took_s))
        path = '{.status.conditions[?(@.type=="Ready")].status}'
        answer = self._cluster.kubectl("get", "node", NODE, "-o", f"jsonpath={path}")
        self.readiness.append(answer.stdout)


@contextmanager
def watched(cluster: Cluster) -> Iterator[Watched]:
    """Run a command in a pod and get the node every two seconds, while the block runs."""
    watched, over = Watched(cluster), threading.Event()

    def run() -> None:
        while not over.wait(EVERY_S):
            watched.poll()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield watched
    finally:
        over.set()
        thread.join()


def start_shell(cluster: Cluster) -> None:
    cluster.run_pod("shell", cluster.lab.reference(cluster.image("shell:1", 900, 1)))
    wait_until(lambda: cluster.phase("shell") == "Running")


def wait_for_successor(proxy: Program, count: int) -> None:
    wait_until(lambda: len(proxy.successors) == count, log=proxy.log_path)


def test_a_reload_while_a_pull_is_under_way(cluster: Cluster, proxy: Program) -> None:
    start_shell(cluster)
    sent_before = cluster.lab.registry.sent_bytes
    pull_slowly(cluster, "slow", 910, seconds=45)
    with watched(cluster) as seen:
        for count in (1, 2):
            time.sleep(8)
            os.kill(proxy.main_pid, signal.SIGHUP)
            wait_for_successor(proxy, count)
            time.sleep(8)
        wait_until(lambda: cluster.phase("slow") == "Running")
    assert [rc for rc, _, _ in seen.execs if rc] == []
    assert set(seen.readiness) == {"True"}
    assert len(seen.execs) >= 8
    sent = cluster.lab.registry.sent_bytes - sent_before
    assert sent < 46 * MIB  # the pull did not start over


def test_events_of_a_pull(cluster: Cluster, proxy: Program) -> None:
    reference = pull_slowly(cluster, "slow2", 920, seconds=25)

    def described() -> list[str]:
        lines = cluster.kubectl.good("describe", "pod", "slow2").splitlines()
        return [line for line in lines if "PullProgress" in line]

    wait_until(lambda: any(" % (" in line and "ETA" in line for line in described()))
    wait_until(lambda: cluster.phase("slow2") == "Running")
    wait_until(lambda: f"Image {reference} was pulled in" in "".join(described()))
    assert len(described()) == 1


def test_names_by_the_kubelets_credential(cluster: Cluster) -> None:
    # pycrictl ignores the command line of a kubelet outside the machine's mount namespace.
    place = Path("/var/lib/kubelet/kubeconfig")
    assert place.parent.is_mount(), "this is not the enclosure's"
    place.write_bytes(cluster.kubeconfig("kubelet").read_bytes())
    reference = pull_slowly(cluster, "slow3", 930, seconds=60)
    start_shell(cluster)  # another pod, with an image of its own
    # On a busy machine the API server may exceed its time limit of a second.
    said = f'default/slow3 is waiting: image "{reference}" is being pulled, '
    kubelet = "the kubelet says ContainerCreating"

    def is_said() -> bool:
        answer = run(cluster, "why", "default/slow3")
        return answer.startswith(said) and kubelet in answer

    wait_until(is_said)
    watch = ("image-pull-progress", "--progress", "plain")
    shown = f"{reference} for default/slow3 "
    wait_until(lambda: shown in run(cluster, *watch, seconds=6))
    cluster.lab.registry.limit(None)
    wait_until(lambda: cluster.phase("slow3") == "Running")
    assert run(cluster, "why", "default/slow3").startswith("default/slow3 ")
