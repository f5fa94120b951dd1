"""What the agent counts, as a page for Prometheus. The library is imported when asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from aiohttp import web

from pycrictl.servicelog import Log, Seldom

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"


class Figures:
    """Counts.

    Attributes:
        gauges: returns what stands at the moment: names, helps and values.
        counters: the same of what only grows.
    """

    def __init__(self) -> None:
        self.gauges: Callable[[], Mapping[str, tuple[str, float]]] = dict
        self.counters: Callable[[], Mapping[str, tuple[str, float]]] = dict
        self._requests: Counter[tuple[str, int]] = Counter()
        self._refused = Seldom(Log(__name__).warning, "refused")

    def answered(self, kind: str, status: int) -> None:
        """Count a request by its kind and how it was answered."""
        self._requests[kind, status] += 1

    def refused(self, kind: str, status: int, peer: str) -> None:
        """Log that a request was refused; of many, some."""
        self._refused(kind=kind, status=status, peer=peer)

    def page(self) -> web.Response:
        """Return the page."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(_Collector(self))
        return web.Response(body=generate_latest(registry), headers={"Content-Type": TEXT})

    @property
    def requests(self) -> Mapping[tuple[str, int], int]:
        """How many requests of a kind were answered with a status."""
        return self._requests


class _Collector:
    """Gives the figures to the library (``prometheus_client.registry.Collector``)."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self):  # type: ignore[no-untyped-def]  # of the library's types, imported inside
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        requests = CounterMetricFamily(
            "pycrictl_agent_requests", "Requests, by kind and status.", labels=["kind", "code"]
        )
        for (kind, status), count in sorted(self._figures.requests.items()):
            requests.add_metric([kind, str(status)], count)
        yield requests
        for name, (text, value) in self._figures.counters().items():
            yield CounterMetricFamily(f"pycrictl_agent_{name}", text, value)
        for name, (text, value) in self._figures.gauges().items():
            yield GaugeMetricFamily(f"pycrictl_agent_{name}", text, value)
