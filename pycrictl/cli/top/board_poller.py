"""Polls the node for the screen, and carries on when the runtime goes down."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import PycrictlError, Unimplemented
from pycrictl.cli.top.board import Board, Limit, Usage, ordered, rows_of
from pycrictl.diagnosis.pod import Overview
from pycrictl.diagnosis.survey import Sources, Survey
from pycrictl.pulls.messages import pulls_in_line
from pycrictl.pulls.sources.pod_pulls import ContainerdPulls, Pulls, from_proxy
from pycrictl.pulls.state import PullState
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.inspection.statuses import measure

RETRY_S: Final = 30.0
"""Pause before retrying a runtime whose pulls could not be read."""

_NS: Final = 1e9


@dataclass(slots=True)
class NodeClients:
    client: CriClient
    images: CriClient
    sources: Sources
    close: Callable[[], object]


class BoardPoller:
    def __init__(
        self,
        connect: Callable[[], NodeClients],
        node: str,
        *,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._connect = connect
        self._wall_s = wall_s
        self._connection: NodeClients | None = None
        self._survey: Survey | None = None
        self._containerd: ContainerdPulls | None = None
        self._retry_at = 0.0
        self._used: dict[str, tuple[int, int]] = {}
        self._status: dict[str, Any] | None = None
        self._pulls: list[PullState] = []
        self._board = Board(node, "", wall_s())

    def look(self) -> Board:
        """Return the current board; if the runtime does not answer, the last one and the reason."""
        try:
            if self._connection is None:
                self.open()
            self._board = self._look()
        except (PycrictlError, OSError) as exc:
            self.close()
            text = exc.message if isinstance(exc, PycrictlError) else str(exc)
            since_s = self._board.since_s or self._board.at_s
            self._board = replace(self._board, problem=text, since_s=since_s, at_s=self._wall_s())
        return self._board

    def open(self) -> None:
        connection = self._connect()
        self._connection = connection
        answer = connection.client.call("Version", cri_pb2.VersionRequest())
        runtime = f"{answer.runtime_name} {answer.runtime_version.removeprefix('v')}"
        self._board = replace(self._board, runtime=runtime)
        self._survey = Survey(
            connection.client,
            connection.images,
            connection.sources,
            self._find_pulls,
            wall_s=self._wall_s,
        )

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._survey = self._containerd = None

    def _look(self) -> Board:
        assert self._survey is not None
        self._status, self._pulls = None, []
        seen = self._survey.pods()
        rows = rows_of(seen.reports, self._usage(), self._pulls)
        return replace(
            self._board,
            at_s=self._wall_s(),
            pods=len(seen.reports),
            rows=ordered(rows),
            disk_free=_free(seen),
            limit=_limit(self._status),
            problem="",
            since_s=0.0,
        )

    def _usage(self) -> dict[str, Usage]:
        """Return the containers' usage; without ``usage_nano_cores``, CPU needs two samples."""
        assert self._connection is not None
        try:
            sample = measure(self._connection.client, cri_pb2.ContainerStatsFilter())
        except Unimplemented:
            return {}
        usage, used = {}, {}
        for stats in sample.stats:
            name, at_ns = stats.attributes.id, stats.cpu.timestamp
            total_ns = stats.cpu.usage_core_nano_seconds.value
            used[name] = at_ns, total_ns
            before = self._used.get(name)
            cores = None
            if before is not None and at_ns > before[0]:
                cores = max(total_ns - before[1], 0) / (at_ns - before[0])
            elif stats.cpu.HasField("usage_nano_cores"):
                cores = stats.cpu.usage_nano_cores.value / _NS
            memory = stats.memory.working_set_bytes.value if stats.HasField("memory") else None
            usage[name] = Usage(cores, memory)
        self._used = used
        return usage

    def _find_pulls(self, absent: Sequence[str]) -> Callable[[str], Pulls]:
        connection = self._connection
        assert connection is not None
        if connection.sources.ask_proxy is not None:
            with suppress(PycrictlError):  # it may be restarting: containerd shows its pulls
                status = self._status = connection.sources.ask_proxy()
                self._pulls = pulls_in_line(status)
                return lambda owner: from_proxy(status, owner)
        if time.monotonic() < self._retry_at:
            return lambda _: Pulls()
        try:
            if self._containerd is None:
                self._containerd = ContainerdPulls(connection.client, connection.sources.pods)
            pulls = self._containerd.poll(absent)
        except PycrictlError:  # neither containerd nor CRI-O, or no access to it
            self._containerd, self._retry_at = None, time.monotonic() + RETRY_S
            return lambda _: Pulls()
        self._pulls = [
            pull if pull.image else replace(pull, image=name) for name, pull in pulls.items()
        ]
        return lambda _: Pulls(node=pulls)


def _free(overview: Overview) -> float | None:
    of_images = [disk for disk in overview.disks if disk.use == "images"]
    return of_images[0].free_share if of_images else None


def _limit(status: dict[str, Any] | None) -> Limit | None:
    if status is None:
        return None
    return Limit(status["limit"], len(status["running"]), len(status["waiting"]))
