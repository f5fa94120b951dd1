"""Calls while the runtime or a client is gone, hangs, sends garbage, cancels or is slow."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import grpc
import pytest

from pycrictl.proxy import server, upstream
from tests.processes import connections
from tests.proxy.runtime import (
    MIB,
    PATIENCE_S,
    Proxy,
    Runtime,
    back_again,
    channel_to,
    failure,
    hand_made,
    stream,
    unary,
    unavailable,
)
from tests.waiting import wait_until
from tools.torture import http2
from tools.torture.attacks import Attacker

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
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 2
    if not garbage:
        count = 1
        monkeypatch.setattr(upstream, "HANDSHAKE_TIMEOUT_S", 0.2)
    path = folder / "runtime.sock"
    hand_made(path, stack, garbage, count)
    channel = stack.enter_context(channel_to(serve().path))
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
    runtime: Runtime, serve: Callable[..., Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients in Go may ping every ten seconds, even without a call."""
    monkeypatch.setattr(server, "PING_S", 0.05)
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE_S)
        client.connect(str(serve().path))
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
    runtime: Runtime, serve: Callable[..., Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "AGE_S", 0.3)
    proxy = serve()
    with channel_to(proxy.path) as channel:
        events = stream(channel, "Events")(b"")
        assert next(events) == b"first"
        until, used = time.monotonic() + 2.0, set[str]()
        while time.monotonic() < until:
            assert unary(channel, "Echo")(b"x") == b"x"
            used |= {line.split()[6] for line in connections(proxy.path)}
        assert len(used) > 3
        runtime.release.set()
        assert next(events) == b"released"
