from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.cri.calls.methods import method
from tests.fakecri import FakeServer, Status

from .recorder import Recorder


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


def test_an_error_and_a_call_without_a_deadline(fake: FakeServer) -> None:
    fake.offer("Version", Status(grpc.StatusCode.NOT_FOUND, "no such thing"))
    with Recorder(Path(fake.path), Path(fake.path).with_name("relay")) as recorder:
        with grpc.insecure_channel(f"unix:{recorder.path}") as channel:
            remote: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                method("Version").path
            )
            with pytest.raises(grpc.RpcError) as caught:
                remote(b"")
        assert [call.timeout_s for call in recorder.calls] == [None]
    error: grpc.Call = caught.value  # type: ignore[assignment]  # gRPC's errors are calls
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "no such thing")
