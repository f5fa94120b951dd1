from __future__ import annotations

import socket
from pathlib import Path

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.cri.calls.methods import method
from pycrictl.wire import grpc_http2, hpack, http2, limits
from tests.fakecri import FakeServer

from .recorder import Call, CallReader, Recorder


def begin(stream_id: int, path: bytes, *more: hpack.Header) -> bytes:
    block = hpack.encode([(b":path", path), *more])
    return http2.header_frames(stream_id, block, end_stream=False)


@pytest.mark.parametrize("piece_bytes", [1, 1000, 10**6])
def test_calls_are_found_whatever_the_pieces(piece_bytes: int) -> None:
    message = grpc_http2.prefixed(b"first message")
    long = begin(1, b"/a", (b"x-long", b"v" * 20_000), (b"grpc-timeout", b"1500m"))
    assert len(long) > limits.FRAME_BYTES  # it has a CONTINUATION
    sent = b"".join(
        (
            http2.PREFACE,
            http2.settings(),
            long,
            begin(3, b"/b"),
            http2.frame(http2.DATA, 0, 1, message[:7]),
            http2.frame(http2.DATA, http2.END_STREAM, 3, grpc_http2.prefixed(b"")),
            http2.frame(http2.PING, 0, 0, bytes(8)),
            http2.frame(http2.DATA, http2.END_STREAM, 1, message[7:]),
        )
    )
    calls: list[Call] = []
    reader = CallReader(calls.append)
    for start in range(0, len(sent), piece_bytes):
        reader.receive(sent[start : start + piece_bytes])
    assert [(call.path, call.timeout_s) for call in calls] == [("/a", 1.5), ("/b", None)]
    assert [call.message for call in calls] == [b"first message", b""]


def test_a_client_gets_its_answers_and_its_calls_are_noted(fake: FakeServer) -> None:
    fake.offer("Version", cri_pb2.VersionResponse(version="1" * 200_000))
    version = method("Version")
    requests = [cri_pb2.VersionRequest(version=str(number)) for number in range(20)]
    with Recorder(Path(fake.path), Path(fake.path).with_name("relay")) as recorder:
        with grpc.insecure_channel(f"unix:{recorder.path}") as channel:
            remote: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(version.path)
            pending = [remote.future(each.SerializeToString(), timeout=60) for each in requests]
            answers = [cri_pb2.VersionResponse.FromString(each.result()) for each in pending]
        calls = list(recorder.calls)
    assert {answer.version for answer in answers} == {"1" * 200_000}
    assert {call.path for call in calls} == {version.path}
    assert [call.timeout_s for call in calls] == [pytest.approx(60, abs=5)] * 20
    assert sorted(call.message for call in calls) == sorted(
        each.SerializeToString() for each in requests
    )


def test_a_client_that_cannot_be_read_is_a_failure(fake: FakeServer) -> None:
    recorder = Recorder(Path(fake.path), Path(fake.path).with_name("relay"))
    recorder.__enter__()
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(recorder.path))
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while client.recv(1000):
            pass
    with pytest.raises(AssertionError, match="preface is wrong"):
        recorder.__exit__(None, None, None)
