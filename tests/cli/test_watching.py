"""Commands that run until Ctrl-C: watched lists, measurements and events."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.show.render import CLEAR_SCREEN
from tests.captures import documents, scene
from tests.cli.run import Run
from tests.fakecri import FakeServer, Status, hang
from tests.show.screen import Screen, Terminal
from tests.waiting import wait_until

WAIT_S = 60
METRICS = "ListPodSandboxMetrics"


@contextmanager
def program(
    fake: FakeServer,
    *words: str,
    stdout: Any = subprocess.PIPE,
    stderr: Any = subprocess.PIPE,
    term: str = "xterm",
) -> Iterator[Any]:
    command = [sys.executable, "-m", "pycrictl", "-r", fake.endpoint, *words]
    env = {**os.environ, "TERM": term}
    with subprocess.Popen(command, stdout=stdout, stderr=stderr, text=True, env=env) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def interrupted(
    fake: FakeServer, *words: str, call: str, after_answers: int
) -> tuple[int, str, str]:
    """Send Ctrl-C after so many answers were shown; return exit status, output and errors."""
    with program(fake, *words) as process:
        # It sends the next request only after showing the previous answer.
        wait_until(lambda: fake.methods().count(call) > after_answers)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=WAIT_S)
    return process.returncode, stdout, stderr


def stats(request: Any, context: Any) -> cri_pb2.ListContainerStatsResponse:
    now_ns = time.time_ns()
    return cri_pb2.ListContainerStatsResponse(stats=scene.fake_container_stats(1, now_ns))


def pod_stats(request: Any, context: Any) -> cri_pb2.ListPodSandboxStatsResponse:
    return cri_pb2.ListPodSandboxStatsResponse(stats=scene.fake_pod_stats(1, time.time_ns()))


@pytest.mark.parametrize(
    ("command", "call", "answer", "key"),
    [
        ("stats", "ListContainerStats", stats, "stats"),
        ("statsp", "ListPodSandboxStats", pod_stats, "stats"),
        ("metricsp", METRICS, scene.prepared(METRICS), "podMetrics"),
    ],
)
def test_measurements_repeat_until_interrupted(
    fake: FakeServer, command: str, call: str, answer: Any, key: str
) -> None:
    fake.prepare(call, answer, repeat=True)
    words = (command, "-w", "-o", "json")
    code, stdout, stderr = interrupted(fake, *words, call=call, after_answers=2)
    assert (code, stderr) == (0, "")
    assert len([*documents(stdout)]) >= 2
    assert all(document[key] for document in documents(stdout))


def test_a_list_is_written_again_when_it_changes(fake: FakeServer) -> None:
    def images(*ids: str) -> cri_pb2.ListImagesResponse:
        return cri_pb2.ListImagesResponse(images=[cri_pb2.Image(id=image_id) for image_id in ids])

    fake.prepare("ListImages", images("a"), images("a"), images("a", "b"), repeat=True)
    words = ("images", "-w", "-o", "json")
    code, stdout, stderr = interrupted(fake, *words, call="ListImages", after_answers=3)
    assert (code, stderr) == (0, "")
    listed = [[image["id"] for image in document["images"]] for document in documents(stdout)]
    assert listed == [["a"], ["a", "b"]]


def test_a_watch_ends_with_its_runtime(fake: FakeServer) -> None:
    fake.prepare("ListContainers", None, Status(grpc.StatusCode.INTERNAL, "going down"))
    with program(fake, "ps", "--watch") as process:
        stdout, stderr = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert stdout.startswith("CONTAINER ")
    assert "going down" in stderr


def at_last(terminal: Terminal, columns: int, rows: int) -> Screen:
    """Return the final screen of a window that had this size throughout."""
    while terminal.read_more():
        pass
    screen = Screen(columns, rows)
    screen.feed(terminal.sent)
    return screen


def many_containers() -> cri_pb2.ListContainersResponse:
    containers = [cri_pb2.Container(id=scene.hex_id(number)) for number in range(1, 31)]
    return cri_pb2.ListContainersResponse(containers=containers)


def test_a_terminal_is_painted_in_place(fake: FakeServer) -> None:
    fake.prepare("ListContainers", many_containers(), repeat=True)
    with (
        Terminal(40, 10) as terminal,
        program(fake, "ps", "-aw", stdout=terminal.stderr) as process,
    ):
        terminal.read_until(lambda output: b"more" in output and len(fake.calls) >= 6)
        terminal.set_size(40, 5)
        terminal.read_until(lambda output: b"28 more" in output)
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 0
        screen = at_last(terminal, 40, 5)
    assert screen.lines[0].startswith("NAME ")
    assert screen.lines[3:] == ["… 28 more"]
    assert screen.cursor == (0, 4)
    assert terminal.sent.count(CLEAR_SCREEN.encode()) == 1


def test_a_template_that_fails_for_some_events(fake: FakeServer) -> None:
    fake.prepare("GetContainerEvents", scene.prepared("GetContainerEvents"))
    shown = Run(
        "-r", fake.endpoint, "events", "-o", "go-template",
        "--template", "{{.podSandboxStatus.id}}",
    )  # fmt: skip
    assert (shown.code, shown.stdout) == (1, f"{scene.hex_id(1)}\n")
    assert shown.stderr.count("warning: event of container 0101010101010: ") == 3


def test_events_come_at_once_and_end_with_ctrl_c(fake: FakeServer) -> None:
    first, second = scene.prepared("GetContainerEvents")[:2]
    fake.prepare("GetContainerEvents", [first, second, hang(WAIT_S)])
    with program(fake, "events") as process:
        seen = ""
        while seen.count("containerEventType") < 2:
            seen += process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=WAIT_S)
    assert (process.returncode, stderr) == (130, "pycrictl: interrupted\n")
