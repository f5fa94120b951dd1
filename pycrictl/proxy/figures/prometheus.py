"""What prometheus-client counts with, and its text format.

The library's ``__init__`` and its module for the text load two web servers and a web client, which
would take 1.6 MiB of a proxy's memory. The modules that count are found here by ``__path__``, as if
they were this module's own; the text is made here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from prometheus_client.metrics import Counter, Gauge, Histogram, disable_created_metrics
    from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.process_collector import ProcessCollector
    from prometheus_client.registry import Collector, CollectorRegistry
    from prometheus_client.utils import floatToGoString
else:
    from importlib.util import find_spec

    __path__ = find_spec("prometheus_client").submodule_search_locations

    from pycrictl.proxy.figures.prometheus.metrics import (
        Counter,
        Gauge,
        Histogram,
        disable_created_metrics,
    )
    from pycrictl.proxy.figures.prometheus.metrics_core import (
        CounterMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from pycrictl.proxy.figures.prometheus.process_collector import ProcessCollector
    from pycrictl.proxy.figures.prometheus.registry import Collector, CollectorRegistry
    from pycrictl.proxy.figures.prometheus.utils import floatToGoString

__all__ = [
    "CONTENT_TYPE",
    "Collector",
    "CollectorRegistry",
    "Counter",
    "CounterMetricFamily",
    "Gauge",
    "Histogram",
    "HistogramMetricFamily",
    "Metric",
    "ProcessCollector",
    "disable_created_metrics",
    "text_of",
]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def text_of(registry: Collector) -> bytes:
    """Return counters, gauges and histograms in the text format that the content type names."""
    lines = []
    for metric in registry.collect():
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        lines.append(f"# HELP {name} {_escaped(metric.documentation)}\n")
        lines.append(f"# TYPE {name} {metric.type}\n")
        for sample in metric.samples:
            labels = ",".join(
                f'{label}="{_quoted(value)}"' for label, value in sorted(sample.labels.items())
            )
            labels = f"{{{labels}}}" if labels else ""
            value = floatToGoString(sample.value)  # type: ignore[no-untyped-call]  # the library's
            lines.append(f"{sample.name}{labels} {value}\n")
    return "".join(lines).encode()


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")
