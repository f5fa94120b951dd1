"""What happens in the proxy, as values.

Each event goes to every consumer, a function that picks those that concern it: the log
(``telemetry.event_log``), metrics, the history, hand-overs, and streams of progress.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from pycrictl.proxy.pulls.pull_calls import PullCall
    from pycrictl.pulls.state import PullState


@dataclass(frozen=True, slots=True)
class PullQueued:
    """A PullImage call waits for a slot, or for an equal call."""

    call: PullCall


@dataclass(frozen=True, slots=True)
class PullStarted:
    """A PullImage call goes to the runtime, or is already made by another process."""

    call: PullCall


@dataclass(frozen=True, slots=True)
class PullEnded:
    """A PullImage call is over: answered, refused, given up, or left to another process."""

    call: PullCall


@dataclass(frozen=True, slots=True)
class PullRecorded:
    """A call of this process is over, and its layers were looked up, if it pulled any."""

    call: PullCall
    layers: PullState | None = None


@dataclass(frozen=True, slots=True)
class CopyEnded:
    """A copy that had begun is over.

    Attributes:
        direction: ``to`` or ``from`` the container.
        container: its ID.
        pod: the ID of its sandbox.
        path: the path in the container.
        size_bytes: the archive's size.
        end: the state in which it is over (``copy.service.life``).
        error: why it failed; empty if it was done.
        files: how many were copied; None if it was not done.
        skipped: how many entries were left out.
    """

    direction: str
    container: str
    pod: str
    path: str
    size_bytes: int
    end: str
    duration_s: float
    error: str = ""
    files: int | None = None
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """A stream of progress is over.

    Attributes:
        target: the pod or node, and the image, whose pulls it reported.
        kind: ``websocket`` or ``http``.
        end: ``done``, ``gone`` (the client), ``stuck`` (it did not read) or ``stopped``.
        records: how many it had.
    """

    target: str
    kind: str
    end: str
    records: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A call of the CRI is over.

    Attributes:
        path: the full name of its method.
        code: the number of its gRPC status.
    """

    path: str
    code: int


@dataclass(frozen=True, slots=True)
class HandedOver:
    """A new process serves from now on; so many pulls run on here, and so many calls moved."""

    pid: int
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class HandOverFailed:
    """A new process did not take over."""

    reason: str


@dataclass(frozen=True, slots=True)
class TookOver:
    """This process has taken over from the one with this ID."""

    pid: int


Event: TypeAlias = (
    PullQueued
    | PullStarted
    | PullEnded
    | PullRecorded
    | CopyEnded
    | StreamEnded
    | CallEnded
    | HandedOver
    | HandOverFailed
    | TookOver
)
Emit: TypeAlias = Callable[[Event], object]


@dataclass
class Events:
    """Passes each event to all consumers, in their order."""

    consumers: list[Emit] = field(default_factory=list)

    def emit(self, event: Event) -> None:
        for consume in self.consumers:
            consume(event)
