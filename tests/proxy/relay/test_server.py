"""Calls through the proxy: everything arrives as it was sent, and is recorded."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from pycrictl.proxy.relay.calls import CallRecord, Peer
from pycrictl.wire import grpc_http2, hpack, http2
from pycrictl.wire.client_call import ClientCall
from tests.frames import unit_end
from tests.proxy.forwarding import (
    MIB,
    PATIENCE_S,
    failure,
    fake,
    pairs,
    peer_of_this_process,
    receive_request,
    stream,
    unary,
    wait_for_end,
)
from tests.proxy.program import Program
from tests.proxy.runtime import Proxy, Runtime, channel_to
from tests.proxy.sides import FIRST_SETTINGS
from tests.waiting import wait_until


def conversation(channel: grpc.Channel, name: str) -> grpc.StreamStreamMultiCallable[bytes, bytes]:
    return channel.stream_stream(f"/test.v1.Test/{name}")


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
            while len(buffer) > pos and (stop := unit_end(buffer, pos)):
                if buffer[pos + 3] == http2.HEADERS:
                    seen.append(decoder.decode(http2.block_of(buffer, pos, stop)))
                    connection.sendall(answer_frames)
                    return
                pos = stop

    fake(folder / "runtime.sock", stack, [answer, answer])
    for path in (folder / "runtime.sock", serve().path):
        with channel_to(path) as channel:
            failure(
                lambda channel=channel: unary(channel, "Any")(  # type: ignore[misc]  # default
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
        receive_request(connection)
        connection.sendall(
            http2.settings() + http2.header_frames(1, hpack.encode(trailers), end_stream=True)
        )
        wait_for_end(connection)

    fake(folder / "runtime.sock", stack, [answer])
    call = ClientCall("/test.v1.Test/Any", b"")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(serve().path))
        while call.answer is None:
            client.sendall(call.data_to_send())
            data = client.recv(65536)
            assert data
            call.receive_data(data, 0.0)
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
        settings = client.recv(len(FIRST_SETTINGS), socket.MSG_WAITALL)
        assert settings == FIRST_SETTINGS
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


# Stopping, and the record


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
    assert all(record.duration_s >= 0 for record, _ in records)
    assert {peer for _, peer in records} == {Peer(*peer_of_this_process())}
    assert "secret" not in repr(records)
