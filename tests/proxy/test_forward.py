"""Calls through the proxy: everything arrives as it was sent, and faults have an end."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from pycrictl.proxy import forward
from pycrictl.proxy.calls import Answer, CallRecord, Request
from pycrictl.proxy.forward import Forwarder, Handler, Peer
from pycrictl.wire import grpc_http2, hpack, http2
from pycrictl.wire.client_call import ClientCall
from tests.proxy.program import Program
from tests.proxy.runtime import Proxy, Runtime, channel_to
from tests.proxy.test_pulls import wait_until

MIB = 1024 * 1024
# No test waits so long unless it fails.
PATIENCE_S = 20.0


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="pcf-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closes what a test opened, in reverse order."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def runtime(folder: Path, stack: ExitStack) -> Runtime:
    runtime = Runtime(folder / "runtime.sock")
    stack.callback(runtime.stop)
    runtime.start()
    return runtime


@pytest.fixture
def serve(folder: Path, stack: ExitStack) -> Callable[..., Proxy]:
    """Starts a proxy in front of `folder/runtime.sock`, with own handlers if given."""

    def start(own: dict[str, Handler] | None = None, **options: Any) -> Proxy:
        upstream = str(folder / "runtime.sock")
        proxy = Proxy(folder / "proxy.sock", lambda: Forwarder(upstream, own=own, **options))
        stack.callback(proxy.close)
        return proxy

    return start


@pytest.fixture
def channel(runtime: Runtime, serve: Callable[..., Proxy], stack: ExitStack) -> grpc.Channel:
    """A client of a proxy in front of a running runtime."""
    return stack.enter_context(channel_to(serve().path))


def unary(channel: grpc.Channel, name: str) -> grpc.UnaryUnaryMultiCallable[bytes, bytes]:
    return channel.unary_unary(f"/test.v1.Test/{name}")


def stream(channel: grpc.Channel, name: str) -> grpc.UnaryStreamMultiCallable[bytes, bytes]:
    return channel.unary_stream(f"/test.v1.Test/{name}")


def conversation(channel: grpc.Channel, name: str) -> grpc.StreamStreamMultiCallable[bytes, bytes]:
    return channel.stream_stream(f"/test.v1.Test/{name}")


def failure(call: Callable[[], object]) -> Any:
    """The error, which is a call as well, with code, details and trailing metadata."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value


def pairs(metadata: Any) -> list[tuple[str, str | bytes]]:
    return [(key, value) for key, value in metadata or ()]


# Everything arrives


def test_all_four_kinds_of_calls(channel: grpc.Channel) -> None:
    assert unary(channel, "Echo")(b"one") == b"one"
    assert list(stream(channel, "Count")(b"3")) == [b"0", b"1", b"2"]
    join: grpc.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary("/test.v1.Test/Join")
    assert join(iter([b"a", b"b", b"c"])) == b"a,b,c"
    chat = conversation(channel, "Chat")
    assert list(chat(iter([b"a", b"", b"c"]))) == [b"<a>", b"<>", b"<c>"]


def test_both_sides_of_a_conversation_flow_at_once(channel: grpc.Channel) -> None:
    answered = threading.Semaphore(1)

    def requests() -> Iterator[bytes]:
        for n in range(5):
            assert answered.acquire(timeout=PATIENCE_S), "no answer before the next request"
            yield b"%d" % n

    chat = conversation(channel, "Chat")
    received = []
    for response in chat(requests(), timeout=PATIENCE_S):
        received.append(response)
        answered.release()
    assert received == [b"<0>", b"<1>", b"<2>", b"<3>", b"<4>"]


def test_metadata_goes_both_ways(channel: grpc.Channel) -> None:
    sent = (
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("baggage", "a=1,b=%20"),
        ("x-twice", "first"),
        ("x-twice", "second"),
        ("x-empty", ""),
        ("x-raw-bin", bytes(range(256))),
    )
    response, call = unary(channel, "Metadata").with_call(b"", metadata=sent)
    received = [tuple(pair) for pair in json.loads(response)]
    as_text = [(key, value if isinstance(value, str) else value.hex()) for key, value in sent]
    assert [pair for pair in received if pair[0] != "user-agent"] == as_text
    assert pairs(call.initial_metadata()) == [("x-first", "1"), ("x-first-bin", b"\x00\xff")]
    assert pairs(call.trailing_metadata()) == [("x-last", "2"), ("x-last-bin", b"\xfe\x00")]


def test_runtime_sees_what_it_would_see_directly(
    folder: Path, serve: Callable[..., Proxy], stack: ExitStack
) -> None:
    """The headers of a call, its names and values in order, with and without the proxy."""
    seen: list[list[hpack.Header]] = []
    answer_frames = http2.header_frames(
        1, hpack.encode([(b":status", b"200"), (b"grpc-status", b"5")]), end_stream=True
    )

    def answer(connection: socket.socket) -> None:
        decoder, buffer, pos = hpack.Decoder(), b"", len(http2.PREFACE)
        connection.sendall(http2.settings())
        while True:
            buffer += connection.recv(65536)
            while len(buffer) > pos and (stop := http2.unit_end(buffer, pos)):
                if buffer[pos + 3] == http2.HEADERS:
                    seen.append(decoder.decode(http2.block_of(buffer, pos, stop)))
                    connection.sendall(answer_frames)
                    return
                pos = stop

    fake(folder / "runtime.sock", stack, [answer, answer])
    for path in (folder / "runtime.sock", serve().path):
        with channel_to(path) as channel:
            failure(
                lambda channel=channel: unary(channel, "Any")(  # type: ignore[misc]
                    b"", timeout=99999, metadata=(("a", "b"), ("grpc-trace-bin", b"\xff"))
                )
            )
    assert len(seen) == 2
    varying = (b"grpc-timeout", b":authority")
    direct, forwarded = ([pair for pair in s if pair[0] not in varying] for s in seen)
    assert forwarded == direct
    assert dict(seen[1])[b":authority"] == b"localhost"
    assert not any(name == b"grpc-encoding" for name, _ in forwarded)


@pytest.mark.parametrize("code", [status for status in grpc.StatusCode if status.value[0]])
def test_status_message_and_details(channel: grpc.Channel, code: grpc.StatusCode) -> None:
    message = f"{code.name}: größer\n\t100% ☃ \x7f"
    error = failure(lambda: unary(channel, "Fail")(json.dumps([code.value[0], message]).encode()))
    assert error.code() is code
    assert error.details() == message
    assert pairs(error.trailing_metadata()) == [
        ("grpc-status-details-bin", b"\x08\x05\x00\xff"),
        ("x-why", "w"),
    ]


def test_empty_message(channel: grpc.Channel) -> None:
    error = failure(lambda: unary(channel, "Fail")(b'[5, ""]'))
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "")


def test_unknown_status_code_and_broken_text_are_not_touched(
    folder: Path, serve: Callable[..., Proxy], stack: ExitStack
) -> None:
    trailers = [
        *grpc_http2.response_headers(),
        (b"grpc-status", b"4242"),
        (b"grpc-message", b"100%\xff"),
        (b"x-odd", b"\xe9"),
    ]

    def answer(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(
            http2.settings() + http2.header_frames(1, hpack.encode(trailers), end_stream=True)
        )
        connection.recv(1)

    fake(folder / "runtime.sock", stack, [answer])
    call = ClientCall("/test.v1.Test/Any", b"")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(serve().path))
        while call.answer is None:
            client.sendall(call.data_to_send())
            data = client.recv(65536)
            assert data
            call.receive_data(data)
    assert call.answer.code == 4242
    assert call.answer.message == "100%ÿ"
    assert call.answer.trailing_metadata == (("x-odd", "é"),)


def test_unimplemented_stream_surfaces_at_the_first_receive(channel: grpc.Channel) -> None:
    call = stream(channel, "NoSuchStream")(b"")  # must not fail yet
    error = failure(lambda: next(call))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert error.details() == "Method not found!"


def test_status_that_ends_a_conversation_early(channel: grpc.Channel) -> None:
    release = threading.Event()

    def requests() -> Iterator[bytes]:
        yield b"hello"
        release.wait(PATIENCE_S)

    call = conversation(channel, "HangUp")(requests())
    assert next(call) == b"hello"
    error = failure(lambda: next(call))
    release.set()
    assert (error.code(), error.details()) == (grpc.StatusCode.ABORTED, "enough")


def test_deadline_is_passed_on_and_none_is_added(channel: grpc.Channel) -> None:
    assert 90 < float(unary(channel, "Deadline")(b"", timeout=100)) <= 110
    assert float(unary(channel, "Deadline")(b"")) > 1e9


@pytest.mark.parametrize("size", [20 * MIB, 0])
def test_large_and_empty_messages(channel: grpc.Channel, size: int) -> None:
    message = hashlib.shake_128(b"seed").digest(size)
    assert unary(channel, "Echo")(message) == message


def test_large_error_message(channel: grpc.Channel, stack: ExitStack, folder: Path) -> None:
    """Longer than a frame, and than what clients of this library accept unless told."""
    message = "runc said: " + "x" * 20_000
    options = [("grpc.absolute_max_metadata_size", MIB), ("grpc.max_metadata_size", MIB)]
    roomy = stack.enter_context(
        grpc.insecure_channel(f"unix://{folder / 'proxy.sock'}", options=options)
    )
    error = failure(lambda: unary(roomy, "Fail")(json.dumps([13, message]).encode()))
    assert (error.code(), error.details()) == (grpc.StatusCode.INTERNAL, message)


def test_long_stream_is_intact(channel: grpc.Channel) -> None:
    received = [int(message) for message in stream(channel, "Count")(b"10000")]
    assert received == list(range(10_000))


def test_a_million_frames(folder: Path, stack: ExitStack) -> None:
    """All of them arrive, and a client that reads late finds none of them kept in memory."""
    count = 1_000_000
    head = http2.header_frames(1, hpack.encode(grpc_http2.response_headers()), end_stream=False)
    end = http2.header_frames(1, hpack.encode(grpc_http2.status_headers(0)), end_stream=True)
    frame_head = http2.frame(http2.DATA, 0, 1, bytes(13))[: http2.HEAD_BYTES] + b"\0\0\0\0\x08"

    def chunks() -> Iterator[bytes]:
        for start in range(0, count, 1000):
            yield b"".join(b"%b%08d" % (frame_head, n) for n in range(start, start + 1000))

    def send(connection: socket.socket) -> None:
        connection.sendall(http2.settings())
        receive_request(connection)
        connection.sendall(head)
        for chunk in chunks():
            connection.sendall(chunk)
        connection.sendall(end)
        wait_for_end(connection)

    proxy = stack.enter_context(Program(folder, f"unix://{folder / 'runtime.sock'}"))
    wait_until(lambda: "no_runtime" in proxy.log())  # it looks for one at its start
    fake(folder / "runtime.sock", stack, [send])
    before_bytes = proxy.peak_bytes()
    received, digest = 0, hashlib.sha256()
    expected_bytes = len(head) + count * 22 + len(end)
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE_S)
        client.connect(str(proxy.socket_path))
        client.sendall(ClientCall("/test.v1.Test/Any", b"").data_to_send())
        settings = client.recv(len(http2.settings()), socket.MSG_WAITALL)
        assert settings == http2.settings()
        time.sleep(0.5)
        while received < expected_bytes:
            data = client.recv(min(MIB, expected_bytes - received))
            assert data
            received += len(data)
            digest.update(data)
    assert proxy.peak_bytes() - before_bytes < 8 * MIB
    expected = hashlib.sha256(head)
    for chunk in chunks():
        expected.update(chunk)
    expected.update(end)
    assert digest.digest() == expected.digest()


def test_many_calls_at_once(channel: grpc.Channel) -> None:
    echo = unary(channel, "Echo")
    calls = [echo.future(b"%d" % n, timeout=PATIENCE_S) for n in range(300)]
    assert [call.result() for call in calls] == [b"%d" % n for n in range(300)]


# Cancellation and backpressure


@pytest.mark.parametrize("name", ["Hang", "Events"])
def test_cancellation_reaches_the_runtime(
    runtime: Runtime, channel: grpc.Channel, name: str
) -> None:
    call = stream(channel, name)(b"")
    runtime.seen.get(timeout=PATIENCE_S)
    cancelled = time.monotonic()
    call.cancel()
    what, when = runtime.seen.get(timeout=PATIENCE_S)
    assert what == "end"
    assert when - cancelled < 1.0


def test_client_that_dies_cancels_its_calls(runtime: Runtime, serve: Callable[..., Proxy]) -> None:
    call = ClientCall("/test.v1.Test/Hang", b"")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(serve().path))
        client.sendall(call.data_to_send())
        runtime.seen.get(timeout=PATIENCE_S)
        died = time.monotonic()
    what, when = runtime.seen.get(timeout=PATIENCE_S)
    assert what == "end"
    assert when - died < 1.0


def test_stream_that_is_never_read_is_not_buffered(runtime: Runtime, channel: grpc.Channel) -> None:
    call = stream(channel, "Flood")(bytes(64 * 1024))
    assert len(next(call)) == 64 * 1024
    sent = settled(lambda: runtime.sent_bytes)
    assert sent < 32 * MIB
    call.cancel()


def test_client_that_never_reads_its_socket_is_not_buffered(
    runtime: Runtime, serve: Callable[..., Proxy]
) -> None:
    """Its windows do not hold anything back: they are as wide as they can be."""
    call = ClientCall("/test.v1.Test/Flood", bytes(32 * 1024))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(serve().path))
        client.sendall(call.data_to_send())
        assert settled(lambda: runtime.sent_bytes) < 16 * MIB


def settled(value: Callable[[], int]) -> int:
    """The value when it has stood still for a moment, and is not zero."""
    last, since = value(), time.monotonic()
    until = since + PATIENCE_S
    while time.monotonic() < until:
        time.sleep(0.02)
        now = value()
        if now != last or not now:
            last, since = now, time.monotonic()
        elif time.monotonic() - since > 0.5:
            return now
    pytest.fail("it never stood still")


# A runtime that is gone


def unavailable(channel: grpc.Channel, path: Path) -> str:
    """The reason why the runtime is unavailable, which is told at once."""
    began = time.monotonic()
    error = failure(lambda: unary(channel, "Echo")(b"", timeout=PATIENCE_S))
    assert time.monotonic() - began < 2.0
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    prefix = f'pycrictl proxy: the runtime at "unix://{path}" '
    assert error.details().startswith(prefix)
    return str(error.details().removeprefix(prefix))


def back_again(channel: grpc.Channel) -> None:
    """The very next call must succeed: nothing remembers that the runtime was away."""
    assert unary(channel, "Echo")(b"back", timeout=PATIENCE_S) == b"back"


def test_runtime_that_starts_after_the_proxy(
    folder: Path, serve: Callable[..., Proxy], stack: ExitStack
) -> None:
    runtime = Runtime(folder / "runtime.sock")
    stack.callback(runtime.stop)
    channel = stack.enter_context(channel_to(serve().path))
    for _ in range(3):
        reason = unavailable(channel, runtime.path)
        assert reason == "cannot be reached: No such file or directory"
    runtime.start()
    back_again(channel)


def test_all_of_many_calls_learn_that_the_runtime_is_down(
    folder: Path, serve: Callable[..., Proxy], stack: ExitStack
) -> None:
    channel = stack.enter_context(channel_to(serve().path))
    for _ in range(5):
        calls = [unary(channel, "Echo").future(b"", timeout=PATIENCE_S) for _ in range(50)]
        details = {str(call.exception().details()) for call in calls}  # type: ignore[union-attr]
        assert len(details) == 1
        assert details.pop().startswith("pycrictl proxy: ")


def test_runtime_killed_during_calls(
    runtime: Runtime, channel: grpc.Channel, stack: ExitStack
) -> None:
    waiting = unary(channel, "Hang").future(b"")
    events = stream(channel, "Events")(b"")
    assert next(events) == b"first"
    for _ in range(2):
        runtime.seen.get(timeout=PATIENCE_S)
    runtime.stop()
    for call in (lambda: waiting.result(timeout=PATIENCE_S), lambda: next(events)):
        error = failure(call)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "cannot be reached" in unavailable(channel, runtime.path)
    again = Runtime(runtime.path)
    stack.callback(again.stop)
    again.start()
    back_again(channel)


def open_connections(path: Path) -> list[str]:
    return [line for line in Path("/proc/net/unix").read_text().splitlines() if str(path) in line]


def test_runtime_that_breaks_off(
    folder: Path, serve: Callable[..., Proxy], stack: ExitStack
) -> None:
    """Before its answer, in the middle of it, and with a GOAWAY before."""

    def before(connection: socket.socket) -> None:
        connection.sendall(http2.settings())
        receive_request(connection)

    def within(connection: socket.socket) -> None:
        before(connection)
        head = hpack.encode(grpc_http2.response_headers())
        message = http2.frame(http2.DATA, 0, 1, grpc_http2.prefixed(b"half"))
        connection.sendall(http2.header_frames(1, head, end_stream=False) + message[:-1])

    def after_goodbye(connection: socket.socket) -> None:
        before(connection)
        connection.sendall(http2.goaway(1, http2.ErrorCode.NO_ERROR))

    path = folder / "runtime.sock"
    fake(path, stack, [before, within, after_goodbye])
    channel = stack.enter_context(channel_to(serve().path))
    for _ in range(3):
        assert unavailable(channel, path) == "closed the connection"


@pytest.mark.parametrize(
    "garbage",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(9), b"\xff" * 4096, b"SSH-2.0-x\r\n", b"\0\0"],
    ids=["http", "zeros", "ones", "text", "short"],
)
def test_runtime_that_answers_garbage(
    folder: Path, serve: Callable[..., Proxy], stack: ExitStack, garbage: bytes
) -> None:
    path = folder / "runtime.sock"
    fake(path, stack, [lambda connection: connection.sendall(garbage)] * 2)
    channel = stack.enter_context(channel_to(serve().path))
    for _ in range(2):
        reason = unavailable(channel, path)
        assert reason in ("does not speak gRPC", "closed the connection")


def test_runtime_that_turns_to_garbage(
    folder: Path, serve: Callable[..., Proxy], stack: ExitStack
) -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(http2.settings())
        receive_request(connection)
        # An index of the compression table that nothing has filled.
        connection.sendall(http2.header_frames(1, b"\xfe", end_stream=True))
        connection.recv(1)

    path = folder / "runtime.sock"
    fake(path, stack, [answer])
    channel = stack.enter_context(channel_to(serve().path))
    assert unavailable(channel, path) == "does not speak gRPC"


def test_runtime_that_hangs(
    folder: Path,
    serve: Callable[..., Proxy],
    stack: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forward, "HANDSHAKE_TIMEOUT_S", 0.2)
    path = folder / "runtime.sock"
    fake(path, stack, [lambda connection: wait_for_end(connection)])
    channel = stack.enter_context(channel_to(serve().path))
    assert unavailable(channel, path) == "does not answer"


def test_client_that_speaks_garbage_is_dropped(
    runtime: Runtime, serve: Callable[..., Proxy], stack: ExitStack
) -> None:
    proxy = serve()
    for garbage in (
        b"GET / HTTP/1.1\r\n\r\n",
        http2.PREFACE + http2.frame(http2.CONTINUATION, 0, 1),
    ):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(PATIENCE_S)
            client.connect(str(proxy.path))
            client.sendall(garbage)
            wait_for_end(client)
    back_again(stack.enter_context(channel_to(proxy.path)))


def receive_request(connection: socket.socket) -> tuple[int, bytes]:
    """Reads until the end of a first call with one frame of data: its stream, and that data."""
    buffer, pos = b"", len(http2.PREFACE)
    while True:
        data = connection.recv(65536)
        if not data:
            raise ConnectionError
        buffer += data
        while len(buffer) > pos and (stop := http2.unit_end(buffer, pos)):
            if buffer[pos + 3] == http2.DATA and buffer[pos + 4] & http2.END_STREAM:
                stream_id = int.from_bytes(buffer[pos + 5 : pos + 9], "big")
                return stream_id, http2.data_of(buffer, pos, stop)
            pos = stop


def wait_for_end(connection: socket.socket) -> None:
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass


def fake(path: Path, stack: ExitStack, answers: list[Callable[[socket.socket], object]]) -> None:
    """A server that treats each connection by the next of `answers`, then closes it."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    listener.settimeout(PATIENCE_S)

    def run() -> None:
        with listener:
            for number, answer in enumerate(answers, start=1):
                connection, _ = listener.accept()
                connection.settimeout(PATIENCE_S)
                if number == len(answers):
                    listener.close()  # who comes now is refused, and need not wait for an answer
                with connection:
                    answer(connection)

    thread = threading.Thread(target=run)
    thread.start()
    stack.callback(listener.close)
    stack.callback(thread.join, PATIENCE_S)


# Own calls


OWN = "/test.v1.Test/Own"


def own(channel: grpc.Channel) -> grpc.UnaryUnaryMultiCallable[bytes, bytes]:
    return channel.unary_unary(OWN)


def test_own_call_is_answered_by_its_handler(
    runtime: Runtime, serve: Callable[..., Proxy], stack: ExitStack
) -> None:
    asked: list[tuple[Request, Peer]] = []

    async def answer(request: Request, peer: Peer) -> Answer:
        asked.append((request, peer))
        return Answer(
            response=request.message[::-1],
            initial_metadata=(("x-first-bin", b"\xff"),),
            trailing_metadata=(("x-last", "2"),),
        )

    channel = stack.enter_context(channel_to(serve({OWN: answer}).path))
    sent = (("traceparent", "00-1"), ("x-raw-bin", b"\x00"))
    response, call = own(channel).with_call(b"abc", timeout=100, metadata=sent)
    assert response == b"cba"
    assert pairs(call.initial_metadata()) == [("x-first-bin", b"\xff")]
    assert pairs(call.trailing_metadata()) == [("x-last", "2")]
    [(request, peer)] = asked
    assert (request.path, request.message) == (OWN, b"abc")
    assert sorted(request.metadata) == sorted(sent)
    assert request.timeout_s is not None
    assert 90 < request.timeout_s <= 110
    assert peer == Peer(*peer_of_this_process())
    assert own(channel)(b"x") == b"x"
    assert asked[1][0].timeout_s is None
    back_again(channel)


def peer_of_this_process() -> tuple[int, int]:
    return os.getpid(), os.getuid()


@pytest.mark.parametrize("trailing", [(), (("grpc-status-details-bin", b"\x08\x08"),)])
def test_own_call_fails(
    runtime: Runtime,
    serve: Callable[..., Proxy],
    stack: ExitStack,
    trailing: tuple[tuple[str, bytes], ...],
) -> None:
    message = "TooManyPullingInParallelErr: 3 × 10 s\n100%"

    async def answer(request: Request, peer: Peer) -> Answer:
        return Answer(8, message, trailing_metadata=trailing)

    channel = stack.enter_context(channel_to(serve({OWN: answer}).path))
    error = failure(lambda: own(channel)(b""))
    assert (error.code(), error.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, message)
    assert pairs(error.trailing_metadata()) == list(trailing)


def test_handler_that_breaks_is_an_internal_error(
    runtime: Runtime,
    serve: Callable[..., Proxy],
    stack: ExitStack,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def answer(request: Request, peer: Peer) -> Answer:
        raise KeyError("secret")

    channel = stack.enter_context(channel_to(serve({OWN: answer}).path))
    error = failure(lambda: own(channel)(b""))
    assert error.code() is grpc.StatusCode.INTERNAL
    assert error.details() == "pycrictl proxy: internal error"
    assert f"handler_failed path={OWN}" in caplog.text
    back_again(channel)


@pytest.mark.parametrize("how", ["cancel", "deadline", "death"])
def test_handler_is_cancelled_with_its_call(
    runtime: Runtime, serve: Callable[..., Proxy], how: str
) -> None:
    began, ended = threading.Event(), threading.Event()

    async def answer(request: Request, peer: Peer) -> Answer:
        began.set()
        try:
            await asyncio.sleep(PATIENCE_S)
        finally:
            ended.set()
        return Answer()

    with channel_to(serve({OWN: answer}).path) as channel:
        call = own(channel).future(b"", timeout=0.3 if how == "deadline" else None)
        assert began.wait(PATIENCE_S)
        if how == "cancel":
            call.cancel()
        elif how == "deadline":
            assert failure(call.result).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        else:
            channel.close()
        assert ended.wait(2.0)


def test_own_calls_work_without_a_runtime(
    folder: Path, serve: Callable[..., Proxy], stack: ExitStack
) -> None:
    release: list[asyncio.Event] = []

    async def answer(request: Request, peer: Peer) -> Answer:
        if request.message == b"wait":
            release.append(asyncio.Event())
            await release[0].wait()
        return Answer(response=request.message)

    proxy = serve({OWN: answer})
    channel = stack.enter_context(channel_to(proxy.path))
    waiting = own(channel).future(b"wait", timeout=PATIENCE_S)
    assert own(channel)(b"x", timeout=PATIENCE_S) == b"x"
    assert "cannot be reached" in unavailable(channel, folder / "runtime.sock")
    assert own(channel)(b"y", timeout=PATIENCE_S) == b"y"

    async def let_go() -> None:
        release[0].set()

    proxy.run(let_go())
    assert waiting.result(timeout=PATIENCE_S) == b"wait"


def test_own_call_outlives_the_runtime(
    runtime: Runtime, serve: Callable[..., Proxy], stack: ExitStack
) -> None:
    began = threading.Event()
    release: list[asyncio.Event] = []

    async def answer(request: Request, peer: Peer) -> Answer:
        release.append(asyncio.Event())
        began.set()
        await release[0].wait()
        return Answer(response=b"still here")

    proxy = serve({OWN: answer})
    channel = stack.enter_context(channel_to(proxy.path))
    back_again(channel)
    call = own(channel).future(b"", timeout=PATIENCE_S)
    assert began.wait(PATIENCE_S)
    runtime.stop()
    assert "cannot be reached" in unavailable(channel, runtime.path)

    async def let_go() -> None:
        release[0].set()

    proxy.run(let_go())
    assert call.result(timeout=PATIENCE_S) == b"still here"


def test_own_and_forwarded_answers_share_the_connection(
    runtime: Runtime, serve: Callable[..., Proxy], stack: ExitStack
) -> None:
    """Megabytes of both at once: a byte too many for a window would end the connection."""

    async def answer(request: Request, peer: Peer) -> Answer:
        return Answer(response=request.message * 3)

    records: list[CallRecord] = []
    proxy = serve({OWN: answer}, on_call=lambda record, peer: records.append(record))
    channel = stack.enter_context(channel_to(proxy.path))
    messages = [hashlib.shake_128(b"%d" % n).digest(200_000) for n in range(40)]
    calls = []
    for message in messages:
        calls.append(own(channel).future(message, timeout=PATIENCE_S))
        calls.append(unary(channel, "Echo").future(message * 3, timeout=PATIENCE_S))
    results = [call.result() for call in calls]
    assert results == [message * 3 for message in messages for _ in range(2)]
    assert len(open_connections(proxy.path)) == 2  # the listening one, and one client's
    assert sorted((record.code, record.is_own) for record in records) == (
        [(0, False)] * 40 + [(0, True)] * 40
    )


def test_no_call_is_carried_out_twice_when_the_runtime_says_goodbye(
    folder: Path, serve: Callable[..., Proxy], stack: ExitStack
) -> None:
    """Its GOAWAY comes while calls are on their way, and gRPC makes those again by itself."""
    asked: list[bytes] = []
    served: list[bytes] = []

    async def answer(request: Request, peer: Peer) -> Answer:
        asked.append(request.message)
        return Answer(response=request.message)

    def one_call_each(connection: socket.socket) -> None:
        connection.sendall(http2.settings())
        try:
            stream_id, content = receive_request(connection)
        except ConnectionError:
            return
        served.append(content)
        connection.sendall(
            http2.goaway(stream_id, http2.ErrorCode.NO_ERROR)
            + http2.header_frames(
                stream_id, hpack.encode(grpc_http2.response_headers()), end_stream=False
            )
            + http2.frame(http2.DATA, 0, stream_id, content)
            + http2.header_frames(
                stream_id, hpack.encode(grpc_http2.status_headers(0)), end_stream=True
            )
        )
        wait_for_end(connection)

    goodbyes = 4
    fake(folder / "runtime.sock", stack, [one_call_each] * goodbyes)
    channel = stack.enter_context(channel_to(serve({OWN: answer}).path))
    expected = [b"%d" % n for n in range(100 * goodbyes)]
    for start in range(0, len(expected), 100):
        calls = [own(channel).future(one, timeout=PATIENCE_S) for one in expected[start:][:50]]
        other = unary(channel, "Any").future(b"%d" % start, timeout=PATIENCE_S)
        calls += [own(channel).future(one, timeout=PATIENCE_S) for one in expected[start:][50:100]]
        assert [call.result() for call in calls] == expected[start:][:100]
        assert other.result() == b"%d" % start
    assert sorted(asked) == sorted(expected)
    assert served == [grpc_http2.prefixed(b"%d" % (100 * n)) for n in range(goodbyes)]


# Pings


def test_pings_never_reach_the_runtime(
    folder: Path, serve: Callable[..., Proxy], stack: ExitStack
) -> None:
    """gRPC's clients ping because of answers, and its servers hang up on too many pings."""
    kinds: list[int] = []
    pinged = threading.Event()

    def watch(connection: socket.socket) -> None:
        connection.sendall(http2.settings() + http2.frame(http2.PING, 0, 0, b"keepaliv"))
        buffer, pos = b"", len(http2.PREFACE)
        while data := connection.recv(65536):
            buffer += data
            while len(buffer) > pos and (stop := http2.unit_end(buffer, pos)):
                if buffer[pos + 3] == http2.PING:
                    kinds.append(buffer[pos + 4])
                    pinged.set()
                pos = stop

    async def answer(request: Request, peer: Peer) -> Answer:
        return Answer(response=bytes(1000))

    fake(folder / "runtime.sock", stack, [watch])
    with channel_to(serve({OWN: answer}).path) as channel:
        for _ in range(100):
            assert len(own(channel)(b"", timeout=PATIENCE_S)) == 1000
        assert pinged.wait(PATIENCE_S)
    stack.close()
    assert kinds == [http2.ACK]


def test_pings_without_end_are_not_buffered(runtime: Runtime, serve: Callable[..., Proxy]) -> None:
    """A client that does not read the answers is not read from; when it reads, it has them all."""
    proxy = serve()
    pings = b"".join(http2.frame(http2.PING, 0, 0, b"%08d" % n) for n in range(4000))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(proxy.path))
        client.sendall(http2.PREFACE + http2.settings())
        client.settimeout(1.0)
        sent = 0

        def flood() -> None:
            nonlocal sent
            while sent < 64 * MIB:
                sent += client.send(pings[sent % len(pings) :])

        with pytest.raises(TimeoutError):
            flood()
        assert sent < 8 * MIB
        with channel_to(proxy.path) as channel:  # nobody else has to wait
            back_again(channel)
        client.settimeout(PATIENCE_S)
        expected = sent // 17
        payloads: list[bytes] = []
        buffer, pos = b"", 0
        while len(payloads) < expected:
            buffer, pos = buffer[pos:] + client.recv(MIB), 0
            while stop := http2.unit_end(buffer, pos):
                if buffer[pos + 3] == http2.PING:
                    payloads.append(buffer[pos + http2.HEAD_BYTES : stop])
                pos = stop
    assert payloads == [b"%08d" % (n % 4000) for n in range(expected)]


# Stopping, and the record


def test_stop_lets_calls_finish(
    runtime: Runtime, serve: Callable[..., Proxy], stack: ExitStack
) -> None:
    began = threading.Event()

    async def answer(request: Request, peer: Peer) -> Answer:
        began.set()
        await asyncio.sleep(0.3)
        return Answer(response=b"finished")

    proxy = serve({OWN: answer})
    channel = stack.enter_context(channel_to(proxy.path))
    events = stream(channel, "Events")(b"")
    assert next(events) == b"first"
    call = own(channel).future(b"", timeout=PATIENCE_S)
    assert began.wait(PATIENCE_S)
    started = time.monotonic()
    proxy.run(proxy.forwarder.stop(drain_s=PATIENCE_S, is_awaited=lambda path: path == OWN))
    assert time.monotonic() - started < 5.0
    assert call.result(timeout=PATIENCE_S) == b"finished"
    error = failure(lambda: next(events))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error.details().endswith("is no longer served: the proxy is stopping")
    with socket.socket(socket.AF_UNIX) as client:
        assert client.connect_ex(str(proxy.path)) == errno.ECONNREFUSED


def test_stop_gives_up_in_the_end(
    runtime: Runtime, serve: Callable[..., Proxy], stack: ExitStack
) -> None:
    began = threading.Event()

    async def answer(request: Request, peer: Peer) -> Answer:
        began.set()
        await asyncio.sleep(PATIENCE_S)
        return Answer()

    proxy = serve({OWN: answer})
    channel = stack.enter_context(channel_to(proxy.path))
    call = own(channel).future(b"", timeout=PATIENCE_S)
    forwarded = unary(channel, "Hang").future(b"", timeout=PATIENCE_S)
    assert began.wait(PATIENCE_S)
    runtime.seen.get(timeout=PATIENCE_S)
    assert sorted(proxy.forwarder.open_paths()) == ["/test.v1.Test/Hang", OWN]
    proxy.run(proxy.forwarder.stop(drain_s=0.2))
    for future in (call, forwarded):
        error = failure(future.result)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert error.details().endswith("the proxy is stopping")
    assert proxy.forwarder.open_paths() == []


def test_record_of_calls(runtime: Runtime, serve: Callable[..., Proxy], stack: ExitStack) -> None:
    records: list[tuple[CallRecord, Peer]] = []
    proxy = serve(on_call=lambda record, peer: records.append((record, peer)))
    channel = stack.enter_context(channel_to(proxy.path))
    unary(channel, "Echo")(b"12345")
    failure(lambda: unary(channel, "Fail")(b'[5, "secret"]'))
    call = unary(channel, "Hang").future(b"")
    runtime.seen.get(timeout=PATIENCE_S)
    call.cancel()
    runtime.seen.get(timeout=PATIENCE_S)
    until = time.monotonic() + PATIENCE_S
    while len(records) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    assert [(record.path, record.code) for record, _ in records] == [
        ("/test.v1.Test/Echo", 0),
        ("/test.v1.Test/Fail", 5),
        ("/test.v1.Test/Hang", 1),
    ]
    first = records[0][0]
    assert (first.request_bytes, first.response_bytes) == (10, 10)
    assert all(record.duration_s >= 0 and not record.is_own for record, _ in records)
    assert {peer for _, peer in records} == {Peer(*peer_of_this_process())}
    assert "secret" not in repr(records)
