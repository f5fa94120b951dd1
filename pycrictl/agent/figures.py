"""What the agent counts, as a page for Prometheus."""

from __future__ import annotations

from collections import Counter

from pycrictl.metricspage import MetricsPage
from pycrictl.servicelog import Log, Seldom


class Figures:
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
        self._copies.labels(direction, end).inc()
        self._copy_bytes.labels(direction).inc(moved_bytes)

    def refused(self, kind: str, status: int, peer: str) -> None:
        self._refused(kind=kind, status=status, peer=peer)
