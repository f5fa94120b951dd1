"""One call over a connection of its own: how it ends when the server breaks the rules.

Whole servers are in ``test_call``, through the client that calls them.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pycrictl.cri.calls import obstacle
from pycrictl.cri.calls.errmap import Status
from pycrictl.cri.calls.obstacle import try_connect
from pycrictl.cri.calls.transport import Connection, look, unix
from pycrictl.wire import grpc_http2, hpack, http2
from pycrictl.wire.codes import CANCELLED, DEADLINE_EXCEEDED, OK, RESOURCE_EXHAUSTED, UNAVAILABLE
from tests.fakecri import FakeServer, hostile
from tests.waiting import wait_until

PATH = "/test.v1.Test/Any"
HEAD = http2.settings() + http2.header_frames(
    1, hpack.encode(grpc_http2.response_headers()), end_stream=False
)
END = http2.header_frames(1, hpack.encode(grpc_http2.status_headers(0)), end_stream=True)

Script = Callable[[socket.socket], None]
Serve = Callable[[Script], str]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Serves one connection by a script; gives the socket's path."""
    listener = socket.socket(socket.AF_UNIX)
    path = str(tmp_path / "s")
    listener.bind(path)
    listener.listen()
    threads = []

    def start(script: Script) -> str:
        def run() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.settimeout(60)
                script(connection)

        threads.append(threading.Thread(target=run))
        threads[0].start()
        return path

    yield start
    for thread in threads:
        thread.join()
    listener.close()


def opened(
    path: str, *, timeout_s: float | None = 60, handshake_s: float = 60, is_stream: bool = False
) -> Connection:
    return Connection(
        unix(path),
        PATH,
        b"",
        timeout_s=timeout_s,
        handshake_s=handshake_s,
        is_stream=is_stream,
    )


def result(connection: Connection) -> tuple[list[bytes], Status | None]:
    return list(connection.messages()), connection.status


def read_to_the_end(connection: socket.socket) -> bytes:
    found = b""
    while data := connection.recv(65536):
        found += data
    return found


def test_a_stream(serve: Serve) -> None:
    def script(connection: socket.socket) -> None:
        for octet in b"ab":
            message = grpc_http2.prefixed(bytes((octet,)))
            connection.sendall((HEAD if octet == 97 else b"") + http2.frame(0, 0, 1, message))
            time.sleep(0.01)
        connection.sendall(END)

    assert result(opened(serve(script), is_stream=True)) == ([b"a", b"b"], Status(OK))


def test_a_server_that_drips_does_not_outlast_the_deadline(serve: Serve) -> None:
    sent = []

    def script(connection: socket.socket) -> None:
        connection.sendall(HEAD)
        for _ in range(1000):
            connection.sendall(http2.frame(http2.PING, 0, 0, b"12345678"))
            sent.append(1)
            time.sleep(0.01)

    status = Status(DEADLINE_EXCEEDED, "Deadline Exceeded")
    assert result(opened(serve(script), timeout_s=0.2)) == ([], status)
    assert len(sent) < 1000


def test_leaving_a_stream_cancels_it(serve: Serve) -> None:
    seen = []

    def script(connection: socket.socket) -> None:
        connection.sendall(HEAD + http2.frame(0, 0, 1, grpc_http2.prefixed(b"a")))
        seen.append(read_to_the_end(connection))

    connection = opened(serve(script), timeout_s=None, is_stream=True)
    messages = connection.messages()
    assert next(messages) == b"a"
    messages.close()
    assert connection.status == Status(CANCELLED)
    wait_until(lambda: bool(seen))
    assert seen[0].endswith(http2.rst_stream(1, http2.ErrorCode.CANCEL))


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"", Status(UNAVAILABLE, "it closed the connection", obstacle.CLOSES)),
        (
            hostile.HTTP2_SETTINGS[:5],
            Status(UNAVAILABLE, "it closed the connection", obstacle.CLOSES),
        ),
        (HEAD, Status(UNAVAILABLE, "it closed the connection")),
        (
            http2.settings() + b"\xff" * 100,
            Status(UNAVAILABLE, "HTTP/2: a frame is larger than allowed"),
        ),
        (
            HEAD + http2.frame(0, 0, 1, b"\0\xff\xff\xff\xff"),
            Status(RESOURCE_EXHAUSTED, "a message of 4294967295 bytes", oversize_bytes=2**32 - 1),
        ),
    ],
)
def test_what_is_no_answer(serve: Serve, answer: bytes, status: Status) -> None:
    def script(connection: socket.socket) -> None:
        connection.sendall(answer)
        connection.shutdown(socket.SHUT_WR)
        read_to_the_end(connection)  # what is left unread would break the connection instead

    assert result(opened(serve(script))) == ([], status)


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (b"HTTP/1.1 400 Bad Request", "HTTP/1.1 400 Bad Request"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH-2.0-OpenSSH_9.2"),
        (b"\x1b[2J\xff\xfe" + b"y" * 5000, r"\x1b[2J��yyyy"),
        # An acknowledgement, and a PING, are no beginning of HTTP/2.
        (hostile.HTTP2_SETTINGS_ACK, r"\x00\x00\x00\x04\x01"),
        (http2.frame(http2.PING, 0, 0, b"12345678"), r"\x00\x00\x08\x06\x00"),
    ],
)
def test_other_servers(serve: Serve, answer: bytes, shown: str) -> None:
    def script(connection: socket.socket) -> None:
        connection.sendall(answer)
        read_to_the_end(connection)

    _, status = result(opened(serve(script)))
    assert status is not None
    assert status.obstacle is not None
    reason = status.obstacle.reason
    assert reason.startswith(f'it is not a gRPC server: it answers "{shown}')
    assert reason.isprintable()
    assert len(reason) < 350


def test_an_answer_before_the_connection_breaks_counts(serve: Serve) -> None:
    def script(connection: socket.socket) -> None:
        connection.sendall(HEAD + http2.frame(0, 0, 1, grpc_http2.prefixed(b"")) + END)
        connection.recv(1)  # what is left unread breaks it

    assert result(opened(serve(script))) == ([b""], Status(OK))


@pytest.mark.parametrize("answer", [b"", hostile.HTTP2_SETTINGS[:5]])
def test_a_server_that_says_nothing_has_less_time_than_the_call(
    serve: Serve, answer: bytes
) -> None:
    def script(connection: socket.socket) -> None:
        connection.sendall(answer)
        read_to_the_end(connection)

    connection = opened(serve(script), timeout_s=None, handshake_s=0.1)
    status = Status(UNAVAILABLE, obstacle.SILENT.reason, obstacle.SILENT)
    assert result(connection) == ([], status)


def test_nothing_is_there(tmp_path: Path) -> None:
    missing = try_connect(str(tmp_path / "none"), 1)
    assert isinstance(missing, obstacle.Obstacle)
    connection = opened(str(tmp_path / "none"))
    assert result(connection) == ([], Status(UNAVAILABLE, "no such file", missing))


def test_a_server_that_floods_pings_and_reads_nothing_is_given_up(serve: Serve) -> None:
    given_up = threading.Event()

    def script(connection: socket.socket) -> None:
        connection.sendall(HEAD)
        connection.settimeout(0)
        pings = http2.frame(http2.PING, 0, 0, b"12345678") * 10_000
        with suppress(BlockingIOError):
            for _ in range(100):
                connection.sendall(pings)
        given_up.wait(60)

    connection = opened(serve(script), timeout_s=None, is_stream=True)
    assert list(connection.messages()) == []
    given_up.set()
    assert connection.status is not None
    assert connection.status.code == UNAVAILABLE
    assert "too many frames carry nothing" in connection.status.details


def test_ctrl_c_ends_a_call_to_a_server_that_says_nothing_more(serve: Serve) -> None:
    go_on = threading.Event()

    def script(connection: socket.socket) -> None:
        connection.sendall(HEAD)
        go_on.wait(60)

    connection = opened(serve(script), timeout_s=None, is_stream=True)
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        next(connection.messages())
    assert connection.status == Status(CANCELLED)
    assert time.monotonic() - started < 20
    go_on.set()


def test_looking_now_and_then(serve: Serve) -> None:
    go_on = threading.Event()

    def script(connection: socket.socket) -> None:
        go_on.wait(60)
        connection.sendall(HEAD + http2.frame(0, 0, 1, grpc_http2.prefixed(b"a")) + END)
        read_to_the_end(connection)

    connection = opened(serve(script))
    connection.receive(time.monotonic() + 0.01)
    assert connection.status is None
    go_on.set()
    assert result(connection) == ([b"a"], Status(OK))
    connection.cancel()
    assert connection.status == Status(OK)


def test_looking_at_a_server(fake: FakeServer, tmp_path: Path) -> None:
    assert look(unix(fake.path), timeout_s=60) is None
    missing = look(unix(str(tmp_path / "none")), timeout_s=60)
    assert missing is not None
    assert missing.reason == "no such file"
    with hostile.hung() as path:
        assert look(unix(path), timeout_s=0.2) == obstacle.SILENT
