"""Sessions with containers on a real containerd: ``exec``, ``attach`` and ``port-forward``."""

from __future__ import annotations

import hashlib
import http.server
import os
import random
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from .kubelet import Pod
from .lab import MIB, Lab

Crictl = Callable[..., subprocess.CompletedProcess[bytes]]
TRANSPORTS = [["-r", "spdy"], ["-r", "websocket"], ["-r", "auto"], ["-s"]]


@pytest.fixture
def command(lab: Lab) -> list[str]:
    return [sys.executable, "-m", "pycrictl", "-t", "20s", "-r", lab.node.endpoint]


@pytest.fixture
def crictl(command: list[str]) -> Crictl:
    def run(*words: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        if stdin is None:  # not ours, and at its end
            with Path(os.devnull).open("rb") as nothing:
                return subprocess.run([*command, *words], stdin=nothing, capture_output=True)
        return subprocess.run([*command, *words], input=stdin, capture_output=True)

    return run


@pytest.fixture
def pod(lab: Lab) -> Pod:
    return lab.node.kubelet.run_pod("sessions")


def start_container(lab: Lab, pod: Pod, name: str) -> str:
    reference = lab.reference(lab.busybox)
    lab.node.kubelet.pull(reference)
    container_id = lab.node.kubelet.create_container(pod, reference, name=name)
    lab.node.kubelet.start_container(container_id)
    return container_id


@pytest.fixture
def container(lab: Lab, pod: Pod) -> str:
    return start_container(lab, pod, "main")


@pytest.mark.parametrize("how", TRANSPORTS, ids=" ".join)
@pytest.mark.parametrize("status", [0, 1, 7, 126, 127, 137])
def test_the_exit_status_is_the_commands(
    crictl: Crictl, container: str, how: list[str], status: int
) -> None:
    script = f"echo out; echo err >&2; exit {status}"
    result = crictl("exec", *how, container, "sh", "-c", script)
    assert (result.returncode, result.stdout, result.stderr) == (status, b"out\n", b"err\n")


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
    data = random.Random(5).randbytes(64 * MIB)
    result = crictl("exec", "-i", "-r", transport, container, "cat", stdin=data)
    assert hashlib.sha256(result.stdout).digest() == hashlib.sha256(data).digest()
    assert result.returncode == 0


@pytest.mark.parametrize("transport", ["spdy", "websocket"])
def test_no_line_is_lost_or_torn(crictl: Crictl, container: str, transport: str) -> None:
    script = "i=0; while [ $i -lt 10000 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done"
    result = crictl("exec", "-r", transport, container, "sh", "-c", script)
    assert result.stdout == b"".join(b"out %d\n" % number for number in range(10000))
    assert result.stderr == b"".join(b"err %d\n" % number for number in range(10000))


def test_many_at_once(crictl: Crictl, container: str) -> None:
    def run(number: int) -> tuple[int, bytes]:
        result = crictl("exec", container, "sh", "-c", f"echo {number}; exit {number}")
        return result.returncode, result.stdout

    with ThreadPoolExecutor(20) as pool:
        results = list(pool.map(run, range(20)))
    assert results == [(number, b"%d\n" % number) for number in range(20)]


@pytest.mark.parametrize("transport", ["spdy", "websocket"])
def test_a_missing_command(crictl: Crictl, container: str, transport: str) -> None:
    result = crictl("exec", "-r", transport, container, "nosuch")
    assert result.returncode == 127
    (line,) = result.stderr.decode().splitlines()
    assert '"nosuch": executable file not found' in line


def test_a_stopped_container(lab: Lab, crictl: Crictl, container: str) -> None:
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
        assert process.wait(10) == status


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


class Session:
    """The program on a terminal of its own."""

    def __init__(self, words: list[str]) -> None:
        self.terminal, own = os.openpty()
        self.resize(80, 24)
        self.settings = termios.tcgetattr(own)
        self.process = subprocess.Popen(words, stdin=own, stdout=own, stderr=own, process_group=0)
        self._own = own
        self.shown = b""

    def resize(self, columns: int, rows: int) -> None:
        termios.tcsetwinsize(self.terminal, (rows, columns))

    def type(self, keys: bytes) -> None:
        os.write(self.terminal, keys)

    def wait_for(self, text: bytes) -> None:
        deadline = time.monotonic() + 20
        while text not in self.shown:
            ready, _, _ = select.select([self.terminal], [], [], deadline - time.monotonic())
            assert ready, self.shown
            self.shown += os.read(self.terminal, 65536)
        self.shown = self.shown.partition(text)[2]

    def end(self) -> int:
        """Wait for the end; the terminal must be as it was."""
        status = self.process.wait(20)
        assert termios.tcgetattr(self._own) == self.settings
        os.close(self._own)
        os.close(self.terminal)
        return status


def test_a_terminal(command: list[str], container: str) -> None:
    session = Session([*command, "exec", "-it", container, "sh"])
    session.wait_for(b"# ")
    session.type(b"echo up$((1+1))\n")
    session.wait_for(b"up2\r\n")
    session.resize(101, 34)
    session.process.send_signal(signal.SIGWINCH)
    session.type(b"until stty size | grep '34 101'; do sleep 0.1; done\n")
    session.wait_for(b"\r\n34 101\r\n")
    session.type(b"sh -c 'echo sleep$((1+1)); exec sleep 60'\n")
    session.wait_for(b"sleep2\r\n")
    session.type(b"\x03")  # for the command, not for us
    session.wait_for(b"# ")
    session.type(b"exit 6\n")
    assert session.end() == 6


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["term", "int"]
)
def test_the_terminal_is_sane_after_a_signal(
    command: list[str], container: str, number: signal.Signals, status: int
) -> None:
    session = Session([*command, "exec", "-it", container, "sh"])
    session.wait_for(b"# ")
    session.process.send_signal(number)
    assert session.end() == status


def test_the_terminal_is_sane_after_the_containers_death(
    crictl: Crictl, command: list[str], container: str
) -> None:
    session = Session([*command, "exec", "-it", container, "sh"])
    session.wait_for(b"# ")
    assert crictl("stop", container).returncode == 0
    assert session.end() == 137


def test_the_terminal_is_sane_after_the_runtimes_death(
    lab: Lab, command: list[str], container: str
) -> None:
    session = Session([*command, "exec", "-it", container, "sh"])
    session.wait_for(b"# ")
    lab.node.kill9()
    try:
        session.wait_for(b"pycrictl: ")
        assert session.end() == 1
    finally:
        lab.node.start()


def test_attach(lab: Lab, pod: Pod, crictl: Crictl) -> None:
    reference = lab.reference(lab.busybox)
    lab.node.kubelet.pull(reference)
    script = "until [ -e /go ]; do sleep 0.1; done; sleep 1; echo out; echo err >&2"
    kubelet = lab.node.kubelet
    container_id = kubelet.create_container(pod, reference, ["sh", "-c", script], name="short")
    kubelet.start_container(container_id)
    with ThreadPoolExecutor(1) as pool:
        attached = pool.submit(crictl, "attach", container_id)
        crictl("exec", container_id, "touch", "/go")
        result = attached.result(30)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"out\n", b"err\n")
    again = crictl("attach", container_id)
    assert again.returncode == 1
    assert len(again.stderr.splitlines()) == 1


def test_the_detach_keys_leave_the_command(command: list[str], container: str) -> None:
    session = Session([*command, "exec", "-it", container, "sh"])
    session.wait_for(b"# ")
    session.type(b"\x10\x11")
    assert session.end() == 0


@pytest.mark.parametrize("transport", ["spdy", "websocket"])
def test_port_forward(command: list[str], pod: Pod, transport: str) -> None:
    """Many connections at once, and refused ones in between."""
    words = [*command, "port-forward", "-r", transport, pod.id]
    data = random.Random(6).randbytes(MIB)
    with web_server(data) as port, closed_port() as refused_port:
        with forwarded([*words, f":{port}", f":{refused_port}"]) as (process, lines):
            (good, bad), (good6, bad6) = lines[::2], lines[1::2]
            assert good.startswith("Forwarding from 127.0.0.1:")
            assert good6.startswith("Forwarding from [::1]:")
            assert (good.split()[-1], bad6.split()[-1]) == (str(port), str(refused_port))
            local, refused = (int(line.split()[2].rpartition(":")[2]) for line in (good, bad))

            def get(number: int) -> bytes:
                host = "127.0.0.1" if number % 2 else "[::1]"
                with urllib.request.urlopen(f"http://{host}:{local}/", timeout=30) as answer:
                    content: bytes = answer.read()
                    return content

            with socket.create_connection(("127.0.0.1", refused), timeout=10) as connection:
                assert connection.recv(1) == b""
            with ThreadPoolExecutor(20) as pool:
                assert set(pool.map(get, range(20))) == {data}
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=10)
    assert process.returncode == 0
    assert stdout.count(f"Handling connection for {local}\n") == 20
    assert stdout.count(f"Handling connection for {refused}\n") == 1
    (line,) = stderr.splitlines()
    assert "connection refused" in line


def test_half_close_reaches_the_pod(command: list[str], pod: Pod) -> None:
    """containerd 1.6 takes it for the end of the whole after a second more."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with forwarded(
            [*command, "port-forward", "--address", "127.0.0.1", pod.id, f":{port}"]
        ) as (
            process,
            (line,),
        ):
            local = int(line.split()[2].rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", local), timeout=10) as client:
                client.sendall(b"question")
                client.shutdown(socket.SHUT_WR)
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(10)
                    assert connection.recv(8, socket.MSG_WAITALL) == b"question"
                    connection.sendall(b"answer")
                    assert connection.recv(1) == b""
                assert b"".join(iter(lambda: client.recv(100), b"")) == b"answer"
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 0


def test_port_forward_ends_with_the_runtime(lab: Lab, command: list[str], pod: Pod) -> None:
    words = [*command, "port-forward", "--address", "127.0.0.1", pod.id, ":80"]
    with forwarded(words) as (process, _):
        lab.node.kill9()
        try:
            assert process.wait(10) == 1
        finally:
            lab.node.start()
        assert process.stderr is not None
        assert len(process.stderr.read().splitlines()) == 1


@contextmanager
def web_server(data: bytes) -> Iterator[int]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join(5)


@contextmanager
def closed_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@contextmanager
def forwarded(words: list[str]) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The program, and the lines it began with: two for each port, or one with an address."""
    specs = sum(":" in word and word[-1].isdigit() and word[0] == ":" for word in words)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            assert process.stdout is not None
            count = specs if "--address" in words else 2 * specs
            yield process, [process.stdout.readline() for _ in range(count)]
        finally:
            process.kill()
