"""Calls through the proxy that are given up, held back or cut off, and pings without end."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from pycrictl.proxy import server
from tests.proxy import frames
from tests.proxy.forwarding import (
    MIB,
    PATIENCE_S,
    stream,
    unary,
)
from tests.proxy.runtime import Proxy, Runtime, channel_to

# Cancellation and backpressure


@pytest.mark.parametrize("name", ["Hang", "Events"])
def test_cancellation_reaches_the_runtime(
    runtime: Runtime, channel: grpc.Channel, name: str
) -> None:
    call = stream(channel, name)(b"")
    runtime.seen.get(timeout=PATIENCE_S)
    call.cancel()
    assert runtime.seen.get(timeout=PATIENCE_S) == "end"


def call_by_hand(path: Path, method: str, content: bytes) -> socket.socket:
    """A client that makes one call, lets as much come as there may, and reads nothing."""
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(path))
    # SETTINGS_INITIAL_WINDOW_SIZE, and as much for the connection.
    widest = frames.frame(frames.SETTINGS, 0, 0, b"\0\x04\x7f\xff\xff\xff")
    widest += frames.window_update(0, 0x7FFF0000)
    client.sendall(frames.PREFACE + widest)
    client.sendall(frames.opened(1, method) + frames.message(1, content[: frames.FRAME_BYTES - 5]))
    return client


def test_client_that_dies_cancels_its_calls(runtime: Runtime, serve: Callable[..., Proxy]) -> None:
    with call_by_hand(serve().path, "/test.v1.Test/Hang", b""):
        runtime.seen.get(timeout=PATIENCE_S)
    assert runtime.seen.get(timeout=PATIENCE_S) == "end"


def test_stream_that_is_never_read_is_not_buffered(runtime: Runtime, channel: grpc.Channel) -> None:
    call = stream(channel, "Flood")(bytes(64 * 1024))
    assert len(next(call)) == 64 * 1024
    sent = settled(lambda: runtime.sent_bytes)
    assert sent < 32 * MIB
    call.cancel()


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


# Pings


def test_keepalives_of_a_client_in_go_are_allowed(
    runtime: Runtime, serve: Callable[..., Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as it may send them: every ten seconds, without a call."""
    monkeypatch.setattr(server, "PING_S", 0.05)
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE_S)
        client.connect(str(serve().path))
        client.sendall(frames.PREFACE + frames.settings())
        received = b""
        for number in range(10):
            client.sendall(frames.frame(frames.PING, 0, 0, b"%08d" % number))
            while b"%08d" % number not in received:
                received += client.recv(MIB)
            time.sleep(0.1)
    assert frames.GOAWAY not in {kind for kind, _, _ in frames.frames(received)}


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


def connections(path: Path) -> list[str]:
    """The connections to a socket, as /proc/net/unix has them; the last but one is the inode."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return [line for line in lines if line.endswith(str(path)) and line.split()[5] == "03"]
