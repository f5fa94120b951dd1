"""``logs`` of containers on a real containerd, run as a user runs it."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from pycrictl._proto import cri_pb2
from tests.node.lab import Lab
from tests.node.test_commands import WAIT_S, program, run, start
from tests.waiting import wait_until

LINES = 10_000
BOTH = f"i=0; while [ $i -lt {LINES} ]; do echo out $i; echo err $i >&2; i=$((i+1)); done"
SLOW = "i=0; until [ -e /stop ]; do echo line $i; i=$((i+1)); sleep 0.05; done; printf end"


def container(lab: Lab, tmp_path: Path, script: str, *, name: str) -> tuple[str, Path]:
    config = lab.node.kubelet.pod_config(f"{name}-pod", log_directory=str(tmp_path))
    pod = lab.node.kubelet.run_pod(config)
    image = lab.push(lab.layout.image(f"{name}:1", [lab.base]))
    lab.node.kubelet.pull(image, pod)
    container_id = lab.node.kubelet.create_container(
        pod, image, ["sh", "-c", script], name=name, log_path="0.log"
    )
    lab.node.kubelet.start_container(container_id)
    return container_id, tmp_path / "0.log"


def test_no_line_is_lost_or_torn(lab: Lab, tmp_path: Path) -> None:
    container_id, _ = container(lab, tmp_path, BOTH, name="both")
    shown = run(lab, "logs", "--follow", container_id[:12])
    assert shown.returncode == 0
    assert shown.stdout.splitlines() == [f"out {number}" for number in range(LINES)]
    assert shown.stderr.splitlines() == [f"err {number}" for number in range(LINES)]


def test_a_long_line_and_bytes_of_all_values(lab: Lab, tmp_path: Path) -> None:
    script = "head -c 100000 /dev/zero | tr '\\0' x; echo; printf '\\377\\000\\033[1m'"
    container_id, log = container(lab, tmp_path, script, name="long")
    kubelet = lab.node.kubelet
    wait_until(lambda: kubelet.state(container_id) == cri_pb2.CONTAINER_EXITED)
    assert b" stdout P " in log.read_bytes()
    command = program(lab, "logs", "long")
    shown = subprocess.run(command, capture_output=True, timeout=WAIT_S, check=True)
    assert shown.stdout.rstrip(b"\n") == b"x" * 100_000 + b"\n\xff\0\x1b[1m"


def test_follow_over_rotations_to_the_end(lab: Lab, tmp_path: Path) -> None:
    container_id, log = container(lab, tmp_path, SLOW, name="slow")
    with start(lab, "logs", "-f", "slow") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        shown = [process.stdout.readline()]
        for number in range(5):
            log.rename(tmp_path / f"0.log.{number}")
            time.sleep(0.1)  # the runtime goes on with the old file
            lab.node.kubelet.ask("ReopenContainerLog", container_id=container_id)
            # Who follows has to know of each rotation before the next one.
            wait_until(lambda: log.read_bytes().count(b"\n") > 1)
            newer = log.read_text().split()[4]
            while shown[-1] != f"line {newer}\n":
                shown.append(process.stdout.readline())
                assert shown[-1]
        lab.node.kubelet.run(container_id, "touch", "/stop")
        rest = process.stdout.read()
        assert process.stderr.read() == ""
    assert process.returncode == 0
    *lines, last = ("".join(shown) + rest).splitlines()
    assert (lines, last) == ([f"line {number}" for number in range(len(lines))], "end")


def test_reopen_tail_and_since(lab: Lab, tmp_path: Path) -> None:
    _, log = container(lab, tmp_path, "echo one; echo two; sleep 1000", name="reopened")
    wait_until(lambda: log.exists() and log.read_bytes().count(b"\n") == 2)
    tail = run(lab, "logs", "--tail", "1", "reopened")
    assert (tail.returncode, tail.stdout) == (0, "two\n")
    assert run(lab, "logs", "--since", "1h", "reopened").stdout == "one\ntwo\n"
    assert run(lab, "logs", "--since", "2000-01-01", "reopened").stdout == "one\ntwo\n"
    assert run(lab, "logs", "--since", "-1h", "reopened").stdout == ""
    stamped = run(lab, "logs", "-t", "reopened").stdout.splitlines()
    assert [line.partition(" ")[2] for line in stamped] == ["one", "two"]
    log.rename(tmp_path / "0.log.1")
    again = run(lab, "logs", "--reopen", "reopened")
    assert (again.returncode, again.stdout) == (0, "")
    assert again.stderr == ""
    assert log.exists()


def test_a_pod_is_followed_over_the_restart_of_a_container(lab: Lab, tmp_path: Path) -> None:
    kubelet = lab.node.kubelet
    pod = kubelet.run_pod(kubelet.pod_config("shop", log_directory=str(tmp_path)))
    image = lab.push(lab.layout.image("shop:1", [lab.base]))
    kubelet.pull(image, pod)

    def begin(name: str, text: str, log: str) -> str:
        script = f"echo {text}; until [ -e /stop ]; do sleep 0.05; done; echo end of {text}"
        container_id = kubelet.create_container(
            pod, image, ["sh", "-c", script], name=name, log_path=log
        )
        kubelet.start_container(container_id)
        return container_id

    first, _ = begin("main", "one", "main-0.log"), begin("side", "two", "side-0.log")
    wait_until(lambda: (tmp_path / "side-0.log").exists() and (tmp_path / "main-0.log").exists())
    process = start(lab, "logs", "-f", "shop")
    assert process.stdout is not None
    assert process.stdout.readline() == "[pod/shop/main] one\n"
    assert process.stdout.readline() == "[pod/shop/side] two\n"
    kubelet.run(first, "touch", "/stop")
    assert process.stdout.readline() == "[pod/shop/main] end of one\n"
    begin("main", "three", "main-1.log")
    assert process.stdout.readline() == "[pod/shop/main] three\n"
    assert run(lab, "stopp", "shop").returncode == 0
    stdout, stderr = process.communicate(timeout=WAIT_S)
    assert (process.returncode, stdout) == (0, "")
    assert stderr == "pycrictl: default/shop/main was started\n"
