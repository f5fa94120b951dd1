"""The pages for Prometheus and probes: ``/metrics``, ``/livez`` and ``/readyz``.

States are gauges here, read at each scrape; events are counted in ``metrics``. This is imported
only if metrics are enabled.
"""

from __future__ import annotations

import asyncio
import platform
from collections import Counter

from prometheus_client import Gauge, ProcessCollector
from websockets.http11 import Response

from pycrictl import __version__
from pycrictl.base.metricspage import CONTENT_TYPE, MetricsPage
from pycrictl.copy.service.copies import Copies, Copy
from pycrictl.proxy.events import Events
from pycrictl.proxy.pulls.queue import PullQueue
from pycrictl.proxy.runtime_lookup import problem
from pycrictl.proxy.serve.http_server import MakePage, page
from pycrictl.proxy.serve.stream_server import StreamServer, Tokens
from pycrictl.proxy.telemetry.metrics import Metrics
from pycrictl.proxy.upstream import Upstream


def add_states(
    metrics: MetricsPage,
    queue: PullQueue,
    copies: Copies[Copy],
    tokens: Tokens,
    streams: StreamServer,
) -> None:
    """Add the gauges, which are read at each scrape."""
    ProcessCollector(registry=metrics.registry)
    build = ("pycrictl_build_info", "The program.", ["version", "python"])
    Gauge(*build, registry=metrics.registry).labels(__version__, platform.python_version()).set(1)
    gauge, book = metrics.gauge, queue.book
    gauge("pulls_running", "Pulls in progress at the runtime.", lambda: len(book.running))
    gauge("pulls_waiting", "Pulls that wait for a slot.", lambda: len(book.line))
    gauge("pull_slots", "The limit of parallel pulls; 0 for no limit.", lambda: queue.limit)
    gauge("pull_slots_taken", "Slots in use.", lambda: queue.taken)
    gauge("copies_running", "Copies under way or about to begin.", lambda: len(copies.running))
    gauge("streams_open", "Connections for progress and copies.", lambda: streams.open_count)

    def refused() -> dict[tuple[str, ...], int]:
        others = {
            "pull_slots": queue.refused,
            "stream_urls": tokens.refused,
            "stream_connections": streams.dropped.count,
        }
        counts = copies.slots.refused + Counter(others)
        return {(limit,): number for limit, number in counts.items()}

    metrics.counted("refused", "Refusals, by the limit that was reached.", refused, "limit")


def pages(
    events: Events,
    upstream: Upstream,
    queue: PullQueue,
    copies: Copies[Copy],
    tokens: Tokens,
    streams: StreamServer,
    timeout_s: float = 2.0,
) -> dict[str, MakePage]:
    """Return the function that makes each page, by path, and start to count events.

    A runtime that does not answer within ``timeout_s`` counts as down.
    """
    metrics = MetricsPage("pycrictl_")
    events.consumers.append(Metrics(metrics))
    add_states(metrics, queue, copies, tokens, streams)
    up = metrics.gauge("upstream_up", "Whether the runtime answered just now.")

    async def show_metrics() -> Response:
        up.set(not await problem(upstream, timeout_s))
        # Takes some milliseconds, which must not delay calls.
        return page(200, await asyncio.to_thread(metrics.text), CONTENT_TYPE)

    async def live() -> Response:
        return page(200, b"ok\n")

    async def ready() -> Response:
        reason = await problem(upstream, timeout_s)
        return page(503, f"{reason}\n".encode()) if reason else page(200, b"ok\n")

    return {"/metrics": show_metrics, "/livez": live, "/readyz": ready}
