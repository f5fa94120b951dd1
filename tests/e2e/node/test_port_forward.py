"""``port-forward`` on a real containerd."""

from __future__ import annotations

import hashlib
import random
import signal
import socket
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from .kubelet import Pod
from .lab import MIB, Lab
from .programs import closed_port, forwarded, web_server


def get(port: int, host: str = "127.0.0.1") -> bytes:
    with urllib.request.urlopen(f"http://{host}:{port}/", timeout=60) as answer:
        data: bytes = answer.read()
        return data


def local_ports(lines: list[str]) -> list[int]:
    return [int(line.split()[2].rpartition(":")[2]) for line in lines]


def test_port_forward(command: list[str], pod: Pod) -> None:
    """A refused connection does not affect the many parallel ones after it."""
    words, count = [*command, "port-forward", pod.id], 60
    data = random.Random(6).randbytes(2 * MIB)
    with web_server(data) as port, closed_port() as refused_port:
        with forwarded([*words, f":{port}", f":{refused_port}"]) as (process, lines):
            (good, bad), (good6, bad6) = lines[::2], lines[1::2]
            assert good.startswith("Forwarding from 127.0.0.1:")
            assert good6.startswith("Forwarding from [::1]:")
            assert (good.split()[-1], bad6.split()[-1]) == (str(port), str(refused_port))
            local, refused = local_ports([good, bad])

            def get_hashed(number: int) -> bytes:
                return hashlib.sha256(get(local, "127.0.0.1" if number % 2 else "[::1]")).digest()

            with socket.create_connection(("127.0.0.1", refused), timeout=60) as connection:
                assert connection.recv(1) == b""
            with ThreadPoolExecutor(count) as pool:
                assert set(pool.map(get_hashed, range(count))) == {hashlib.sha256(data).digest()}
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0
    assert stdout.count(f"Handling connection for {local}\n") == count
    assert stdout.count(f"Handling connection for {refused}\n") == 1
    assert stderr.count("\n") == 1, stderr
    assert "connection refused" in stderr


def test_data_for_a_refused_port_stalls_no_other(command: list[str], pod: Pod) -> None:
    """containerd stops reading frames when data arrives for a stream that it has given up."""
    words = [*command, "port-forward", "--address", "127.0.0.1", pod.id]
    with web_server(b"here") as port, closed_port() as refused_port:
        with forwarded([*words, f":{port}", f":{refused_port}"]) as (process, lines):
            local, refused = local_ports(lines)
            for _ in range(5):
                with socket.create_connection(("127.0.0.1", refused), timeout=60) as connection:
                    connection.sendall(b"x" * 1000)
                    assert connection.recv(1) == b""
            assert [get(local) for _ in range(20)] == [b"here"] * 20
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0
    assert stderr.count("connection refused") == stderr.count("\n") == 5


def test_half_close_reaches_the_pod(command: list[str], pod: Pod) -> None:
    """containerd 1.6 ends the whole connection one second after a half-close."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        words = [*command, "port-forward", "--address", "127.0.0.1", pod.id, f":{port}"]
        with forwarded(words) as (process, lines):
            (local,) = local_ports(lines)
            with socket.create_connection(("127.0.0.1", local), timeout=60) as client:
                client.sendall(b"question")
                client.shutdown(socket.SHUT_WR)
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(60)
                    assert connection.recv(8, socket.MSG_WAITALL) == b"question"
                    connection.sendall(b"answer")
                    assert connection.recv(1) == b""
                assert b"".join(iter(lambda: client.recv(100), b"")) == b"answer"
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0


def test_port_forward_outlives_a_restart_of_the_runtime(
    lab: Lab, command: list[str], pod: Pod
) -> None:
    words = [*command, "port-forward", "--address", "127.0.0.1", pod.id]
    with web_server(b"here") as port, forwarded([*words, f":{port}"]) as (process, lines):
        (local,) = local_ports(lines)
        lab.node.kill9()
        try:
            with socket.create_connection(("127.0.0.1", local), timeout=60) as connection:
                assert connection.recv(1) == b""
        finally:
            lab.node.start()
        assert get(local) == b"here"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0
    assert stderr.count("\n") == 1
