"""What goes on until Ctrl-C: watched lists, measurements and events."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.show.render import CLEAR_SCREEN
from tests.captures import scene
from tests.cli.run import Run
from tests.fakecri import FakeServer, Status, hang

WAIT_S = 20


def wait_until(is_true: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@contextmanager
def program(fake: FakeServer, *words: str, stdout: Any = subprocess.PIPE) -> Iterator[Any]:
    command = [sys.executable, "-m", "pycrictl", "-r", fake.endpoint, *words]
    with subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def interrupted(fake: FakeServer, *words: str, after_calls: int) -> tuple[int, str, str]:
    """Status and output of a program that gets Ctrl-C after so many calls."""
    with program(fake, *words) as process:
        wait_until(lambda: len(fake.calls) >= after_calls)
        time.sleep(0.2)  # for the output of the last one
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=WAIT_S)
    return process.returncode, stdout, stderr


def documents(text: str) -> list[Any]:
    decoder, found = json.JSONDecoder(), []
    while text := text.lstrip():
        document, end = decoder.raw_decode(text)
        found.append(document)
        text = text[end:]
    return found


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
        ("metricsp", "ListPodSandboxMetrics", scene.fake_pod_metrics(), "podMetrics"),
    ],
)
def test_measurements_repeat_until_interrupted(
    fake: FakeServer, command: str, call: str, answer: Any, key: str
) -> None:
    fake.prepare(call, answer, repeat=True)
    # Two calls a look: the stream that this runtime has not, and the list.
    code, stdout, stderr = interrupted(fake, command, "-w", "-o", "json", after_calls=4)
    assert (code, stderr) == (0, "")
    assert len(documents(stdout)) >= 2
    assert all(document[key] for document in documents(stdout))


def test_tables_of_measurements(fake: FakeServer) -> None:
    fake.prepare("ListContainerStats", stats, repeat=True)
    code, stdout, stderr = interrupted(fake, "stats", "-w", "-s", "0", after_calls=8)
    assert (code, stderr) == (0, "")
    assert stdout.count("CONTAINER ") >= 2
    assert "\x1b" not in stdout


def test_a_list_is_written_again_when_it_changes(fake: FakeServer) -> None:
    def images(*ids: str) -> cri_pb2.ListImagesResponse:
        return cri_pb2.ListImagesResponse(images=[cri_pb2.Image(id=each) for each in ids])

    fake.prepare("ListImages", images("a"), images("a"), images("a", "b"), images(), repeat=True)
    code, stdout, stderr = interrupted(fake, "images", "-w", "-o", "json", after_calls=10)
    assert (code, stderr) == (0, "")
    found = [[image["id"] for image in document["images"]] for document in documents(stdout)]
    assert found == [["a"], ["a", "b"], []]


def test_a_watch_ends_with_its_runtime(fake: FakeServer) -> None:
    fake.prepare("ListContainers", None, Status(grpc.StatusCode.INTERNAL, "going down"))
    with program(fake, "ps", "--watch") as process:
        stdout, stderr = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert stdout.startswith("CONTAINER ")
    assert "going down" in stderr


@pytest.mark.parametrize(
    ("words", "call", "answer"),
    [
        (["ps", "-w"], "ListContainers", None),
        (["stats", "-w", "-s", "0"], "ListContainerStats", stats),
    ],
)
def test_a_terminal_is_drawn_anew(
    fake: FakeServer, words: list[str], call: str, answer: Any
) -> None:
    fake.prepare(call, answer, repeat=True)
    master, slave = pty.openpty()
    output = b""
    try:
        with program(fake, *words, stdout=slave) as process:
            end = time.monotonic() + WAIT_S
            while output.count(CLEAR_SCREEN.encode()) < 2 and time.monotonic() < end:
                if select.select([master], [], [], 0.1)[0]:
                    output += os.read(master, 65536)
            process.send_signal(signal.SIGINT)
            assert process.wait(WAIT_S) == 0
    finally:
        os.close(master)
        os.close(slave)
    text = output.decode()
    assert text.startswith(f"{CLEAR_SCREEN}CONTAINER ")
    assert text.count(CLEAR_SCREEN) >= 2


def test_one_measurement_clears_no_terminal(fake: FakeServer) -> None:
    fake.prepare("ListContainerStats", stats, repeat=True)
    master, slave = pty.openpty()
    try:
        with program(fake, "stats", "-s", "0", stdout=slave) as process:
            assert process.wait(WAIT_S) == 0
        assert os.read(master, 65536).startswith(b"CONTAINER ")
    finally:
        os.close(master)
        os.close(slave)


def test_what_could_not_be_measured_is_marked(fake: FakeServer) -> None:
    no_cgroup = Status(grpc.StatusCode.UNKNOWN, "cgroupPath is empty")
    pods = [cri_pb2.PodSandbox(id=scene.hex_id(number)) for number in (1, 2)]
    pods[1].metadata.name = "host\x1b[2J"

    def one(request: Any, context: Any) -> Any:
        if request.pod_sandbox_id == scene.hex_id(2):
            return no_cgroup
        return cri_pb2.PodSandboxStatsResponse(stats=scene.fake_pod_stats(1, 10**9)[1])

    fake.prepare("ListPodSandboxStats", no_cgroup, repeat=True)
    fake.prepare("ListPodSandbox", cri_pb2.ListPodSandboxResponse(items=pods), repeat=True)
    fake.prepare("PodSandboxStats", one, repeat=True)
    for words in (["-o", "json"], ["-s", "0"]):
        shown = Run("-r", fake.endpoint, "statsp", *words)
        assert shown.code == 1
        assert "pod1" in shown.stdout
        assert shown.stderr == (
            "pycrictl: warning: pod 0202020202020 (host\\x1b[2J): cgroupPath is empty\n"
        )


def test_events_of_a_stream_that_ends(fake: FakeServer) -> None:
    fake.prepare("GetContainerEvents", scene.fake_events())
    shown = Run(
        *("-r", fake.endpoint, "event", "-o", "go-template"),
        *("--template", "{{.containerEventType}} {{.createdAt}}"),
    )
    assert (shown.code, shown.stdout) == (
        0,
        "CONTAINER_CREATED_EVENT 1700000000000000000\n"
        "CONTAINER_STARTED_EVENT 1700000000000000001\n"
        "CONTAINER_STOPPED_EVENT 1700000000000000002\n"
        "CONTAINER_DELETED_EVENT 1700000000000000003\n",
    )
    assert shown.stderr == "pycrictl: the runtime ended the stream of events\n"
    assert fake.calls[0].deadline_s is None


def test_a_template_that_fails_for_some_events(fake: FakeServer) -> None:
    fake.prepare("GetContainerEvents", scene.fake_events())
    shown = Run(
        *("-r", fake.endpoint, "events", "-o", "go-template"),
        *("--template", "{{.podSandboxStatus.id}}"),
    )
    assert (shown.code, shown.stdout) == (1, f"{scene.hex_id(1)}\n")
    assert shown.stderr.count("warning: event of container 0101010101010: ") == 3


def test_events_come_at_once_and_end_with_ctrl_c(fake: FakeServer) -> None:
    first, second = scene.fake_events()[:2]
    fake.prepare("GetContainerEvents", [first, second, hang(WAIT_S)])
    with program(fake, "events") as process:
        seen = ""
        while seen.count("containerEventType") < 2:
            seen += process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=WAIT_S)
    assert (process.returncode, stderr) == (130, "pycrictl: interrupted\n")


def test_events_of_a_runtime_that_dies(fake: FakeServer) -> None:
    event = scene.fake_events()[0]
    fake.prepare("GetContainerEvents", [event, Status(grpc.StatusCode.UNAVAILABLE, "bye")])
    shown = Run("-r", fake.endpoint, "events")
    assert shown.code == 1
    assert len(documents(shown.stdout)) == 1
    assert "is unavailable: bye" in shown.stderr


def test_events_cannot_steer_the_terminal(fake: FakeServer) -> None:
    event = cri_pb2.ContainerEventResponse(container_id="\x1b[2J\x9b")
    fake.prepare("GetContainerEvents", [event], [event], [event])
    template = ("--template", "{{.containerId}}")
    for words in ((), ("-o", "yaml"), ("-o", "go-template", *template)):
        shown = Run("-r", fake.endpoint, "events", *words)
        assert shown.code == 0
        assert "\x1b" not in shown.stdout
        assert "\x9b" not in shown.stdout
        assert "[2J" in shown.stdout
