"""What the agent counts, as a page for Prometheus."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pycrictl.metrics import MetricsPage
from pycrictl.servicelog import Log, Seldom

if TYPE_CHECKING:
    from pycrictl.agent.app import Agent


class Figures:
    """Counts."""

    def __init__(self) -> None:
        self.page = page = MetricsPage("pycrictl_agent_")
        self.requests: Counter[tuple[str, ...]] = Counter()
        self._copies = page.counter(
            "copies",
            "Copies that are over or were refused, by direction and end.",
            "direction",
            "end",
        )
        self._copy_bytes = page.counter(
            "copy_bytes",
            "Bytes of archives that arrived, of all copies that are over.",
            "direction",
        )
        page.counted(
            "requests", "Requests, by kind and status.", lambda: self.requests, "kind", "code"
        )
        self._refused = Seldom(Log(__name__).warning, "refused")

    def answered(self, kind: str, status: int) -> None:
        self.requests[kind, str(status)] += 1

    def copied(self, direction: str, end: str, moved_bytes: int) -> None:
        """Count a copy that is over or was refused."""
        self._copies.labels(direction, end).inc()
        self._copy_bytes.labels(direction).inc(moved_bytes)

    def refused(self, kind: str, status: int, peer: str) -> None:
        """Log that a request was refused; of many, some."""
        self._refused(kind=kind, status=status, peer=peer)

    def show(self, agent: Agent) -> None:
        """Have the page show what the parts of an agent count."""
        gauge, counted = self.page.gauge, self.page.counted
        copies, pulls = agent.copies, agent.pulls
        gauge("connections", "Open connections.", lambda: agent.listener.connections)
        gauge("watches", "Open watches and streams.", lambda: agent.routes.watches)
        gauge("streams", "Open progress streams of pods.", lambda: agent.streams.open)
        gauge(
            "source_running",
            "Whether this node's pulls are being followed.",
            lambda: pulls.is_running,
        )
        gauge("ready", "Whether it is ready.", lambda: not agent.unready_reason())
        gauge(
            "certificate_expiry_timestamp_seconds",
            "Until when its certificate is valid.",
            lambda: agent.certificates.expiry_s,
        )
        running = gauge("copies_running", "Copies under way.")
        spooled = gauge("copy_spool_bytes", "What copies take of the disk, or will.")
        limit = gauge(
            "copy_spool_limit_bytes", "What they may take (--spool-size); 0 for no limit."
        )
        limit.set(agent.settings.spool_limit_bytes)
        if copies is not None:
            running.set_function(lambda: copies.snapshot()["copies"])
            spooled.set_function(lambda: copies.snapshot()["spool_bytes"])
        counted("api_calls", "Requests to the API server.", lambda: agent.api.calls)
        counted("api_failures", "Those that failed.", lambda: agent.api.failures)
        counted(
            "reviews",
            "Tokens and rights that the API server was asked about.",
            lambda: agent.access.reviews,
        )
        counted("peer_requests", "Requests to other agents.", lambda: agent.peers.asked)
        counted("peer_failures", "Those that failed.", lambda: agent.peers.failures)
        counted(
            "source_starts",
            "How often this node's pulls began to be followed.",
            lambda: pulls.starts,
        )
        counted(
            "turned_away", "Connections that were too many.", lambda: agent.listener.turned_away
        )
