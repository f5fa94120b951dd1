"""One call over a connection of its own: how it ends when the server does not go along.

What servers do otherwise is in ``test_call``, through the client that uses it.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pycrictl.cri.calls.errmap import Status
from pycrictl.cri.calls.exchange import exchange
from pycrictl.wire import grpc_http2, hpack, http2
from pycrictl.wire.client_call import ClientCall
from pycrictl.wire.codes import DEADLINE_EXCEEDED, OK, UNAVAILABLE

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


def result(
    path: str, *, timeout_s: float | None = 60, handshake_s: float = 60, is_stream: bool = False
) -> tuple[list[bytes], Status]:
    call = ClientCall(PATH, b"", is_stream=is_stream)
    messages = []
    steps = exchange(path, call, timeout_s=timeout_s, handshake_s=handshake_s)
    while True:
        try:
            messages.append(next(steps))
        except StopIteration as end:
            return messages, end.value


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

    assert result(serve(script), is_stream=True) == ([b"a", b"b"], Status(OK))


def test_a_server_that_drips_does_not_outlast_the_deadline(serve: Serve) -> None:
    sent = []

    def script(connection: socket.socket) -> None:
        connection.sendall(HEAD)
        for _ in range(1000):
            connection.sendall(http2.frame(http2.PING, 0, 0, b"12345678"))
            sent.append(1)
            time.sleep(0.01)

    assert result(serve(script), timeout_s=0.2) == (
        [],
        Status(DEADLINE_EXCEEDED, "Deadline Exceeded"),
    )
    assert len(sent) < 1000


def test_leaving_a_stream_cancels_it(serve: Serve) -> None:
    seen = []

    def script(connection: socket.socket) -> None:
        connection.sendall(HEAD + http2.frame(0, 0, 1, grpc_http2.prefixed(b"a")))
        seen.append(read_to_the_end(connection))

    call = ClientCall(PATH, b"", is_stream=True)
    path = serve(script)
    steps = exchange(path, call, timeout_s=None, handshake_s=60)
    assert next(steps) == b"a"
    steps.close()
    give_up_at = time.monotonic() + 60
    while not seen and time.monotonic() < give_up_at:
        time.sleep(0.01)
    assert seen[0].endswith(http2.rst_stream(1, http2.ErrorCode.CANCEL))


@pytest.mark.parametrize(
    ("answer", "details"),
    [
        (b"", "it closed the connection"),
        (HEAD, "it closed the connection"),
        (b"HTTP/1.1 400 Bad Request", "HTTP/2: the server's preface is wrong"),
        (http2.settings() + b"\xff" * 100, "HTTP/2: a frame is larger than allowed"),
    ],
)
def test_what_is_no_answer(serve: Serve, answer: bytes, details: str) -> None:
    def script(connection: socket.socket) -> None:
        connection.sendall(answer)
        connection.shutdown(socket.SHUT_WR)
        read_to_the_end(connection)  # what is left unread would break the connection instead

    assert result(serve(script)) == ([], Status(UNAVAILABLE, details))


def test_an_answer_before_the_connection_breaks_counts(serve: Serve) -> None:
    def script(connection: socket.socket) -> None:
        connection.sendall(HEAD + http2.frame(0, 0, 1, grpc_http2.prefixed(b"")) + END)
        connection.recv(1)  # what is left unread breaks it

    assert result(serve(script)) == ([], Status(OK))


def test_a_server_that_says_nothing_has_less_time_than_the_call(serve: Serve) -> None:
    assert result(serve(read_to_the_end), timeout_s=None, handshake_s=0.1) == (  # type: ignore[arg-type]
        [],
        Status(UNAVAILABLE, "it does not answer"),
    )


def test_nothing_is_there(tmp_path: Path) -> None:
    assert result(str(tmp_path / "none")) == ([], Status(UNAVAILABLE, "no such file"))
