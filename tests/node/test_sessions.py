"""``exec`` and ``attach`` without a terminal, on a real containerd."""

from __future__ import annotations

import asyncio
import io
import random
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from pycrictl.cri import sessions
from pycrictl.cri.calls.client import CriClient
from pycrictl.streaming.pump import Ends, Output
from pycrictl.streaming.remote_command import run_command
from pycrictl.wire.command import Streams

from .forked import Program
from .kubelet import Pod
from .lab import MIB, Lab
from .programs import Crictl, start_container

TRANSPORTS = [["-r", "spdy"], ["-r", "websocket"], ["-r", "auto"], ["-s"]]


@pytest.fixture(scope="module")
def containers(shared_lab: Lab) -> Iterator[Callable[[], str]]:
    """Finds a container that runs, and starts one if those that it has started are gone."""
    kubelet = shared_lab.node.kubelet
    found = ""

    def find() -> str:
        nonlocal found
        if found not in kubelet.running_containers():
            found = start_container(shared_lab, kubelet.run_pod("sessions"), "main")
        return found

    yield find
    shared_lab.clean()


@pytest.fixture
def container(containers: Callable[[], str]) -> str:
    """One for all tests: they leave nothing there that others would notice."""
    return containers()


@pytest.fixture(scope="module")
def program(shared_lab: Lab) -> Iterator[Program]:
    with Program("-t", "20s", "-r", shared_lab.node.endpoint) as program:
        yield program


@pytest.mark.parametrize("how", TRANSPORTS, ids=" ".join)
@pytest.mark.parametrize("status", [0, 7, 137])
def test_the_exit_status_is_the_commands(
    program: Program, container: str, how: list[str], status: int
) -> None:
    script = f"sleep 1; echo out; echo err >&2; exit {status}"
    ended = program.run("exec", *how, container, "sh", "-c", script)
    assert ended == (status, b"out\n", "err\n")


@pytest.mark.parametrize("how", TRANSPORTS, ids=" ".join)
def test_every_byte_value_is_intact(crictl: Crictl, container: str, how: list[str]) -> None:
    octal = "".join(f"\\{value:03o}" for value in range(256))
    script = f"printf '{octal}'; printf '{octal}' >&2"
    result = crictl("exec", *how, container, "sh", "-c", script)
    assert (result.stdout, result.stderr) == (bytes(range(256)), bytes(range(256)))


@pytest.mark.parametrize("transport", ["auto", "spdy"])
def test_piped_input_ends_with_all_its_output(
    crictl: Crictl, container: str, transport: str
) -> None:
    result = crictl("exec", "-i", "-r", transport, container, "cat", stdin=b"x\n")
    assert (result.returncode, result.stdout, result.stderr) == (0, b"x\n", b"")
    unread = crictl("exec", "-i", "-r", transport, container, "true", stdin=b"unread")
    assert (unread.returncode, unread.stdout, unread.stderr) == (0, b"", b"")


@pytest.mark.parametrize(
    ("transport", "remote", "size_mib"),
    [("spdy", ["cat"], 192), ("websocket", ["head", "-c", str(16 * MIB)], 16)],
    ids=["spdy", "websocket"],
)
def test_hundreds_of_mebibytes_come_back(
    command: list[str], container: str, transport: str, remote: list[str], size_mib: int
) -> None:
    """Over WebSocket, where the end of the input cannot be signalled, less is enough."""
    blocks = [random.Random(number).randbytes(MIB) for number in range(8)]
    words = [*command, "exec", "-i", "-r", transport, container, *remote]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, **pipes) as process:  # type: ignore[call-overload]  # pipes

        def feed() -> None:
            with process.stdin as stdin:
                for number in range(size_mib):
                    stdin.write(blocks[number % len(blocks)])

        feeding = threading.Thread(target=feed)
        feeding.start()
        wrong = [n for n in range(size_mib) if process.stdout.read(MIB) != blocks[n % len(blocks)]]
        rest = process.stdout.read()
        feeding.join(60)
        assert not feeding.is_alive()
        said = process.stderr.read()
        assert process.wait(60) == 0
    assert (wrong, rest) == ([], b"")
    assert said.count(b"\n") == (transport == "websocket")


@pytest.mark.parametrize("transport", ["spdy", "websocket"])
def test_no_line_is_lost_or_torn(crictl: Crictl, container: str, transport: str) -> None:
    script = "i=0; while [ $i -lt 10000 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done"
    result = crictl("exec", "-r", transport, container, "sh", "-c", script)
    assert result.stdout == b"".join(b"out %d\n" % number for number in range(10000))
    assert result.stderr == b"".join(b"err %d\n" % number for number in range(10000))


def test_two_hundred_sessions_at_once(lab: Lab) -> None:
    """In ten pods: containerd 1.6 locks up with more than about 64 in one."""

    def start(number: int) -> str:
        return start_container(lab, lab.node.kubelet.run_pod(f"many{number}"), "main")

    with ThreadPoolExecutor(5) as pool:
        containers = list(pool.map(start, range(10)))

    async def session(client: CriClient, number: int) -> tuple[int | None, str, str]:
        script = f"sleep 1; echo out {number}; echo err {number} >&2; exit {number}"
        words = ["sh", "-c", script]
        container_id = containers[number % 10]
        stdout, stderr = io.StringIO(), io.StringIO()
        outcome = await run_command(
            partial(sessions.exec_url, client, container_id, words, stdin=False, tty=False),
            Streams(),
            Ends(Output(stdout), Output(stderr)),
            choice="spdy" if number % 20 < 10 else "websocket",
            timeout_s=60,
        )
        assert outcome is not None
        return outcome.exit_code, stdout.getvalue(), stderr.getvalue()

    async def every(client: CriClient) -> list[tuple[int | None, str, str]]:
        return await asyncio.gather(*(session(client, number) for number in range(200)))

    with CriClient(str(lab.node.socket_path), timeout_s=60) as client:
        outcomes = asyncio.run(every(client))
    assert outcomes == [(number, f"out {number}\n", f"err {number}\n") for number in range(200)]


@pytest.mark.parametrize("transport", ["spdy", "websocket"])
def test_a_missing_command(program: Program, container: str, transport: str) -> None:
    ended = program.run("exec", "-r", transport, container, "nosuch")
    assert ended.status == 127
    (line,) = ended.stderr.splitlines()
    assert '"nosuch": executable file not found' in line


def test_a_stopped_container(crictl: Crictl, container: str) -> None:
    assert crictl("stop", container).returncode == 0
    result = crictl("exec", container, "true")
    assert result.returncode == 1
    (line,) = result.stderr.decode().splitlines()
    assert "CONTAINER_EXITED" in line


def test_the_runtime_limits_the_time(crictl: Crictl, container: str) -> None:
    result = crictl("exec", "-s", "--timeout", "1", container, "sleep", "30")
    assert (result.returncode, result.stdout) == (1, b"")
    assert b"1s" in result.stderr


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["int", "term"]
)
def test_a_signal_ends_it(
    command: list[str], container: str, number: signal.Signals, status: int
) -> None:
    words = [*command, "exec", "-i", container, "sh", "-c", "echo up; sleep 30"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(number)
        assert process.wait(60) == status


def test_ctrl_c_ends_the_waiting_for_a_whole_output(command: list[str], container: str) -> None:
    words = [*command, "exec", "-s", container, "sh", "-c", "touch /began; sleep 30"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        began = [*command, "exec", container, "sh", "-c", "until [ -e /began ]; do sleep 0.1; done"]
        assert subprocess.run(began, timeout=60).returncode == 0
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (130, b"")
    assert len(stderr.splitlines()) <= 1


@pytest.mark.parametrize("how", TRANSPORTS, ids=" ".join)
def test_the_runtimes_death_is_one_line(
    lab: Lab, command: list[str], container: str, how: list[str]
) -> None:
    script = "echo up; touch /up; sleep 60"
    words = [*command, "exec", *how, container, "sh", "-c", script]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        up = [*command, "exec", container, "sh", "-c", "until [ -e /up ]; do sleep 0.1; done"]
        assert subprocess.run(up, timeout=60).returncode == 0
        assert process.stdout is not None
        shown = b"" if "-s" in how else process.stdout.readline()
        lab.node.kill9()
        try:
            stdout, stderr = process.communicate(timeout=60)
        finally:
            lab.node.start()
    assert process.returncode == 1
    assert (shown, stdout) == (b"" if "-s" in how else b"up\n", b"")
    first, *hints = stderr.decode().splitlines()
    assert first.startswith("pycrictl: ")
    assert all(line.startswith("hint: ") for line in hints)
    if "-s" not in how:
        assert "the runtime sent no exit status" in first


def test_several_containers(lab: Lab, crictl: Crictl, pod: Pod) -> None:
    first, second = (start_container(lab, pod, name) for name in ("main", "side"))
    result = crictl("exec", "--pod", pod.id, "sh", "-c", "echo hi; exit 4")
    assert result.returncode == 4
    lines = result.stdout.decode().split()
    assert sorted(lines[:2]) == sorted((f"{first}:", f"{second}:"))
    assert lines[2:] == ["hi", "hi"]
    assert result.stderr.count(b"ended with status 4\n") == 2
    assert crictl("exec", "-x", "--pod", pod.id, "echo", "hi").stdout == b"hi\nhi\n"
    assert crictl("exec", "-s", "-q", "--name", "side", "echo", "hi").stdout == b"hi\n"
    ignored = crictl("exec", "-e", "--latest", "false")
    assert (ignored.returncode, ignored.stdout.decode()) == (0, f"{second}:\n")
    refused = crictl("exec", "-i", "--pod", pod.id, "cat")
    assert (refused.returncode, refused.stdout) == (1, b"")


def test_attach(lab: Lab, pod: Pod, crictl: Crictl) -> None:
    reference = lab.reference(lab.busybox)
    lab.node.kubelet.pull(reference)
    script = "until [ -e /go ]; do sleep 0.1; done; sleep 3; echo out; echo err >&2"
    kubelet = lab.node.kubelet
    container_id = kubelet.create_container(pod, reference, ["sh", "-c", script], name="short")
    kubelet.start_container(container_id)
    with ThreadPoolExecutor(1) as pool:
        attached = pool.submit(crictl, "attach", container_id)
        crictl("exec", container_id, "touch", "/go")
        result = attached.result(60)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"out\n", b"err\n")
    again = crictl("attach", container_id)
    assert again.returncode == 1
    assert len(again.stderr.splitlines()) == 1


@pytest.mark.parametrize("tty", [False, True], ids=["pipes", "tty"])
@pytest.mark.parametrize("once", [False, True], ids=["always", "once"])
def test_attaching_ends_nobodys_input(
    lab: Lab, pod: Pod, command: list[str], crictl: Crictl, once: bool, tty: bool
) -> None:
    script = "while :; do echo on; sleep 0.2; done & cat; exit 3"
    kubelet = lab.node.kubelet
    image = lab.reference(lab.busybox)
    kubelet.pull(image)
    container_id = kubelet.create_container(
        pod, image, ["sh", "-c", script], tty=tty, stdin=True, stdin_once=once
    )
    kubelet.start_container(container_id)
    refused = crictl("attach", "-r", "websocket", container_id)
    assert (refused.returncode, refused.stdout) == (1, b"")
    assert refused.stderr.endswith(b"\nhint: use --transport spdy\n")
    for how in ("auto", "spdy"):
        words = [*command, "attach", "-r", how, container_id]
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert [process.stdout.readline().rstrip() for _ in range(5)] == [b"on"] * 5
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
    alive = crictl("exec", container_id, "sh", "-c", "kill -0 1")
    assert alive.returncode == 0
