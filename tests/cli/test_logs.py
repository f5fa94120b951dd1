"""``logs`` compared with recordings of crictl, and its additions to crictl's."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.base.environ import Environment
from pycrictl.cli.main import main
from tests.captures import Capture
from tests.cli.run import kept_handlers
from tests.fakecri import FakeServer, Status
from tests.support.log_replays import (
    CAPTURES,
    DIFFERENT,
    LOGS,
    container_status,
    is_interrupted,
    line,
    prepare,
)

WAIT_S = 60


class Outcome(NamedTuple):
    code: int
    stdout: bytes
    stderr: bytes


def run(*words: str) -> Outcome:
    stdout, stderr = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    env = Environment(stdin=io.StringIO(), stdout=stdout, stderr=stderr, environ={})
    with kept_handlers():
        code = main(words, env=env)
    return Outcome(code, _content(stdout), _content(stderr))


def _content(stream: io.TextIOWrapper) -> bytes:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue()


@pytest.fixture
def log(fake: FakeServer, tmp_path: Path) -> Path:
    """The log of the only container, ``web``, which has exited."""
    path = tmp_path / "0.log"
    path.touch()
    listed = cri_pb2.ListContainersResponse()
    listed.containers.add(id="0123456789abcdef" * 4).metadata.name = "web"
    fake.offer("ListContainers", listed)
    fake.offer("ContainerStatus", container_status(str(path)))
    return path


OWN = [capture for capture in CAPTURES if capture.name in DIFFERENT or is_interrupted(capture)]


@pytest.mark.parametrize("capture", OWN, ids=lambda capture: capture.name)
def test_what_is_not_replayed_as_crictl(fake: FakeServer, capture: Capture, tmp_path: Path) -> None:
    words = prepare(fake, capture, tmp_path)
    if is_interrupted(capture):
        done = _interrupted(fake, tmp_path, words)
    else:
        done = run("-t", "20s", "-r", fake.endpoint, *words)
    code, stdout, _ = DIFFERENT.get(capture.name, (capture.rc, None, ""))
    assert done.code == code, done.stderr
    expected = (capture.stdout or "").replace("\n--- (no newline at the end)", "").rstrip("\n")
    assert done.stdout.decode().rstrip("\n") == (
        expected if stdout is None else stdout.rstrip("\n")
    )


def _interrupted(fake: FakeServer, folder: Path, words: list[str]) -> Outcome:
    """Follow a log while three lines are appended, then send Ctrl-C."""
    process = start(fake, *words)
    assert process.stdout is not None
    stdout = process.stdout.readline()
    for number in (991, 992, 993):
        append(folder / "1.log", line(f"line {number}"))
        stdout += process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, stderr = process.communicate(timeout=WAIT_S)
    assert stderr == b""
    return Outcome(process.returncode, stdout + rest, stderr)


def start(fake: FakeServer, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "pycrictl", "-r", fake.endpoint, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


@pytest.mark.parametrize(
    ("name", "stdout"),
    [
        ("garbage-mid", "good\ngarbage line here\n2024-01-02T03:04:02.1Z bogus F x\ngood2\n"),
        ("mixed", "mixed cri\njson\n"),
        ("empty", ""),
    ],
)
def test_lines_that_crictl_drops(
    fake: FakeServer, log: Path, name: str, stdout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write_bytes((LOGS / f"{name}.log").read_bytes())
    done = run("-r", fake.endpoint, "logs", "web")
    assert (done.code, done.stdout.decode()) == (0, stdout)
    warning = b"pycrictl: warning: the log has lines in an unknown format, the first is 'garbage"
    assert done.stderr.startswith(warning if name == "garbage-mid" else b"")
    assert done.stderr.count(b"\n") == (name == "garbage-mid")
    monkeypatch.setattr(sys, "argv", ["crictl"])
    dropped = {"garbage-mid": "good\ngood2\n", "mixed": "mixed cri\n"}
    done = run("-c", os.devnull, "-r", fake.endpoint, "logs", "0123456789abcdef" * 4)
    assert (done.code, done.stdout.decode()) == (0, dropped.get(name, ""))
    assert b"in an unknown format" in done.stderr or name == "empty"


def test_both_outputs_in_one_file_and_in_two(fake: FakeServer, log: Path, tmp_path: Path) -> None:
    log.write_text("".join(line(str(n), ("stdout", "stderr")[n % 2]) for n in range(1000)))
    paths = [tmp_path / name for name in ("one", "out", "err")]
    with paths[0].open("wb") as both, paths[1].open("wb") as out, paths[2].open("wb") as err:
        for stdout, stderr in ((both, both), (out, err)):
            command = [sys.executable, "-m", "pycrictl", "-r", fake.endpoint, "logs", "web"]
            subprocess.run(command, stdout=stdout, stderr=stderr, check=True)
    numbers = [[int(number) for number in path.read_text().split()] for path in paths]
    assert numbers == [[*range(1000)], [*range(0, 1000, 2)], [*range(1, 1000, 2)]]


@pytest.fixture
def pods(fake: FakeServer, tmp_path: Path) -> Path:
    """The log folder of the pods ``shop/web`` (main, side) and ``prod/db`` (main)."""
    sandboxes, listed = cri_pb2.ListPodSandboxResponse(), cri_pb2.ListContainersResponse()
    for letter, namespace, name in (("a", "shop", "web"), ("b", "prod", "db")):
        sandbox = sandboxes.items.add(id=letter * 64, labels={"app": name})
        sandbox.metadata.namespace, sandbox.metadata.name = namespace, name
    for letter, owner, name in (("1", "a", "main"), ("2", "a", "side"), ("3", "b", "main")):
        container = listed.containers.add(id=letter * 64, pod_sandbox_id=owner * 64)
        container.metadata.name, container.state = name, cri_pb2.CONTAINER_RUNNING
        (tmp_path / f"{letter}.log").write_text(
            f"2024-01-02T03:04:0{letter}.5Z stdout F from {letter}\n"
            f"2024-01-02T03:04:1{letter}.5Z stderr F late {letter}\n"
        )

    def status(request: Any, context: Any) -> Any:
        letter = request.container_id[0]
        if letter not in "123456789":
            return Status(grpc.StatusCode.NOT_FOUND, "gone")
        return container_status(str(tmp_path / f"{letter}.log"), lives=True)

    fake.offer("ListPodSandbox", sandboxes)
    fake.offer("ListContainers", listed)
    fake.offer("ContainerStatus", status)
    return tmp_path


@pytest.mark.parametrize("word", ["web", "shop/web", "aaa"])
def test_the_logs_of_a_pod(fake: FakeServer, pods: Path, word: str) -> None:
    done = run("-r", fake.endpoint, "logs", word)
    assert done == (
        0, b"[pod/web/main] from 1\n[pod/web/side] from 2\n",
        b"[pod/web/main] late 1\n[pod/web/side] late 2\n",
    )  # fmt: skip


def test_a_pod_of_the_same_name_as_its_container_is_meant(fake: FakeServer, pods: Path) -> None:
    listed = cri_pb2.ListContainersResponse()
    for letter, name in (("1", "web"), ("2", "side")):
        container = listed.containers.add(id=letter * 64, pod_sandbox_id="a" * 64)
        container.metadata.name, container.state = name, cri_pb2.CONTAINER_RUNNING
    fake.offer("ListContainers", listed)
    both = b"[pod/web/web] from 1\n[pod/web/side] from 2\n"
    assert run("-r", fake.endpoint, "logs", "shop/web").stdout == both
    assert run("-r", fake.endpoint, "logs", "shop/web/web").stdout == b"from 1\n"


@pytest.mark.parametrize("line", ["web -c side", "-c side -n shop web"])
def test_a_container_of_a_pod_as_kubectl_names_it(fake: FakeServer, pods: Path, line: str) -> None:
    assert run("-r", fake.endpoint, "logs", *line.split()).stdout == b"from 2\n"
    other = run("-r", fake.endpoint, "logs", "-n", "prod", *line.split())
    assert (other.code, other.stdout) == ((0, b"from 2\n") if "-n" in line else (1, b""))


def test_one_log_that_is_missing_is_a_warning(fake: FakeServer, pods: Path) -> None:
    (pods / "1.log").unlink()
    done = run("-r", fake.endpoint, "logs", "web")
    assert (done.code, done.stdout) == (0, b"[pod/web/side] from 2\n")
    assert b"warning: there is no log" in done.stderr


def test_a_pod_is_followed_until_its_containers_end(fake: FakeServer, pods: Path) -> None:
    process = start(fake, "logs", "-f", "web")
    assert process.stdout is not None
    assert process.stdout.readline() == b"[pod/web/main] from 1\n"
    assert process.stdout.readline() == b"[pod/web/side] from 2\n"
    append(pods / "2.log", "2024-01-02T03:05:02.5Z stdout F more\n")
    assert process.stdout.readline() == b"[pod/web/side] more\n"
    append(pods / "1.log", "2024-01-02T03:05:03.5Z stdout F the last\n")
    fake.offer("ContainerStatus", Status(grpc.StatusCode.NOT_FOUND, "gone"))
    stdout, _ = process.communicate(timeout=WAIT_S)
    assert (process.returncode, stdout) == (0, b"[pod/web/main] the last\n")
