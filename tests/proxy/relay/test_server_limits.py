"""Calls through the proxy that are given up, held back or cut off, and pings without end."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import pytest

from pycrictl.proxy.relay.calls import Answer, CallRequest, Peer
from pycrictl.wire import http2, limits
from pycrictl.wire.client_call import ClientCall
from tests.frames import unit_end, units
from tests.proxy.forwarding import (
    MIB,
    OWN,
    PATIENCE_S,
    back_again,
    failure,
    fake,
    own,
    stream,
    unary,
    wait_for_end,
)
from tests.proxy.runtime import Proxy, Runtime, channel_to
from tests.proxy.sides import opened
from tests.waiting import wait_until

# Cancellation and backpressure


@pytest.mark.parametrize("name", ["Hang", "Events"])
def test_cancellation_reaches_the_runtime(
    runtime: Runtime, channel: grpc.Channel, name: str
) -> None:
    call = stream(channel, name)(b"")
    runtime.seen.get(timeout=PATIENCE_S)
    call.cancel()
    assert runtime.seen.get(timeout=PATIENCE_S) == "end"


def test_client_that_dies_cancels_its_calls(runtime: Runtime, serve: Callable[..., Proxy]) -> None:
    call = ClientCall("/test.v1.Test/Hang", b"")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(serve().path))
        client.sendall(call.data_to_send())
        runtime.seen.get(timeout=PATIENCE_S)
    assert runtime.seen.get(timeout=PATIENCE_S) == "end"


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
            while len(buffer) > pos and (stop := unit_end(buffer, pos)):
                if buffer[pos + 3] == http2.PING:
                    kinds.append(buffer[pos + 4])
                    pinged.set()
                pos = stop

    async def answer(request: CallRequest, peer: Peer) -> Answer:
        return Answer(response=bytes(1000))

    fake(folder / "runtime.sock", stack, [watch])
    with channel_to(serve({OWN: answer}).path) as channel:
        for _ in range(100):
            assert len(own(channel)(b"", timeout=PATIENCE_S)) == 1000
        assert pinged.wait(PATIENCE_S)
    stack.close()
    assert kinds == [http2.ACK]


def test_pings_without_end_end_the_connection(
    runtime: Runtime, serve: Callable[..., Proxy], caplog: pytest.LogCaptureFixture
) -> None:
    """With the reason, and one line in the log; others are served on."""
    proxy = serve()
    ping = http2.frame(http2.PING, 0, 0, bytes(8))
    with channel_to(proxy.path) as channel, socket.socket(socket.AF_UNIX) as client:
        back_again(channel)
        client.settimeout(PATIENCE_S)
        client.connect(str(proxy.path))
        client.sendall(http2.PREFACE + http2.settings())
        received = b""
        with suppress(ConnectionError):
            for _ in range(10_000):
                client.sendall(ping)
        with suppress(ConnectionError):
            while data := client.recv(MIB):
                received += data
        back_again(channel)
    *_, last = units(received)
    assert last.raw == http2.goaway(0, http2.ErrorCode.ENHANCE_YOUR_CALM)
    assert caplog.text.count("client_error") == 1
    assert f'pid={os.getpid()} error="HTTP/2: too many frames carry nothing"' in caplog.text


def test_log_of_floods_is_short(
    runtime: Runtime, serve: Callable[..., Proxy], caplog: pytest.LogCaptureFixture
) -> None:
    proxy = serve()
    for _ in range(5 * limits.FAULT_LINES):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(PATIENCE_S)
            client.connect(str(proxy.path))
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            wait_for_end(client)
    assert limits.FAULT_LINES <= caplog.text.count("client_error") <= 2 * limits.FAULT_LINES


def test_what_nobody_reads_is_not_buffered(
    runtime: Runtime, serve: Callable[..., Proxy], stack: ExitStack
) -> None:
    """A client that does not read the answers is not read from; when it reads, it has them all."""

    async def answer(request: CallRequest, peer: Peer) -> Answer:
        return Answer()

    proxy = serve({OWN: answer})
    pieces = http2.frame(http2.DATA, 0, 1, b"\0") * 4000
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(proxy.path))
        client.sendall(http2.PREFACE + http2.settings() + opened(1, OWN))
        client.sendall(http2.frame(http2.DATA, 0, 1, b"\0\0\x3f\xff\xff"))  # of 4 MiB
        client.settimeout(1.0)
        sent = 0

        def flood() -> None:
            nonlocal sent
            while sent < 40 * MIB:
                sent += client.send(pieces[sent % 10 :])

        with pytest.raises(TimeoutError):
            flood()
        assert sent < 8 * MIB
        with channel_to(proxy.path) as channel:  # nobody else has to wait
            back_again(channel)
        client.settimeout(PATIENCE_S)
        expected = sent // 10 + 5
        widened, received = 0, b""
        while widened < expected:
            received += client.recv(MIB)
            pos = 0
            for unit in units(received):
                pos += len(unit.raw)
                if unit.kind == http2.WINDOW_UPDATE and unit.stream_id == 1:
                    widened += int.from_bytes(unit.payload, "big")
            received = received[pos:]
    assert widened == expected


def test_who_is_refused_and_reads_nothing_is_cut_off(
    runtime: Runtime, serve: Callable[..., Proxy]
) -> None:
    """It would keep its connection, and what waits for it, for ever."""
    proxy = serve()
    with channel_to(proxy.path) as channel, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(proxy.path))
        client.sendall(ClientCall("/test.v1.Test/Flood", bytes(32 * 1024)).data_to_send())
        settled(lambda: runtime.sent_bytes)
        assert proxy.forwarder.open_paths() == ["/test.v1.Test/Flood"]
        client.sendall(http2.frame(http2.PRIORITY, 0, 0, bytes(5)))
        wait_until(lambda: not proxy.forwarder.open_paths())
        back_again(channel)


# Stopping, and the record


def test_stop_lets_calls_finish(
    runtime: Runtime, serve: Callable[..., Proxy], stack: ExitStack
) -> None:
    began = threading.Event()

    async def answer(request: CallRequest, peer: Peer) -> Answer:
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
    assert time.monotonic() - started < PATIENCE_S
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

    async def answer(request: CallRequest, peer: Peer) -> Answer:
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
