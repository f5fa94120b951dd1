"""Metrics for Prometheus: events are counted as they happen, states are read at each scrape.

This is imported only if metrics are enabled. Names of images and pods are never labels.
"""

from __future__ import annotations

import asyncio
import platform
from collections import Counter as Counter_
from typing import Final

from prometheus_client import Gauge, Histogram, ProcessCollector
from websockets.http11 import Response

from pycrictl import __version__
from pycrictl.base.metricspage import CONTENT_TYPE, MetricsPage
from pycrictl.copy.service.slots import Slots
from pycrictl.proxy.copies.copy_service import CopyService
from pycrictl.proxy.events import (
    CallEnded,
    CopyEnded,
    Event,
    HandOverFailed,
    PullRecorded,
    StreamEnded,
    TookOver,
)
from pycrictl.proxy.pulls.pull_calls import CallOutcome
from pycrictl.proxy.pulls.queue import PullQueue
from pycrictl.proxy.runtime_lookup import problem
from pycrictl.proxy.serve.http_server import MakePage, page
from pycrictl.proxy.serve.stream_server import StreamServer, Tokens
from pycrictl.proxy.upstream import Upstream
from pycrictl.runtime.cri.calls.client import method
from pycrictl.streams.wire import codes

PULL_BUCKETS_S: Final = (
    1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600,
)  # fmt: skip
"""The buckets of ``kubelet_image_pull_duration_seconds``."""

TIMEOUT_S: Final = 2.0


def method_name(path: str) -> str:
    """Return the name of a method of the CRI; ``other`` for all else, which clients may make up."""
    name = path.rpartition("/")[2]
    try:
        method(name)
    except KeyError:
        return "other"
    return name


class Metrics:
    """A consumer of events; ``pages`` shows what it counted."""

    def __init__(
        self,
        upstream: Upstream,
        queue: PullQueue,
        copies: CopyService,
        slots: Slots,
        tokens: Tokens,
        streams: StreamServer,
    ) -> None:
        self._upstream = upstream
        self._slots = slots
        self._tokens = tokens
        self._streams_server = streams
        self._calls: Counter_[tuple[str, ...]] = Counter_()
        page = self._page = MetricsPage("pycrictl_")
        registry = self.registry = page.registry
        ProcessCollector(registry=registry)
        counter, gauge = page.counter, page.gauge

        def seconds(name: str, text: str) -> Histogram:
            return Histogram(f"pycrictl_{name}", text, buckets=PULL_BUCKETS_S, registry=registry)

        build = ("pycrictl_build_info", "The program.", ["version", "python"])
        Gauge(*build, registry=registry).labels(__version__, platform.python_version()).set(1)
        self._up = gauge("upstream_up", "Whether the runtime answered just now.")

        over = "PullImage calls that are over, by outcome and gRPC code."
        self._pulls = counter("pulls", over, "outcome", "code")
        joined = "PullImage calls that waited for an equal one, which succeeded."
        self._joined = counter("pulls_joined", joined)
        waited = "Time from the first call of a pull to its slot."
        self._waited = seconds("pull_wait_seconds", waited)
        pulled = "Time that the runtime took for a pull."
        self._pulled = seconds("pull_duration_seconds", pulled)
        moved = "Bytes of layers that pulls downloaded, found on the node, and unpacked."
        self._bytes = counter("pull_bytes", moved, "phase")
        book = queue.book
        gauge("pulls_running", "Pulls at the runtime.", lambda: len(book.running))
        gauge("pulls_waiting", "Pulls that wait for a slot.", lambda: len(book.line))
        gauge("pull_slots", "The limit of parallel pulls; 0 for none.", lambda: queue.limit)
        gauge("pull_slots_taken", "Slots in use.", lambda: queue.taken)

        over = "Copies that are over, by direction and end."
        self._copies = counter("copies", over, "direction", "end")
        self._copy_bytes = counter("copy_bytes", "Bytes of copies that succeeded.", "direction")
        running = "Copies that are made or about to be."
        gauge("copies_running", running, lambda: len(copies.running))
        self._streams = counter("streams", "Streams that are over, by kind and end.", "kind", "end")
        is_open = "Open connections for progress and copies."
        gauge("streams_open", is_open, lambda: streams.open_count)
        self._handovers = counter("handovers", "Hand-overs between programs, by end.", "end")
        for end in ("taken", "failed"):  # an alert detects a first one only after a 0
            self._handovers.labels(end)
        self._refused_pulls = 0
        over = "Calls that are over, by method and code."
        page.counted("calls", over, self._calls.copy, "method", "code")
        refused = "What was refused, by the limit that it met."
        page.counted("refused", refused, self._refused, "limit")

    # Events

    def __call__(self, event: Event) -> None:
        match event:
            case CallEnded():
                self._calls[method_name(event.path), codes.name_of(event.code)] += 1
            case PullRecorded():
                self._pull(event)
            case CopyEnded():
                self._copies.labels(event.direction, event.end).inc()
                if event.end == "done":
                    self._copy_bytes.labels(event.direction).inc(event.size_bytes)
            case StreamEnded():
                self._streams.labels(f"progress_{event.kind}", event.end).inc()
            case TookOver():
                self._handovers.labels("taken").inc()
            case HandOverFailed():
                self._handovers.labels("failed").inc()

    def _pull(self, event: PullRecorded) -> None:
        call, layers = event.call, event.layers
        outcome = call.outcome
        self._pulls.labels(outcome.value, "other" if call.code.isdigit() else call.code).inc()
        self._refused_pulls += outcome is CallOutcome.REFUSED
        if call.is_joined:
            self._joined.inc()
            return
        # A pull waits once, however many attempts and equal calls follow.
        if call.attempt == 1 and outcome is not CallOutcome.PRESENT:
            self._waited.observe(call.waited_s)
        if outcome is CallOutcome.PULLED:
            self._pulled.observe(call.pulled_s)
        if layers is not None:
            self._bytes.labels("downloaded").inc(layers.got_bytes)
            self._bytes.labels("reused").inc(layers.reused_bytes)
            self._bytes.labels("extracted").inc(layers.extracted_bytes)

    def _refused(self) -> dict[tuple[str, ...], int]:
        others = {
            "pull_slots": self._refused_pulls,
            "stream_urls": self._tokens.refused,
            "stream_connections": self._streams_server.dropped.count,
        }
        counts = self._slots.refused + Counter_(others)
        return {(limit,): number for limit, number in counts.items()}

    # Pages

    def pages(self) -> dict[str, MakePage]:
        return {"/metrics": self._metrics, "/livez": self._live, "/readyz": self._ready}

    async def _metrics(self) -> Response:
        self._up.set(not await problem(self._upstream, TIMEOUT_S))
        # Takes some milliseconds, which must not delay calls.
        body = await asyncio.to_thread(self._page.text)
        return page(200, body, CONTENT_TYPE)

    async def _live(self) -> Response:
        return page(200, b"ok\n")

    async def _ready(self) -> Response:
        reason = await problem(self._upstream, TIMEOUT_S)
        return page(503, f"{reason}\n".encode()) if reason else page(200, b"ok\n")
