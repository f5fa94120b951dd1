"""Signals at bad moments: in pairs, at the start, and while a stream or a call is pending."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.pulls.own.slots import pull_slot
from tests.cli.run import start
from tests.cli.streaming_server import progress_streams
from tests.fakecri import FakeServer, hang
from tests.support.proxy_story import PODS, STORY, url
from tests.waiting import wait_until

WAIT_S = 60

AT_IMPORT = """
import os, signal, sys

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "pycrictl.cli.main":
            os.kill(os.getpid(), signal.{name})

sys.meta_path.insert(0, Finder)
from pycrictl.__main__ import run
run()
"""

AT_CALL = """
import os, signal, sys
from pycrictl.cli import main

left, begin = int(sys.argv.pop(1)), main._take_signals

def count(frame, event, argument):
    global left
    left -= 1
    if not left:
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGINT)

def take(persona):
    begin(persona)
    sys.setprofile(count)

main._take_signals = take
from pycrictl.__main__ import run
run()
"""
"""Interrupts itself at the N-th call of, or return from, a function; N is the first argument."""


@pytest.mark.parametrize("pause_s", [0, 0.002])
def test_two_interrupts_are_one_for_a_pull(fake: FakeServer, pause_s: float) -> None:
    fake.prepare("PullImage", hang(WAIT_S))
    process = start("-r", fake.endpoint, "pull", "--progress", "none", "x")
    wait_until(lambda: "PullImage" in fake.methods())
    process.send_signal(signal.SIGINT)
    time.sleep(pause_s)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=WAIT_S) == ("", 'pycrictl: cancelled the pull of "x"\n')
    assert process.returncode == 130


def test_an_interrupt_ends_pulls_that_wait_for_the_slot_of_another_process(
    fake: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYCRICTL_SLOTS_DIR", str(tmp_path / "slots"))
    fake.offer("ImageStatus", cri_pb2.ImageStatusResponse())
    with pull_slot(1, image="other", directory=tmp_path / "slots"):
        words = ("--parallel", "2", "--max-parallel-image-pulls", "1", "--progress", "none")
        with start("-r", fake.endpoint, "pull", *words, "a", "b") as process:
            assert process.stderr is not None
            assert process.stderr.readline() == "pycrictl: waiting for another pull to end\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=WAIT_S) == 130
            assert "pycrictl: cancelled 2 pulls\n" in process.stderr.readlines()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_two_signals_are_one_for_a_busy_stream(
    fake: FakeServer, number: signal.Signals, code: int
) -> None:
    with progress_streams(*[STORY[:2]] * 1000) as server:
        fake.prepare("ListPodSandbox", PODS)
        fake.prepare("ImagePullProgress", url(server.url), repeat=True)
        words = ("image-pull-progress", "web", "--follow", "--progress", "json")
        process = start("-r", fake.endpoint, *words)
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(number)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=WAIT_S)
    assert process.returncode == code
    lines = [line for line in stderr.splitlines() if line.startswith("pycrictl: ")]
    told = "pycrictl: stopped watching; the pulls go on"
    assert lines == ([told] if number == signal.SIGINT else [])
    assert "Traceback" not in stderr


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_at_the_start_kills_in_silence(name: str) -> None:
    command = [sys.executable, "-c", AT_IMPORT.replace("{name}", name), "version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == -signal.Signals[name]
    assert (done.stdout, done.stderr) == ("", "")


def test_an_ignored_interrupt_stays_ignored() -> None:
    script = AT_IMPORT.replace("{name}", "SIGINT")
    ignoring = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh"]
    command = [*ignoring, sys.executable, "-c", script, "--version"]
    done = subprocess.run(command, capture_output=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_stream_into_a_closed_pipe_ends_quietly(fake: FakeServer) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    code, stderr = watch_into(fake, write_end)
    assert (code, stderr) == (128 + signal.SIGPIPE, "")


def test_a_stream_into_a_full_disk_is_one_line(fake: FakeServer) -> None:
    with Path("/dev/full").open("w") as full:
        code, stderr = watch_into(fake, os.dup(full.fileno()))
    assert code == 1
    assert stderr == "pycrictl: cannot write to standard output: no space left on device\n"


def watch_into(fake: FakeServer, stdout: int) -> tuple[int, str]:
    with progress_streams(STORY) as server:
        fake.prepare("ListPodSandbox", PODS)
        fake.prepare("ImagePullProgress", url(server.url))
        words = ("image-pull-progress", "web", "--progress", "json")
        process = start("-r", fake.endpoint, *words, stdout=stdout)
        os.close(stdout)
        _, stderr = process.communicate(timeout=WAIT_S)
    return process.returncode, stderr


@pytest.mark.parametrize("number", [round(300 * 1.5**power) for power in range(13)])
def test_an_interrupt_at_any_call_is_one_line(fake: FakeServer, number: int) -> None:
    """Even in constructors, destructors and protobuf's C code, which do not tolerate exceptions."""
    fake.offer("GetContainerEvents", [cri_pb2.ContainerEventResponse(), hang(WAIT_S)])
    words = (str(number), "-r", fake.endpoint, "events")
    done = subprocess.run(
        [sys.executable, "-c", AT_CALL, *words],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "pycrictl: interrupted\n")
