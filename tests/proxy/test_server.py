"""Calls through the proxy: passed on unchanged, or answered by the proxy itself."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import grpc
import pytest

from pycrictl.proxy.upstream import Answer, CallRequest
from tests.proxy.runtime import (
    MIB,
    OWN,
    PATIENCE_S,
    Proxy,
    Runtime,
    back_again,
    channel_to,
    failure,
    own,
    pairs,
    stream,
    unary,
)


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
