"""``top`` in a real terminal, above the real containerd."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.proxy.program import Program as Proxy
from tests.waiting import wait_until

from .forked import Program
from .kubelet import Pod
from .lab import MIB, Lab
from .programs import Session
from .test_pull_truth import write_journal

pytestmark = pytest.mark.node


@pytest.fixture
def crashed(lab: Lab, pod: Pod, container: str) -> str:
    """A pod ``sessions`` whose container ``main`` runs, and ``bad`` has ended with 3."""
    return lab.container(pod, ["sh", "-c", "echo no database; exit 3"], name="bad")


def test_a_screen_of_a_few_lines(command: list[str], crashed: str) -> None:
    session = Session([*command, "top", "--no-kube"])
    session.resize(40, 10)
    session.wait_for(b"crash")
    session.type(b"?")
    session.wait_for(b"show the keys")
    session.type(b"q")
    session.wait_for(b"q quit")
    session.type(b"w")
    session.wait_for(b"Sandbox")
    session.type(b"q")
    session.type(b"l")
    session.wait_for(b"Enter goes back")
    session.type(b"\r")
    session.type(b"q")
    assert session.end() == 0


def test_a_shell_stops_and_continues_it(command: list[str], crashed: str) -> None:
    session = Session(["setsid", "--ctty", "--wait", "bash", "--norc", "-i"])
    session.type(f"before=$(stty -g); {shlex.join([*command, 'top', '--no-kube'])}\r".encode())
    session.wait_for(b"crash")
    session.type(b"\x1a")
    session.wait_for(b"Stopped")
    session.type(b'[ "$before" = "$(stty -g)" ] && echo sa\'\'me\r')
    session.wait_for(b"same")
    session.type(b"fg\r")
    session.wait_for(b"PODS")
    session.wait_for(b"crash")
    session.type(b"?")
    session.wait_for(b"show the keys")
    session.type(b"q")
    session.wait_for(b"q quit")
    session.type(b"q")
    session.wait_for(b"bash-")
    session.type(b"exit $?\r")
    assert session.end() == 0


def test_what_ends_it_leaves_the_terminal_as_it_was(command: list[str], crashed: str) -> None:
    session = Session([*command, "top", "--no-kube"])
    session.wait_for(b"crash")
    session.process.send_signal(signal.SIGTERM)
    assert session.end() == 128 + signal.SIGTERM


@pytest.mark.parametrize("keys", [b"", b"l"])
def test_it_ends_with_its_terminal(command: list[str], crashed: str, keys: bytes) -> None:
    session = Session([*command, "top", "--no-kube", "--interval", "0.5"])
    session.wait_for(b"crash")
    if keys:
        session.type(keys)
        session.wait_for(b"Enter goes back")
    assert session.hang_up() in (0, 128 + signal.SIGHUP)


def test_a_runtime_that_hangs_and_goes_on(lab: Lab, command: list[str], crashed: str) -> None:
    session = Session([*command, "-t", "1s", "top", "--no-kube", "--interval", "0.5"])
    session.wait_for(b"crash")
    os.kill(lab.node.pid, signal.SIGSTOP)
    try:
        session.wait_for(b"last seen at")
    finally:
        os.kill(lab.node.pid, signal.SIGCONT)
    time.sleep(2)
    session.shown = b""
    session.type(b"r")
    session.wait_for(b"PODS")
    session.type(b"q")
    assert session.end() == 0


def test_once_is_what_the_screen_has(crictl: Program, crashed: str) -> None:
    done = crictl.run("top", "--once", "--no-kube")
    assert done.status == 0, done.stderr
    sick = next(line for line in done.stdout.decode().splitlines() if line.startswith("!"))
    assert "exit 3, " in sick

    found = json.loads(crictl.run("top", "-o", "json", "--no-kube").stdout)
    assert found["counts"]["sick"] == 1
    assert any(row["memory"] for row in found["rows"])


@pytest.fixture
def troubled(
    lab: Lab, start: Callable[..., Proxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[str]]:
    """A node with a limit of one pull and a pod of each trouble; how ``top`` of it is started."""
    write_journal(lab, tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    proxy = start("--max-parallel-image-pulls", "1")
    kubelet = proxy.kubelet
    pods = {
        name: kubelet.run_pod(kubelet.pod_config(name, log_directory=str(lab.folder / "logs")))
        for name in ("loop", "oom", "well", "missing", "slow", "queued")
    }
    for name, words, attempts, memory_bytes in (
        ("loop", ("sh", "-c", "echo connecting; echo no database; exit 3"), 2, 0),
        ("oom", ("tail", "/dev/zero"), 1, 8 * MIB),
        ("well", ("sleep", "1000000"), 1, 0),
    ):
        for attempt in range(attempts):
            more = {"attempt": attempt, "log_path": f"{name}.log", "memory_bytes": memory_bytes}
            lab.container(pods[name], words, **more)
    wait_until(lambda: len(kubelet.running_containers()) == 1)
    kubelet.start_pull(f"{lab.throttle.host}/shop/none:1", pods["missing"]).exception(60)
    layers = [lab.layout.random_layers([4 * MIB], seed=seed) for seed in (880, 881)]
    images = [lab.push(lab.layout.image(f"top{n}:1", one)) for n, one in enumerate(layers)]
    lab.throttle.limit(MIB // 16)
    pulls = [kubelet.start_pull(images[0], pods["slow"])]
    wait_until(lab.node.store.ingests)
    pulls.append(kubelet.start_pull(images[1], pods["queued"]))
    program = [sys.executable, "-m", "pycrictl", "-t", "20s", "-r", proxy.endpoint, "top"]
    program += ["--no-kube", "--admin-socket", f"unix://{proxy.admin_path}"]
    once = [*program, "--once"]
    wait_until(lambda: b"in line" in subprocess.run(once, capture_output=True).stdout)
    yield program
    lab.throttle.limit(None)
    for pull in pulls:
        pull.exception(100)


SICK_FIRST = (
    rb"! default/loop +main +crashing, 1 restart",
    rb"! default/missing +no such image   \S*shop/none:1$",
    rb"! default/oom +main +out of memory",
    rb"  default/slow +pulling",
    rb"  default/queued +in line: 1st",
    rb"  default/well +main +running",
)

KEYS = {
    "missing": {
        "w": "registry does not have",
        "l": "there is no container yet",
        "i": "there is no container yet",
        "p": "not waiting for a pull",
    },
    "oom": {"\r": "Sandbox", "e": "this container is not running", "i": '"exitCode": 137'},
    "loop": {"w": "crashes again and again", "l": "connecting"},
    "slow": {"p": "top0", "c": "no queued pull", "w": "default/slow is waiting"},
    "queued": {"w": "Sandbox", "c": "cancel the pull of"},
    "well": {"e": "# ", "s": "sorted by memory", "+": "pull 2 at once instead of 1", "-": "lower"},
}
"""For the row of a pod: what a key makes the screen say."""

BACK = {
    **dict.fromkeys("w\ri", b"q"),
    **dict.fromkeys("c+", b"n"),
    "l": b"\r",
    "p": b"\x03",
    "e": b"exit\r",
}
"""What leads back from what a key has opened; a message needs nothing."""


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
def test_every_trouble_and_every_key(troubled: list[str], lab: Lab, size: tuple[int, int]) -> None:
    once = subprocess.run([*troubled, "--once"], capture_output=True).stdout.splitlines()
    rows = [*sorted(once[2:5]), *once[5:]]
    for wanted, line in zip(SICK_FIRST, rows, strict=True):
        assert re.match(wanted, line), line
    session = Session(["setsid", "--ctty", "--wait", *troubled])  # so that Ctrl-C is a signal
    session.resize(*size)
    session.wait_for(b"default/well")
    for pod, keys in KEYS.items():
        typed = f"/{pod}\r"
        for key, says in keys.items():
            session.type(f"{typed}{key}".encode())  # at once: no key goes elsewhere
            typed = ""
            session.wait_for(says.encode())
            if says.startswith(
                ("there is", "this ", "not waiting", "no queued", "lower", "sorted")
            ):
                continue
            if key == "l":  # the log of what has ended
                session.wait_for(b"Enter goes back")
            session.type(BACK[key])
            session.wait_for(b"nothing was done" if key in "c+" else b"default/" + pod.encode())
        session.type(b"\x1b")
        session.wait_for(b"? help")
    session.type(b"q")
    assert session.end() == 0
