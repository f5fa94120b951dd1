"""Calls over a channel: answers, ends, and servers that break the rules."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.cri.calls import obstacle
from pycrictl.cri.calls.channel import Channel, ChannelCall, unix
from pycrictl.cri.calls.errmap import Status
from pycrictl.wire import codes, limits
from tests.fakecri import FakeServer, hostile
from tests.fakecri import Status as FakeStatus
from tests.waiting import wait_until

IMAGES = "/runtime.v1.ImageService/ListImages"
EVENTS = "/runtime.v1.RuntimeService/GetContainerEvents"
STATUS_404 = b"\0\0\1\1\5\0\0\0\1\x8d"
"""HTTP/2: a HEADERS frame that ends its stream, with the entry 13 of HPACK's static table."""
GOAWAY = b"\0\0\x10\7\0\0\0\0\0" + bytes(4) + b"\0\0\0\2" + b"\x1b[2Jgone"

Script = Callable[[socket.socket], None]
Serve = Callable[[Script], str]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Serves every connection by a script, in a thread; gives the socket's path."""
    listener = socket.socket(socket.AF_UNIX)
    path = str(tmp_path / "s")
    listener.bind(path)
    listener.listen()
    threads: list[threading.Thread] = []

    def accept(script: Script) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threads.append(threading.Thread(target=answer, args=(connection, script)))
                threads[-1].start()

    def answer(connection: socket.socket, script: Script) -> None:
        with connection, suppress(OSError):
            connection.settimeout(60)
            script(connection)

    def start(script: Script) -> str:
        threads.append(threading.Thread(target=accept, args=(script,)))
        threads[0].start()
        return path

    yield start
    listener.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join()
    listener.close()


@pytest.fixture
def opened() -> Iterator[Callable[..., Channel]]:
    """Opens a channel to a path, and closes it in the end."""
    channels: list[Channel] = []

    def open_channel(path: str, *, handshake_s: float = 20.0) -> Channel:
        channels.append(unix(path, handshake_s=handshake_s))
        return channels[-1]

    yield open_channel
    for channel in channels:
        channel.close()


Opened = Callable[..., Channel]


def images_of(channel: Channel, *, timeout_s: float | None = 30.0) -> ChannelCall:
    return ChannelCall(channel, IMAGES, b"", timeout_s=timeout_s)


def read_to_the_end(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


def test_an_answer(fake: FakeServer, opened: Opened) -> None:
    fake.prepare("ListImages", cri_pb2.ListImagesResponse(images=[cri_pb2.Image(id="i")]))
    call = images_of(opened(fake.path))
    (message,) = call.messages()
    assert cri_pb2.ListImagesResponse.FromString(message).images[0].id == "i"
    assert call.status == Status(codes.OK)


def test_the_status_of_the_server(fake: FakeServer, opened: Opened) -> None:
    fake.prepare("ListImages", FakeStatus(grpc.StatusCode.NOT_FOUND, "no such thing"))
    call = images_of(opened(fake.path))
    assert list(call.messages()) == []
    assert call.status == Status(codes.NOT_FOUND, "no such thing")


def test_the_messages_of_a_stream_come_in_order(fake: FakeServer, opened: Opened) -> None:
    events = [cri_pb2.ContainerEventResponse(container_id=str(n)) for n in range(3)]
    fake.prepare("GetContainerEvents", events)
    call = ChannelCall(opened(fake.path), EVENTS, b"", timeout_s=30.0, is_stream=True)
    found = [cri_pb2.ContainerEventResponse.FromString(each) for each in call.messages()]
    assert found == events


def test_waiting_for_the_end_of_a_call_has_a_limit(fake: FakeServer, opened: Opened) -> None:
    def late(request: object, context: object) -> cri_pb2.ListImagesResponse:
        time.sleep(0.5)
        return cri_pb2.ListImagesResponse()

    fake.prepare("ListImages", late)
    call = images_of(opened(fake.path))
    call.receive(time.monotonic() + 0.01)
    assert call.status is None
    call.receive()
    assert call.status == Status(codes.OK)
    call.cancel()
    assert call.status == Status(codes.OK)


def test_calls_share_a_channel(fake: FakeServer, opened: Opened) -> None:
    fake.prepare("ListImages", cri_pb2.ListImagesResponse(), repeat=True)
    channel = opened(fake.path)
    open_after = []
    for _ in range(5):
        assert list(images_of(channel).messages()) == [b""]
        open_after.append(len(list(Path("/proc/self/fd").iterdir())))
    assert open_after[1:] == open_after[:1] * 4


def test_a_message_above_the_limit(fake: FakeServer, opened: Opened) -> None:
    image = cri_pb2.Image(id="i" * (limits.MESSAGE_BYTES + 1))
    fake.prepare("ListImages", cri_pb2.ListImagesResponse(images=[image]))
    call = images_of(opened(fake.path))
    assert list(call.messages()) == []
    assert call.status is not None
    assert call.status.code == codes.RESOURCE_EXHAUSTED
    assert limits.MESSAGE_BYTES < call.status.oversize_bytes < limits.MESSAGE_BYTES + 100


def test_leaving_a_stream_cancels_it(fake: FakeServer, opened: Opened) -> None:
    reached, left = threading.Event(), threading.Event()

    def wait(request: object, context: grpc.ServicerContext) -> FakeStatus:
        context.add_callback(left.set)
        reached.set()
        left.wait(60)
        return FakeStatus(grpc.StatusCode.CANCELLED, "")

    fake.prepare("GetContainerEvents", [cri_pb2.ContainerEventResponse(), wait])
    call = ChannelCall(opened(fake.path), EVENTS, b"", timeout_s=None, is_stream=True)
    messages = call.messages()
    next(messages)
    assert reached.wait(60)
    messages.close()
    assert left.wait(30)


def test_ctrl_c_ends_a_call_to_a_server_that_says_nothing_more(
    serve: Serve, opened: Opened
) -> None:
    def script(connection: socket.socket) -> None:
        connection.sendall(hostile.HTTP2_SETTINGS)
        read_to_the_end(connection)

    call = images_of(opened(serve(script)), timeout_s=None)
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(call.messages())
    assert time.monotonic() - started < 20


# What is no gRPC server


def test_nothing_is_there(tmp_path: Path, opened: Opened) -> None:
    call = images_of(opened(str(tmp_path / "none.sock")))
    assert list(call.messages()) == []
    assert call.status is not None
    assert call.status.code == codes.UNAVAILABLE
    assert call.status.obstacle is not None
    assert call.status.obstacle.reason == "no such file"


@pytest.mark.parametrize("answer", [b"", hostile.HTTP2_SETTINGS[:5]])
def test_a_server_that_says_nothing_has_less_time_than_the_call(
    serve: Serve, opened: Opened, answer: bytes
) -> None:
    def script(connection: socket.socket) -> None:
        connection.sendall(answer)
        read_to_the_end(connection)

    call = images_of(opened(serve(script), handshake_s=0.1), timeout_s=None)
    assert list(call.messages()) == []
    assert call.status is not None
    assert call.status.obstacle == obstacle.SILENT


@pytest.mark.parametrize("answer", [b"", hostile.HTTP2_SETTINGS[:5]])
def test_a_server_that_closes(serve: Serve, opened: Opened, answer: bytes) -> None:
    call = images_of(opened(serve(lambda connection: connection.sendall(answer))), timeout_s=5)
    assert list(call.messages()) == []
    assert call.status is not None
    assert call.status.obstacle == obstacle.CLOSES


def test_a_web_server_of_http2(serve: Serve, opened: Opened) -> None:
    def script(connection: socket.socket) -> None:
        connection.sendall(hostile.HTTP2_SETTINGS)
        data = b""
        while b"\0\1\4\0\0\0\1" not in data and b"\1\4\0\0\0\1" not in data:
            data += connection.recv(65536)
        connection.sendall(STATUS_404)
        read_to_the_end(connection)

    call = images_of(opened(serve(script)), timeout_s=20)
    assert list(call.messages()) == []
    assert call.status is not None
    assert call.status.obstacle == obstacle.web_server("404")


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (b"HTTP/1.1 400 Bad Request", "HTTP/1.1 400 Bad Request"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH-2.0-OpenSSH_9.2"),
        (b"\x1b[2J\xff\xfe" + b"y" * 5000, r"\x1b[2J��yyyy"),
        # An acknowledgement, and a PING, are no beginning of HTTP/2.
        (hostile.HTTP2_SETTINGS_ACK, r"\x00\x00\x00\x04\x01"),
        (b"\0\0\x08\6\0\0\0\0\0" + b"12345678", r"\x00\x00\x08\x06\x00"),
    ],
)
def test_other_servers(serve: Serve, answer: bytes, shown: str) -> None:
    def script(connection: socket.socket) -> None:
        connection.sendall(answer)
        read_to_the_end(connection)

    found = obstacle.look(serve(script), timeout_s=60)
    assert found is not None
    assert found.reason.startswith(f'it is not a gRPC server: it answers "{shown}')
    assert found.reason.isprintable()
    assert len(found.reason) < 350


def test_looking_at_a_server(fake: FakeServer, tmp_path: Path) -> None:
    assert obstacle.look(fake.path, timeout_s=60) is None
    missing = obstacle.look(str(tmp_path / "none"), timeout_s=60)
    assert missing is not None
    assert missing.reason == "no such file"
    with hostile.hung() as path:
        assert obstacle.look(path, timeout_s=0.2) == obstacle.SILENT


def test_what_a_server_sends_never_reaches_the_terminal_by_grpcs_log(serve: Serve) -> None:
    def script(connection: socket.socket) -> None:
        connection.sendall(hostile.HTTP2_SETTINGS + GOAWAY)
        read_to_the_end(connection)

    path = serve(script)
    code = (
        "import sys; from pycrictl.cri.calls.channel import ChannelCall, unix;"
        f"call = ChannelCall(unix({path!r}), {IMAGES!r}, b'', timeout_s=2);"
        "list(call.messages()); print(call.status.code)"
    )
    environ = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60
    )
    assert ran.stderr == ""
    assert int(ran.stdout) in (codes.UNAVAILABLE, codes.DEADLINE_EXCEEDED)


def test_a_call_in_another_thread_can_be_cancelled(serve: Serve, opened: Opened) -> None:
    def script(connection: socket.socket) -> None:
        connection.sendall(hostile.HTTP2_SETTINGS)
        read_to_the_end(connection)

    call = images_of(opened(serve(script)), timeout_s=None)
    thread = threading.Thread(target=lambda: list(call.messages()))
    thread.start()
    call.cancel()
    thread.join(60)
    wait_until(lambda: call.status is not None)
    assert call.status == Status(codes.CANCELLED)


def test_the_librarys_threads_take_no_signal_that_ends_the_program(fake: FakeServer) -> None:
    fake.prepare("ListImages", cri_pb2.ListImagesResponse())
    # While the channel is open: its threads end with it.
    code = f"""
import pathlib
from pycrictl.cri.calls.channel import ChannelCall, unix
channel = unix({fake.path!r})
for _ in ChannelCall(channel, {IMAGES!r}, b"", timeout_s=30).messages():
    for path in pathlib.Path("/proc/self/task").glob("*/status"):
        try:
            print(path.read_text().partition("SigBlk:")[2].split()[0])
        except (FileNotFoundError, ProcessLookupError):
            pass
"""
    said = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60)
    masks = [int(word, 16) for word in said.split()]
    ending = sum(1 << (number - 1) for number in (signal.SIGINT, signal.SIGTERM))
    assert len(masks) > 2
    assert [mask & ending for mask in masks].count(0) == 1  # the main thread's
