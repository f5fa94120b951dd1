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
    """A PullImage call is over: answered, refused, cancelled, or left to another process."""

    call: PullCall


@dataclass(frozen=True, slots=True)
class PullRecorded:
    """A call of this process is over, and its layers were looked up, if it pulled any."""

    call: PullCall
    layers: PullState | None = None


@dataclass(frozen=True, slots=True)
class CopyEnded:
    """A copy that had begun is over."""

    direction: str  # ``to`` or ``from`` the container
    container: str  # Its ID
    pod: str  # The ID of its sandbox
    path: str  # In the container
    size_bytes: int  # Of the archive
    end: str  # Its final state (``copy.service.life``)
    duration_s: float
    error: str = ""  # Why it failed; empty if it was done
    files: int | None = None  # How many were copied; None if it was not done
    skipped: int = 0  # How many entries were left out


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """A stream of progress is over."""

    target: str  # The pod or node, and the image, whose pulls it reported
    kind: str  # ``websocket`` or ``http``
    end: str  # ``done``, ``gone`` (the client), ``stuck`` (it did not read) or ``stopped``
    records: int  # The number of its records
    duration_s: float


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A call of the CRI is over; ``code`` is the number of its gRPC status."""

    path: str
    code: int


@dataclass(frozen=True, slots=True)
class HandedOver:
    """A new process serves: ``running`` pulls continue here, ``waiting`` calls moved there."""

    pid: int
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class HandOverFailed:
    """A new process did not take over."""

    reason: str


@dataclass(frozen=True, slots=True)
class TookOver:
    """This process has taken over from the process ``pid``."""

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
