"""What the agent counts, as a page for Prometheus. The library is imported when asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

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
        self._copies: Counter[tuple[str, str]] = Counter()
        self._copy_bytes: Counter[tuple[str]] = Counter()
        self._refused = Seldom(Log(__name__).warning, "refused")

    def answered(self, kind: str, status: int) -> None:
        self._requests[kind, status] += 1

    def copied(self, direction: str, end: str, moved_bytes: int) -> None:
        self._copies[direction, end] += 1
        self._copy_bytes[direction,] += moved_bytes

    def refused(self, kind: str, status: int, peer: str) -> None:
        """Log that a request was refused; of many, some."""
        self._refused(kind=kind, status=status, peer=peer)

    def page(self) -> web.Response:
        registry = CollectorRegistry()
        registry.register(_Collector(self))
        return web.Response(body=generate_latest(registry), headers={"Content-Type": TEXT})

    @property
    def requests(self) -> Mapping[tuple[str, int], int]:
        return self._requests

    @property
    def labelled(self) -> Iterable[tuple[str, str, list[str], Counter[Any]]]:
        """What is counted apart: names, helps, labels, and counts by their values."""
        return (
            ("requests", "Requests, by kind and status.", ["kind", "code"], self._requests),
            (
                "copies",
                "Copies that are over or were refused, by direction and end.",
                ["direction", "end"],
                self._copies,
            ),
            (
                "copy_bytes",
                "Bytes of archives that arrived, of all copies that are over.",
                ["direction"],
                self._copy_bytes,
            ),
        )


class _Collector:
    """Gives the figures to the library (``prometheus_client.registry.Collector``)."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self):  # type: ignore[no-untyped-def]  # of the library's types, imported inside
        for name, text, labels, counts in self._figures.labelled:
            family = CounterMetricFamily(f"pycrictl_agent_{name}", text, labels=labels)
            for values, count in sorted(counts.items()):
                family.add_metric([str(value) for value in values], count)
            yield family
        for name, (text, value) in self._figures.counters().items():
            yield CounterMetricFamily(f"pycrictl_agent_{name}", text, value)
        for name, (text, value) in self._figures.gauges().items():
            yield GaugeMetricFamily(f"pycrictl_agent_{name}", text, value)
