"""``logs`` of containers on a real containerd, run as a user runs it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pycrictl._proto import cri_pb2
from tests.waiting import wait_until

from .forked import Program
from .lab import Lab

LINES = 10_000
BOTH = f"i=0; while [ $i -lt {LINES} ]; do echo out $i; echo err $i >&2; i=$((i+1)); done"
SLOW = "i=0; until [ -e /stop ]; do echo line $i; i=$((i+1)); sleep 0.05; done; printf end"

Begin = Callable[..., str]


@pytest.fixture
def begin(lab: Lab, tmp_path: Path) -> Begin:
    """A function that starts a container of the pod ``shop`` with a log in ``tmp_path``."""
    pod = lab.node.kubelet.run_pod(lab.node.kubelet.pod_config("shop", log_directory=str(tmp_path)))

    def start(script: str, name: str = "main", log: str = "0.log") -> str:
        return lab.container(pod, ["sh", "-c", script], name=name, log_path=log)

    return start


def follow(command: list[str], *words: str) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*command, "logs", "-f", *words], text=True, **pipes)  # type: ignore[call-overload,no-any-return]  # pipes


def test_no_line_is_lost_or_torn(begin: Begin, crictl: Program) -> None:
    shown = crictl.run("logs", "--follow", begin(BOTH)[:12])
    assert shown.status == 0
    assert shown.stdout.decode().splitlines() == [f"out {number}" for number in range(LINES)]
    assert shown.stderr.splitlines() == [f"err {number}" for number in range(LINES)]


def test_a_long_line_and_bytes_of_all_values(
    lab: Lab, begin: Begin, crictl: Program, tmp_path: Path
) -> None:
    container = begin("head -c 100000 /dev/zero | tr '\\0' x; echo; printf '\\377\\000\\033[1m'")
    wait_until(lambda: lab.node.kubelet.state(container) == cri_pb2.CONTAINER_EXITED)
    assert b" stdout P " in (tmp_path / "0.log").read_bytes()
    shown = crictl.run("logs", "main")
    assert shown.stdout.rstrip(b"\n") == b"x" * 100_000 + b"\n\xff\0\x1b[1m"


def test_follow_over_rotations_to_the_end(
    lab: Lab, begin: Begin, command: list[str], tmp_path: Path
) -> None:
    container, log = begin(SLOW), tmp_path / "0.log"
    with follow(command, "main") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        shown = [process.stdout.readline()]
        for number in range(5):
            log.rename(tmp_path / f"0.log.{number}")
            time.sleep(0.1)  # the runtime keeps writing to the old file
            lab.node.kubelet.ask("ReopenContainerLog", container_id=container)
            # The follower must notice each rotation before the next one.
            wait_until(lambda: log.read_bytes().count(b"\n") > 1)
            newer = log.read_text().split()[4]
            while shown[-1] != f"line {newer}\n":
                shown.append(process.stdout.readline())
                assert shown[-1]
        lab.node.kubelet.run(container, "touch", "/stop")
        rest = process.stdout.read()
        assert process.stderr.read() == ""
    assert process.returncode == 0
    *lines, last = ("".join(shown) + rest).splitlines()
    assert (lines, last) == ([f"line {number}" for number in range(len(lines))], "end")
