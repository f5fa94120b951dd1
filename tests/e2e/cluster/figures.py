"""What proxy and agents cost a node: ``enclosed.sh python -m tests.e2e.cluster.figures BIN``.

Run it on an otherwise idle machine; each line shows the load.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.programs import cpu_clock
from tests.processes import resident_bytes
from tests.support.cluster_agents import agent_pod, applied_from, plugin_beside
from tests.waiting import wait_until

from .agents import BASE
from .cluster import Cluster
from .shipped import METRICS, Node, agent_pid, node_of

MIB: Final = 1 << 20
PODS: Final = 30
PODS_S: Final = float(os.environ.get("FIGURES_S", "120"))
IDLE_S: Final = 60.0
PULLS_S: Final = 30.0


def main() -> None:
    with Cluster(Path(sys.argv[1])) as cluster, node_of(cluster, is_proxied=True) as node:
        say(f"{node.run('version').stdout.split()}, load {os.getloadavg()[0]:.1f}")
        _with_pods(node)
        cluster.remove_pods()
        _with_an_agent(node)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def cpu_s(pid: int) -> float:
    return time.clock_gettime(cpu_clock(pid))


def share(pid: int, seconds: float, whole: Callable[[], float] = float) -> str:
    """Measure a process over some time; with ``whole``, which counts calls, also per call."""
    began, before, count = time.monotonic(), cpu_s(pid), whole()
    time.sleep(seconds)
    used, took = cpu_s(pid) - before, time.monotonic() - began
    text = f"{used / took:.2%} of a core, {resident_bytes(pid) / MIB:.1f} MiB"
    if calls := whole() - count:
        text += f", {calls:.0f} calls, {used / calls * 1e3:.2f} ms of CPU a call"
    return f"{text} ({took:.0f} s, load {os.getloadavg()[0]:.1f})"


def calls() -> float:
    with urllib.request.urlopen(f"http://{METRICS}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return sum(float(one) for one in re.findall(r"(?m)^pycrictl_calls_total\{.*\} (\S+)$", text))


def _with_pods(node: Node) -> None:
    """Measure the proxy under a kubelet with many pods, and without a kubelet."""
    assert node.proxy is not None
    cluster, pid = node.cluster, node.proxy.pid
    say(f"proxy, idle at first: {share(pid, 1)}")
    reference = cluster.lab.reference(cluster.image("many:1", 1300, 1))
    for number in range(PODS):
        cluster.run_pod(f"p{number}", reference)
    for number in range(PODS):
        wait_until(partial(_is_running, cluster, f"p{number}"))
    time.sleep(10)
    say(f"proxy, kubelet with {PODS} pods: {share(pid, PODS_S, calls)}")
    cluster.kubelet.terminate()
    time.sleep(5)
    say(f"proxy, no kubelet: {share(pid, IDLE_S)}")
    cluster.kubelet.start(cluster.is_ready)


def _is_running(cluster: Cluster, name: str) -> bool:
    return cluster.phase(name) == "Running"


def _with_an_agent(node: Node) -> None:
    """Measure the shipped agent without requests, and with twelve pulls and two watchers."""
    cluster = node.cluster
    with applied_from(cluster, BASE, partial(agent_pod, cluster)):
        pid = agent_pid(cluster)
        time.sleep(30)
        say(f"agent, nobody asks: {share(pid, IDLE_S)}")
        cluster.lab.registry.limit(12 * 10 * MIB / 120)
        for number in range(12):
            image = cluster.image(f"f{number}:1", 1400 + number, 6, 3)
            cluster.run_pod(f"f{number}", cluster.lab.reference(image))
        with tempfile.TemporaryDirectory() as folder:
            plugin = plugin_beside(cluster, Path(folder))
            wait_until(lambda: "Pulling" in cluster.kubectl.good("get", "imagepulls"))
            watchers = [plugin.start("-A", "--progress", "json") for _ in range(2)]
            time.sleep(5)
            say(f"agent, twelve pulls, two watchers: {share(pid, PULLS_S)}")
            for one in watchers:
                one.terminate()
                one.communicate()
        cluster.lab.registry.limit(None)
        cluster.kubectl.good("delete", "pods", "--all", "--grace-period=1")


main()
