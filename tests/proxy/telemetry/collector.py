"""A collector of traces (OTLP over gRPC)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from pycrictl._proto import otlp_pb2


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
