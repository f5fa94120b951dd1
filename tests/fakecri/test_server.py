"""The fake has to be right before what is tested with it can be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from pycrictl._proto import cri_pb2
from tests.fakecri import FakeServer, Status, serve

PREFIX = "/runtime.v1.RuntimeService/"


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with serve() as server:
        yield server


@pytest.fixture
def channel(server: FakeServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"unix:{server.path}") as channel:
        yield channel


def ask(channel: grpc.Channel, path: str = PREFIX + "Version", request: bytes = b"") -> bytes:
    remote: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
    return remote(request, timeout=60, metadata=(("a", "b"),))


def status_of(channel: grpc.Channel, path: str = PREFIX + "Version") -> tuple[object, str | None]:
    with pytest.raises(grpc.RpcError) as caught:
        ask(channel, path)
    assert isinstance(caught.value, grpc.Call)
    return caught.value.code(), caught.value.details()


def test_answers_come_in_order(server: FakeServer, channel: grpc.Channel) -> None:
    version = cri_pb2.VersionResponse(version="1")
    server.prepare("Version", version, b"raw", None)
    server.prepare("Version", lambda request, context: cri_pb2.VersionResponse())
    assert ask(channel) == version.SerializeToString()
    assert [ask(channel), ask(channel), ask(channel)] == [b"raw", b"", b""]
    assert server.unused() == {}


def test_calls_are_recorded(server: FakeServer, channel: grpc.Channel) -> None:
    server.prepare("Version", b"")
    ask(channel, request=cri_pb2.VersionRequest(version="v1").SerializeToString())
    (call,) = server.calls
    assert call.method == "Version"
    assert call.request == cri_pb2.VersionRequest(version="v1")
    assert call.deadline_s == pytest.approx(60, abs=20)
    assert call.metadata["a"] == "b"


def test_errors(server: FakeServer, channel: grpc.Channel) -> None:
    server.prepare("Version", Status(grpc.StatusCode.ABORTED, "no"), ValueError("bad"))
    assert status_of(channel) == (grpc.StatusCode.ABORTED, "no")
    assert status_of(channel) == (grpc.StatusCode.UNKNOWN, "bad")


def test_what_is_not_prepared_is_not_implemented(channel: grpc.Channel) -> None:
    assert status_of(channel) == (
        grpc.StatusCode.UNIMPLEMENTED,
        "unknown method Version for service runtime.v1.RuntimeService",
    )
    for path in (PREFIX + "NoSuchCall", "/runtime.v1.ImageService/Version", "/x.Y/Version"):
        assert status_of(channel, path)[0] is grpc.StatusCode.UNIMPLEMENTED


def test_streams(server: FakeServer, channel: grpc.Channel) -> None:
    server.prepare("GetContainerEvents", [b"", Status(grpc.StatusCode.INTERNAL, "end")], [])
    remote: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(
        PREFIX + "GetContainerEvents"
    )
    answers = remote(b"", timeout=60)
    assert next(answers) == b""
    with pytest.raises(grpc.RpcError, match="end"):
        next(answers)
    assert list(remote(b"", timeout=60)) == []


def test_repeated_answers(server: FakeServer, channel: grpc.Channel) -> None:
    server.prepare("Version", b"\x0a\x011", b"", repeat=True)
    assert server.unused() == {"Version": 2}
    assert [ask(channel) for _ in range(4)] == [b"\x0a\x011", b"", b"", b""]
    assert server.unused() == {}


def test_an_unused_answer_fails_the_block() -> None:
    with pytest.raises(AssertionError, match=r"prepared but never asked for: \{'Version': 2\}"):
        with serve() as server:
            server.prepare("Version", b"", b"")
    assert not Path(server.path).exists()


def test_mistakes_are_told_when_preparing(server: FakeServer) -> None:
    with pytest.raises(KeyError):
        server.prepare("NoSuchCall", b"")
    with pytest.raises(AssertionError):
        server.prepare("Version", [b""])
    with pytest.raises(AssertionError):
        server.prepare("GetContainerEvents", b"")
    with pytest.raises(AssertionError):
        server.prepare("Version")
