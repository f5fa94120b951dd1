"""Calls that the proxy answers itself, beside those that it forwards."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack

import grpc
import pytest

from pycrictl.proxy.calls import Answer, CallRequest
from tests.proxy.forwarding import (
    OWN,
    PATIENCE_S,
    back_again,
    failure,
    own,
    pairs,
)
from tests.proxy.runtime import Proxy, Runtime, channel_to


def test_own_call_is_answered_by_its_handler(
    runtime: Runtime, serve: Callable[..., Proxy], stack: ExitStack
) -> None:
    asked: list[CallRequest] = []

    async def answer(request: CallRequest) -> Answer:
        asked.append(request)
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
    [request] = asked
    assert (request.path, request.message) == (OWN, b"abc")
    assert sorted(request.metadata) == sorted(sent)
    assert request.timeout_s is not None
    assert 90 < request.timeout_s <= 110
    assert own(channel)(b"x") == b"x"
    assert asked[1].timeout_s is None
    back_again(channel)


@pytest.mark.parametrize("trailing", [(), (("grpc-status-details-bin", b"\x08\x08"),)])
def test_own_call_fails(
    runtime: Runtime,
    serve: Callable[..., Proxy],
    stack: ExitStack,
    trailing: tuple[tuple[str, bytes], ...],
) -> None:
    message = "TooManyPullingInParallelErr: 3 × 10 s\n100%"

    async def answer(request: CallRequest) -> Answer:
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
    async def answer(request: CallRequest) -> Answer:
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

    async def answer(request: CallRequest) -> Answer:
        began.set()
        try:
            await asyncio.sleep(PATIENCE_S)
        finally:
            ended.set()
        return Answer()

    with channel_to(serve({OWN: answer}).path) as channel:
        back_again(channel)  # connecting must not count for the deadline
        call = own(channel).future(b"", timeout=1.0 if how == "deadline" else None)
        assert began.wait(PATIENCE_S)
        if how == "cancel":
            call.cancel()
        elif how == "deadline":
            assert failure(call.result).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        else:
            channel.close()
        assert ended.wait(PATIENCE_S / 2)
