"""Spans of pulls and copies, as a collector receives them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from pycrictl._proto import cri_pb2, otlp_pb2
from pycrictl.proxy.telemetry.tracing import Context
from tests.e2e.node.kubelet import IMAGE
from tests.fakecri import FakeServer, Status
from tests.proxy.copier import Copier, Pretended, container
from tests.proxy.program import Program
from tests.proxy.telemetry.collector import Collector, collector
from tests.support.limited_pulls import ABSENT, prepare, pulls
from tests.waiting import wait_until

__all__ = ["collector", "container"]

Start = Callable[..., Program]
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def pull(proxy: Program, image: str, traceparent: str = "") -> bytes:
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = proxy.channel.unary_unary(
        IMAGE + "PullImage"
    )
    request = cri_pb2.PullImageRequest(image=cri_pb2.ImageSpec(image=image))
    metadata = (("traceparent", traceparent), ("x", "y")) if traceparent else ()
    return call(request.SerializeToString(), timeout=60, metadata=metadata)


def spans(collector: Collector, count: int) -> list[otlp_pb2.Span]:
    wait_until(lambda: len(collector.spans) >= count)
    return collector.spans


def attributes(span: otlp_pb2.Span) -> dict[str, str]:
    return {one.key: one.value.string_value for one in span.attributes}


def test_the_trace_of_the_caller_goes_on(
    fake: FakeServer, start: Start, collector: Collector
) -> None:
    prepare(fake, cri_pb2.PullImageResponse(image_ref="r"))
    proxy = start("--tracing-endpoint", collector.endpoint)
    before = time.time_ns()
    assert pull(proxy, "a:1", f"00-{TRACE}-{PARENT}-01")
    (span,) = spans(collector, 1)
    assert (span.name, span.trace_id.hex(), span.parent_span_id.hex()) == (
        "PullImage",
        TRACE,
        PARENT,
    )
    assert before <= span.start_time_unix_nano <= span.end_time_unix_nano <= time.time_ns()
    assert attributes(span)["container.image.name"] == "a:1"
    assert attributes(span)["pycrictl.outcome"] == "OK"
    (seen,) = pulls(fake)  # the runtime's spans are children of this one
    assert seen.metadata["traceparent"] == f"00-{TRACE}-{span.span_id.hex()}-01"
    assert seen.metadata["x"] == "y"
    assert f" trace=00-{TRACE}-{span.span_id.hex()}-01" in proxy.log()
    assert collector.services == ["pycrictl-proxy"]


def test_traces_of_its_own_failures_and_what_is_not_sampled(
    fake: FakeServer, start: Start, collector: Collector
) -> None:
    denied = Status(grpc.StatusCode.UNKNOWN, "denied")
    fake.prepare("ImageStatus", ABSENT, repeat=True)
    fake.prepare("PullImage", denied, denied, cri_pb2.PullImageResponse(image_ref="r"))
    proxy = start("--tracing-endpoint", collector.endpoint)
    for traceparent in ("", "odd"):
        with pytest.raises(grpc.RpcError):
            pull(proxy, "a:1", traceparent)
    assert pull(proxy, "a:2", f"00-{TRACE}-{PARENT}-00")
    proxy.terminate()  # unsent spans are sent at shutdown
    assert proxy.wait() == 0
    first, second = collector.spans
    assert first.parent_span_id == second.parent_span_id == b""
    assert first.trace_id != second.trace_id
    assert first.status.code == otlp_pb2.Status.STATUS_CODE_ERROR
    assert first.status.message == "denied"
    assert pulls(fake)[2].metadata["traceparent"] == f"00-{TRACE}-{PARENT}-00"


@pytest.mark.root
def test_a_copy(
    fake: FakeServer, start: Start, collector: Collector, container: Pretended, tmp_path: Path
) -> None:
    proxy = start("--tracing-endpoint", collector.endpoint)
    copier = Copier(proxy)
    with copier.client:
        (container.root / "file").write_bytes(b"content")
        copier.out("/file", tmp_path / "file")
        copier.wait_until_idle()
    (span,) = spans(collector, 1)
    assert span.name == "CopyFromContainer"
    assert attributes(span)["pycrictl.path"] == "/file"
    assert attributes(span)["pycrictl.end"] == "done"


def test_a_collector_that_is_not_there_is_reported_once(fake: FakeServer, start: Start) -> None:
    prepare(fake, cri_pb2.PullImageResponse(image_ref="r"))
    proxy = start("--tracing-endpoint", "127.0.0.1:1")
    assert pull(proxy, "a:1")
    wait_until(lambda: " no_traces " in proxy.log())
    assert pull(proxy, "a:2")
    proxy.terminate()
    assert proxy.wait() == 0
    assert proxy.log().count(" no_traces ") == 1


@pytest.mark.parametrize(
    "text",
    [
        *("", "00-1", f"01-{TRACE}-{PARENT}-01", f"00-{TRACE.upper()}-{PARENT}-01"),
        *(f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE}-{PARENT}-01-x"),
    ],
)
def test_contexts_that_are_none(text: str) -> None:
    assert Context.parse(text) is None
