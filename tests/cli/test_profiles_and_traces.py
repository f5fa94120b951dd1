"""Traces and profiles of a run."""

from __future__ import annotations

import pstats
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from pycrictl._proto import cri_pb2, otlp_pb2
from tests.cli.run import Run
from tests.fakecri import FakeServer, Status
from tests.fakecri.answers import VERSION


class Collector:
    def __init__(self) -> None:
        self.endpoint = ""
        self.spans: list[otlp_pb2.Span] = []
        self.services: list[str] = []

    def export(
        self, request: otlp_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> otlp_pb2.ExportTraceServiceResponse:
        for resource in request.resource_spans:
            self.services += [item.value.string_value for item in resource.resource.attributes]
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return otlp_pb2.ExportTraceServiceResponse()


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    export = grpc.unary_unary_rpc_method_handler(
        collector.export,
        request_deserializer=otlp_pb2.ExportTraceServiceRequest.FromString,
        response_serializer=otlp_pb2.ExportTraceServiceResponse.SerializeToString,
    )
    service = "opentelemetry.proto.collector.trace.v1.TraceService"
    handlers = [grpc.method_handlers_generic_handler(service, {"Export": export})]
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, handlers=handlers)
        collector.endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        yield collector
        server.stop(None).wait()


def traced(fake: FakeServer, collector: Collector, *words: str) -> Run:
    tracing = ["--enable-tracing", "--tracing-endpoint", collector.endpoint]
    return Run("-r", fake.endpoint, *tracing, *words)


def test_a_root_span_and_one_for_each_call(fake: FakeServer, collector: Collector) -> None:
    fake.prepare("Version", VERSION)
    assert traced(fake, collector, "version").code == 0
    root, call = collector.spans
    assert (root.name, call.name) == ("version", "runtime.v1.RuntimeService/Version")
    assert {item.key: item.value.string_value for item in call.attributes} == {
        "rpc.system": "grpc",
        "rpc.service": "runtime.v1.RuntimeService",
        "rpc.method": "Version",
    }
    assert not root.attributes
    assert collector.services == ["pycrictl"]
    assert call.parent_span_id == root.span_id
    assert call.trace_id == root.trace_id
    assert root.start_time_unix_nano <= call.start_time_unix_nano
    assert call.end_time_unix_nano <= root.end_time_unix_nano
    expected = f"00-{call.trace_id.hex()}-{call.span_id.hex()}-01"
    assert fake.calls[0].metadata["traceparent"] == expected


def test_a_failed_call_marks_its_span(fake: FakeServer, collector: Collector) -> None:
    fake.prepare("Version", Status(grpc.StatusCode.INTERNAL, "broken"))
    assert traced(fake, collector, "version").code == 1
    assert all(span.status.code == otlp_pb2.Status.STATUS_CODE_ERROR for span in collector.spans)
    assert all("broken" in span.status.message for span in collector.spans)


@pytest.mark.parametrize(
    "option", ["--enable-tracing=false", "--tracing-sampling-rate-per-million=0"]
)
def test_what_traces_nothing(fake: FakeServer, collector: Collector, option: str) -> None:
    fake.prepare("Version", VERSION)
    assert traced(fake, collector, option, "version").code == 0
    assert collector.spans == []
    assert "traceparent" not in fake.calls[0].metadata


def test_a_missing_collector_is_a_warning(fake: FakeServer) -> None:
    fake.prepare("Version", VERSION)
    words = ["--enable-tracing", "--tracing-endpoint", "127.0.0.1:1", "version"]
    run = Run("-r", fake.endpoint, *words)
    assert run.code == 0
    assert run.stdout.startswith("Version:  0.1.0\n")
    assert run.stderr == (
        'pycrictl: warning: the collector at "127.0.0.1:1" does not take traces:'
        " connection refused\n"
    )


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1:", "127.0.0.1:otlp", f":{9**99}"])
@pytest.mark.parametrize("answer", [VERSION, Status(grpc.StatusCode.INTERNAL, "broken")])
def test_an_address_without_a_port_is_a_warning(
    fake: FakeServer, address: str, answer: cri_pb2.VersionResponse | Status
) -> None:
    fake.prepare("Version", answer)
    words = ["--enable-tracing", "--tracing-endpoint", address, "version"]
    run = Run("-r", fake.endpoint, *words)
    assert run.code == (answer is not VERSION)
    assert run.stderr.splitlines()[0] == (
        f'pycrictl: warning: the collector at "{address}" does not take traces:'
        " its address is not HOST:PORT"
    )


def test_profiles(fake: FakeServer, tmp_path: Path) -> None:
    cpu, memory = tmp_path / "cpu", tmp_path / "memory"
    fake.prepare("Version", VERSION)
    profiles = ["--profile-cpu", str(cpu), "--profile-mem", str(memory)]
    run = Run("-r", fake.endpoint, *profiles, "version")
    assert run.code == 0
    assert f"CPU profile written to {cpu}" in run.stderr
    names = {name for _, _, name in pstats.Stats(str(cpu)).stats}  # type: ignore[attr-defined]  # not in typeshed
    assert "version" in names
    assert tracemalloc.Snapshot.load(str(memory)).traces


@pytest.mark.parametrize("option", ["--profile-cpu", "--profile-mem"])
def test_a_profile_that_cannot_be_written(fake: FakeServer, option: str) -> None:
    run = Run("-r", fake.endpoint, option, "/nonexistent/profile", "version")
    assert run.code == 1
    assert run.stderr == (
        'pycrictl: cannot write profile "/nonexistent/profile": No such file or directory\n'
    )
    assert fake.calls == []
