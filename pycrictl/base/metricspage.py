"""A service's metrics page, by the Prometheus library; only services import this module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST

Counts: TypeAlias = float | Mapping[tuple[str, ...], float]
"""A number, or numbers by label values."""


class MetricsPage(Collector):
    def __init__(self, prefix: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library's
        self.registry = CollectorRegistry()
        self._prefix = prefix
        self._elsewhere: list[tuple[str, str, Sequence[str], Callable[[], Counts]]] = []
        self.registry.register(self)

    def counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(self._prefix + name, help, labels, registry=self.registry)

    def gauge(self, name: str, help: str, read: Callable[[], float] | None = None) -> Gauge:
        made = Gauge(self._prefix + name, help, registry=self.registry)
        if read is not None:
            made.set_function(read)
        return made

    def counted(self, name: str, help: str, read: Callable[[], Counts], *labels: str) -> None:
        """Add a counter whose value is kept elsewhere.

        The library's own counters take a lock at each change, which is too slow during a call.
        """
        self._elsewhere.append((self._prefix + name, help, labels, read))

    def collect(self) -> Iterator[Metric]:
        for name, help, labels, read in self._elsewhere:
            family = CounterMetricFamily(name, help, labels=labels)
            counts = read()
            for values, count in sorted(
                counts.items() if isinstance(counts, Mapping) else [((), counts)]
            ):
                family.add_metric(values, count)
            yield family

    def text(self) -> bytes:
        """Return the page. This blocks for some milliseconds."""
        return generate_latest(self.registry)
