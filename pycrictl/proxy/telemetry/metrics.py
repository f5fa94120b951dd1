"""Counters for Prometheus: a consumer of events. ``pages`` adds the gauges.

A new counter is a line of ``COUNTERS`` and a case of ``additions``. Names of images and pods are
never labels. This is imported only if metrics are enabled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client import Histogram

from pycrictl.base.metricspage import MetricsPage
from pycrictl.proxy import events
from pycrictl.proxy.pulls.pull_calls import CallOutcome
from pycrictl.runtime.cri.calls.client import method
from pycrictl.streams.wire import codes

COUNTERS: Final = (
    ("calls", "Calls that are over, by method and code.", "method", "code"),
    ("pulls", "PullImage calls that are over, by outcome and gRPC code.", "outcome", "code"),
    ("pulls_joined", "PullImage calls that waited for an equal call, and succeeded with it."),
    ("pull_bytes", "Bytes of layers that were downloaded, reused, and unpacked.", "phase"),
    ("copies", "Copies that are over, by direction and end.", "direction", "end"),
    ("copy_bytes", "Bytes of copies that succeeded.", "direction"),
    ("streams", "Streams that are over, by kind and end.", "kind", "end"),
    ("handovers", "Hand-overs between programs, by end.", "end"),
)
"""Name, text for the page, and labels."""

PULL_BUCKETS_S: Final = (
    1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600,
)  # fmt: skip
"""The buckets of ``kubelet_image_pull_duration_seconds``."""


def additions(event: events.Event) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """Yield what an event adds: the name of a counter, the values of its labels, a number."""
    match event:
        case events.CallEnded():
            yield "calls", (method_name(event.path), codes.name_of(event.code)), 1
        case events.PullRecorded(call, layers):
            code = "other" if call.code.isdigit() else call.code
            yield "pulls", (call.outcome.value, code), 1
            if call.is_joined:
                yield "pulls_joined", (), 1
            elif layers is not None:
                yield "pull_bytes", ("downloaded",), layers.got_bytes
                yield "pull_bytes", ("reused",), layers.reused_bytes
                yield "pull_bytes", ("extracted",), layers.extracted_bytes
        case events.CopyEnded():
            yield "copies", (event.direction, event.end), 1
            if event.end == "done":
                yield "copy_bytes", (event.direction,), event.size_bytes
        case events.StreamEnded():
            yield "streams", (f"progress_{event.kind}", event.end), 1
        case events.TookOver():
            yield "handovers", ("taken",), 1
        case events.HandOverFailed():
            yield "handovers", ("failed",), 1


class Metrics:
    def __init__(self, page: MetricsPage) -> None:
        self.page = page
        self._counts: dict[str, Counter[tuple[str, ...]]] = {}
        for name, text, *labels in COUNTERS:
            counted = self._counts[name] = Counter()
            page.counted(name, text, counted.copy, *labels)
        self._counts["pulls_joined"][()] = 0
        for end in ("taken", "failed"):  # an alert detects the first increase only after a 0
            self._counts["handovers"][end,] = 0
        waited = "pycrictl_pull_wait_seconds", "Time from the first call of a pull to its slot."
        self._waited = Histogram(*waited, buckets=PULL_BUCKETS_S, registry=page.registry)
        pulled = "pycrictl_pull_duration_seconds", "Time that the runtime took for a pull."
        self._pulled = Histogram(*pulled, buckets=PULL_BUCKETS_S, registry=page.registry)

    def __call__(self, event: events.Event) -> None:
        for name, labels, number in additions(event):
            self._counts[name][labels] += number
        if isinstance(event, events.PullRecorded) and not event.call.is_joined:
            outcome = event.call.outcome
            # A pull waits once, however many attempts and equal calls follow.
            if event.call.attempt == 1 and outcome is not CallOutcome.PRESENT:
                self._waited.observe(event.call.waited_s)
            if outcome is CallOutcome.PULLED:
                self._pulled.observe(event.call.pulled_s)


def method_name(path: str) -> str:
    """Return the name of a method of the CRI; ``other`` for others, which clients may invent."""
    name = path.rpartition("/")[2]
    try:
        method(name)
    except KeyError:
        return "other"
    return name
