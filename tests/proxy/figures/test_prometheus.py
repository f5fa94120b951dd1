"""The text of metrics is what the library would write, without all that it would load."""

from __future__ import annotations

import math
import subprocess
import sys

from prometheus_client import generate_latest

from pycrictl.proxy.figures.prometheus import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    text_of,
)


def test_the_text_is_the_library_s() -> None:
    disable_created_metrics()  # type: ignore[no-untyped-call]  # the library's
    registry = CollectorRegistry()
    pulls = Counter("pulls", "A \\ and\ntwo lines.", ["outcome", "code"], registry=registry)
    pulls.labels("a\nb", 'c"d\\é').inc(3)
    pulls.labels("", "x").inc(1e20)
    gauge = Gauge("gauge", "Plain.", registry=registry)
    waited = Histogram("waited_seconds", "Long.", ["size"], buckets=(0.5, 1e7), registry=registry)
    waited.labels("N/A").observe(0.25)
    Histogram("empty_seconds", "Nothing.", ["size"], registry=registry)
    for value in (0.0, -1.5, 1234567.0, math.inf, -math.inf, math.nan):
        gauge.set(value)
        assert text_of(registry) == generate_latest(registry)


def test_no_web_server_is_loaded() -> None:
    command = "import sys; import pycrictl.proxy.figures.metrics; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True
    )
    loaded = set(ran.stdout.split())
    assert "pycrictl.proxy.figures.prometheus.registry" in loaded
    assert not loaded & {"prometheus_client", "http.server", "urllib.request", "wsgiref"}
