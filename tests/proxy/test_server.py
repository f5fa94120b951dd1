"""Calls through the proxy: passed on unchanged, answered by the proxy itself, and in trouble."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import grpc
import pytest

from pycrictl.proxy.upstream import Answer, CallRequest
from tests.processes import connections
from tests.proxy.runtime import (
    MIB,
    OWN,
    PATIENCE_S,
    Proxy,
    Runtime,
    back_again,
    channel_to,
    failure,
    hand_made,
    own,
    pairs,
    stream,
    unary,
    unavailable,
)
from tests.waiting import wait_until
from tools.torture import http2
from tools.torture.attacks import Attacker


def conversation(channel: grpc.Channel, name: str) -> grpc.StreamStreamMultiCallable[bytes, bytes]:
    return channel.stream_stream(f"/test.v1.Test/{name}")


# Calls that are passed on


def test_calls_of_three_kinds(channel: grpc.Channel) -> None:
    assert unary(channel, "Echo")(b"one") == b"one"
    assert list(stream(channel, "Count")(b"3")) == [b"0", b"1", b"2"]
    join: grpc.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary("/test.v1.Test/Join")
    assert join(iter([b"a", b"b", b"c"])) == b"a,b,c"


def test_both_sides_of_a_conversation_flow_at_once(channel: grpc.Channel) -> None:
    answered = threading.Semaphore(1)

    def requests() -> Iterator[bytes]:
        for n in range(5):
            assert answered.acquire(timeout=PATIENCE_S), "no answer before the next request"
            yield b"%d" % n if n else b""

    chat = conversation(channel, "Chat")
    received = []
    for response in chat(requests(), timeout=PATIENCE_S):
        received.append(response)
        answered.release()
    assert received == [b"<>", b"<1>", b"<2>", b"<3>", b"<4>"]


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


def test_status_message_and_details(channel: grpc.Channel) -> None:
    for code in grpc.StatusCode:
        number = code.value[0]
        # The second exceeds a frame and the default metadata limit of gRPC clients.
        for message in (f"{code.name}: größer\n\t100% ☃ \x7f", "runc said: " + "x" * 20_000):
            if number:
                call = json.dumps([number, message]).encode()
                error = failure(partial(unary(channel, "Fail"), call))
                assert (error.code(), error.details()) == (code, message)
                assert pairs(error.trailing_metadata()) == [
                    ("grpc-status-details-bin", b"\x08\x05\x00\xff"),
                    ("x-why", "w"),
                ]


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


def test_how_large_messages_may_be(channel: grpc.Channel) -> None:
    for size in (15 * MIB, 0):
        message = hashlib.shake_128(b"seed").digest(size)
        assert unary(channel, "Echo")(message) == message
    # The client limits responses; the proxy limits requests, as runtimes do.
    assert len(unary(channel, "Large")(b"%d" % (20 * MIB))) == 20 * MIB
    error = failure(lambda: unary(channel, "Echo")(bytes(17 * MIB)))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


# Calls that the proxy answers itself


def test_own_call_is_answered_by_its_handler(
    runtime: Runtime, serve: Callable[..., Proxy], stack: ExitStack
) -> None:
    async def answer(request: CallRequest) -> Answer:
        return Answer(0, "", request.message[::-1], (("x-first-bin", b"\xff"),))

    channel = stack.enter_context(channel_to(serve({OWN: answer}).path))
    response, call = own(channel).with_call(b"abc")
    assert response == b"cba"
    assert pairs(call.initial_metadata()) == [("x-first-bin", b"\xff")]
    back_again(channel)


def test_handler_that_breaks_is_an_internal_error(
    runtime: Runtime,
    serve: Callable[..., Proxy],
    stack: ExitStack,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def answer(request: CallRequest) -> Answer:
        raise KeyError("secret")

    channel = stack.enter_context(channel_to(serve({OWN: answer}).path))
    error = failure(lambda: own(channel)(b""))
    assert error.code() is grpc.StatusCode.INTERNAL
    assert error.details() == "pycrictl proxy: internal error"
    assert f"handler_failed path={OWN}" in caplog.text
    back_again(channel)


def test_handler_is_cancelled_at_the_deadline(
    runtime: Runtime, serve: Callable[..., Proxy]
) -> None:
    began, ended = threading.Event(), threading.Event()

    async def answer(request: CallRequest) -> Answer:
        began.set()
        try:
            await asyncio.sleep(PATIENCE_S)
        finally:
            ended.set()
        return Answer()

    with channel_to(serve({OWN: answer}).path) as channel:
        back_again(channel)  # connecting must not count towards the deadline
        call = own(channel).future(b"", timeout=1.0)
        assert began.wait(PATIENCE_S)
        assert failure(call.result).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert ended.wait(PATIENCE_S / 2)


# While the runtime or a client is gone, hangs, sends garbage, cancels or is slow


# A runtime that is gone


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
    for _ in range(3):
        reason = unavailable(channel, runtime.path)
        assert reason == "cannot be reached: No such file or directory"
    again = Runtime(runtime.path)
    stack.callback(again.stop)
    again.start()
    back_again(channel)


@pytest.mark.parametrize(
    "garbage",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(9), b"\xff" * 4096, b"SSH-2.0-x\r\n", b"\0\0", b""],
    ids=["http", "zeros", "ones", "text", "short", "nothing"],
)
def test_runtime_that_answers_garbage_or_hangs(
    folder: Path,
    serve: Callable[..., Proxy],
    stack: ExitStack,
    garbage: bytes,
) -> None:
    count = 2 if garbage else 1
    path = folder / "runtime.sock"
    hand_made(path, stack, garbage, count)
    proxy = serve(handshake_s=5.0 if garbage else 0.2)
    channel = stack.enter_context(channel_to(proxy.path))
    for _ in range(count):
        assert unavailable(channel, path).startswith("cannot be reached: ")


# Cancellation and backpressure


@pytest.mark.parametrize("name", ["Hang", "Events"])
def test_cancellation_reaches_the_runtime(
    runtime: Runtime, channel: grpc.Channel, name: str
) -> None:
    call = stream(channel, name)(b"")
    runtime.seen.get(timeout=PATIENCE_S)
    call.cancel()
    assert runtime.seen.get(timeout=PATIENCE_S) == "end"


def test_stream_that_is_never_read_is_not_buffered(runtime: Runtime, channel: grpc.Channel) -> None:
    call = stream(channel, "Flood")(bytes(64 * 1024))
    assert len(next(call)) == 64 * 1024

    def stands_still() -> bool:
        before = runtime.sent_bytes
        time.sleep(0.3)
        return before == runtime.sent_bytes

    wait_until(stands_still)
    assert 0 < runtime.sent_bytes < 32 * MIB
    call.cancel()


CROWD, CALLS = 5, 2048


def test_calls_that_others_reset_at_once_are_not_paid_by_a_good_client(
    runtime: Runtime, serve: Callable[..., Proxy], stack: ExitStack
) -> None:
    """The resets arrive while the proxy is busy, before it reads any of them (CVE-2023-44487)."""
    proxy = serve()
    channel = stack.enter_context(channel_to(proxy.path))
    back_again(channel)
    with proxy.busy():
        for _ in range(CROWD):
            attacker = stack.enter_context(closing(Attacker(str(proxy.path))))
            attacker.acknowledge()
            for stream_id in range(1, 2 * CALLS, 2):
                attacker.send(http2.opened(stream_id, "/test.v1.Test/Echo"))
                attacker.send(http2.reset(stream_id))
            attacker.read(wait_s=0.5)
        calls = [unary(channel, "Echo").future(b"x") for _ in range(100)]
        time.sleep(0.5)
    assert [call.result(PATIENCE_S) for call in calls] == [b"x"] * 100


# Pings


def test_keepalives_of_a_client_in_go_are_allowed(
    runtime: Runtime, serve: Callable[..., Proxy]
) -> None:
    """Clients in Go may ping every ten seconds, even without a call."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE_S)
        client.connect(str(serve(ping_s=0.05).path))
        client.sendall(http2.PREFACE + http2.settings())
        received = b""
        for number in range(10):
            client.sendall(http2.frame(http2.PING, 0, 0, b"%08d" % number))
            while b"%08d" % number not in received:
                received += client.recv(MIB)
            time.sleep(0.1)
    assert http2.GOAWAY not in {kind for kind, _, _ in http2.frames(received)}


@pytest.mark.slow
def test_connections_that_are_old_are_left_without_a_failed_call(
    runtime: Runtime, serve: Callable[..., Proxy]
) -> None:
    proxy = serve(age_s=0.3)
    with channel_to(proxy.path) as channel:
        events = stream(channel, "Events")(b"")
        assert next(events) == b"first"
        used = set[str]()

        def has_reconnected() -> bool:
            assert unary(channel, "Echo")(b"x") == b"x"
            used.update(line.split()[6] for line in connections(proxy.path))
            return len(used) > 5

        wait_until(has_reconnected)
        runtime.release.set()
        assert next(events) == b"released"
