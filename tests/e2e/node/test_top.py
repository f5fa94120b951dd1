"""``top`` in a real terminal, on a real containerd."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from pycrictl.proxy import admin
from tests.proxy.program import Program as Proxy
from tests.support.journals import write_journal
from tests.waiting import settled, wait_until

from .kubelet import Pod
from .lab import MIB, Lab
from .programs import Session

pytestmark = pytest.mark.node


@pytest.fixture
def crashed(lab: Lab, pod: Pod, container: str) -> str:
    """A pod ``sessions``: its container ``main`` runs, and ``bad`` has exited with 3."""
    return lab.container(pod, ["sh", "-c", "echo no database; exit 3"], name="bad")


def top(command: list[str], *more: str) -> Session:
    session = Session([*command, "top", "--no-kube", "--interval", "0.5", *more])
    session.wait_for(b"crash")
    return session


def test_ctrl_c_ends_it_and_leaves_the_terminal_as_it_was(command: list[str], crashed: str) -> None:
    session = Session(["setsid", "--ctty", "--wait", *command, "top", "--no-kube"])
    session.wait_for(b"! default/sessions")
    session.type(b"\x03")
    assert session.end() == 0


def test_a_runtime_that_hangs_and_goes_on(lab: Lab, command: list[str], crashed: str) -> None:
    session = top([*command, "-t", "1s"])
    os.kill(lab.node.pid, signal.SIGSTOP)
    try:
        session.wait_for(b"last seen at")
    finally:
        os.kill(lab.node.pid, signal.SIGCONT)
    session.wait_for(b"1 running\r\r\n\x1b[K\x1b[31m! default")  # no line in between
    session.process.send_signal(signal.SIGINT)
    assert session.end() == 0


@pytest.fixture
def troubled(
    lab: Lab, start: Callable[..., Proxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[str]]:
    """A node with a limit of one pull and a pod of each trouble; yields the command of ``top``."""
    write_journal(lab, tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    proxy = start("--max-parallel-image-pulls", "1", age_s=600)
    kubelet = proxy.kubelet
    pods = {
        name: kubelet.run_pod(kubelet.pod_config(name, log_directory=str(lab.folder / "logs")))
        for name in ("loop", "oom", "well", "missing", "slow", "queued")
    }
    crash = ("sh", "-c", "echo connecting; echo no database; exit 3")
    for attempt in range(2):
        lab.container(pods["loop"], crash, attempt=attempt, log_path="loop.log")
    lab.container(pods["well"], log_path="well.log")
    wait_until(lambda: len(kubelet.running_containers()) == 1)
    run_out_of_memory(lab, pods["oom"])
    kubelet.start_pull(f"{lab.registry.host}/shop/none:1", pods["missing"]).exception(60)
    layers = [lab.layout.random_layers([4 * MIB], seed=seed) for seed in (880, 881)]
    images = [lab.push(lab.layout.image(f"top{n}:1", one)) for n, one in enumerate(layers)]
    lab.registry.limit(MIB // 16)
    pulls = [kubelet.start_pull(images[0], pods["slow"])]
    wait_until(lab.node.store.ingests)
    pulls.append(kubelet.start_pull(images[1], pods["queued"]))
    program = [sys.executable, "-m", "pycrictl", "-t", "20s", "-r", proxy.endpoint, "top"]
    program += ["--no-kube", "--admin-socket", f"unix://{proxy.admin_path}"]
    wait_until(lambda: admin.ask(str(proxy.admin_path), "status", timeout_s=30)["waiting"])
    yield program
    lab.registry.limit(None)
    for pull in pulls:
        pull.exception(100)


def run_out_of_memory(lab: Lab, pod: Pod) -> None:
    """Retry until containerd reports an OOM kill, which it sometimes misses on a busy machine."""
    kubelet = lab.node.kubelet
    for _ in range(20):
        made = lab.container(pod, ("tail", "/dev/zero"), attempt=0, memory_bytes=8 * MIB)
        status = partial(kubelet.ask, "ContainerStatus", container_id=made)
        if settled(lambda: status().status.reason == "OOMKilled", limit_s=3):  # noqa: B023
            return
        kubelet.remove_container(made)
    raise AssertionError("containerd never noticed")


SICK_FIRST = (
    rb"! default/loop +main +crashing, 1 restart",
    rb"! default/missing +no such image   \S*shop/none:1$",
    rb"! default/oom +main +out of memory",
    rb"  default/slow +pulling",
    rb"  default/queued +waiting   queued, 1st",
    rb"  default/well +main +running",
)


def test_every_trouble(troubled: list[str]) -> None:
    once = subprocess.run([*troubled, "--once"], capture_output=True).stdout.splitlines()
    rows = [*sorted(once[2:5]), *once[5:]]
    for wanted, line in zip(SICK_FIRST, rows, strict=True):
        assert re.match(wanted, line), line
    session = Session(troubled)
    session.resize(40, 10)
    session.wait_for(b"default/")
    session.process.send_signal(signal.SIGINT)
    assert session.end() == 0
