"""What is known of a pod at one moment: plain data, whoever collected it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from pycrictl.diagnosis.disks import Disk
from pycrictl.diagnosis.findings import Missing
from pycrictl.pulls.model import Totals, stall
from pycrictl.units import format_bytes, format_duration, format_part

_ASKED: Final = "the registry is being asked"


@dataclass(frozen=True, slots=True)
class Sandbox:
    id: str
    is_ready: bool
    created_s: float = 0.0
    address: str = ""


@dataclass(frozen=True, slots=True)
class Container:
    """A container of the pod, or one that has not been created yet.

    Attributes:
        state: ``running``, ``exited``, ``created``, ``unknown``; empty before it exists.
        exit_code: of the last attempt that has ended.
        reason: the runtime's word for the end, such as ``OOMKilled``.
        message: the runtime's message about that end.
        restarts: how many attempts were before.
        has_crashed_before: an earlier attempt that is still listed ended badly.
        waiting: what the kubelet says it waits for, such as ``CrashLoopBackOff``.
        waiting_message: the kubelet's message about that wait.
        is_ready: what the kubelet says of its probes; None if that is not known.
        lines: the last lines of its log.
    """

    name: str
    id: str = ""
    image: str = ""
    state: str = ""
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    restarts: int = 0
    started_s: float = 0.0
    finished_s: float = 0.0
    has_crashed_before: bool = False
    waiting: str = ""
    waiting_message: str = ""
    is_ready: bool | None = None
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PullState:
    """A pull that is under way or in line.

    Attributes:
        totals: how far it is; None if that is not known.
        place: in the line of a proxy; 0 if it has begun.
        behind: whose pull is ahead.
        starts_in: when it is expected to start, in words.
    """

    totals: Totals | None = None
    place: int = 0
    behind: str = ""
    starts_in: str = ""

    @property
    def far(self) -> str:
        """How far it is."""
        parts = []
        if (far := self.totals) is None:
            return _ASKED
        if far.percent is not None:
            parts.append(f"{far.percent} %")
        if far.total:
            parts.append(format_part(far.progress, far.total, of=" of "))
        if far.is_unpacking:
            parts.append(far.unpacking)
        elif far.is_stalled:
            parts.append(stall(far.idle_s))
        elif far.rate is not None:
            parts.append(f"{format_bytes(far.rate)}/s")
        if far.eta_whole_s is not None:
            parts.append(f"{format_duration(far.eta_whole_s)} left")
        return ", ".join(parts) or _ASKED

    def __str__(self) -> str:
        if self.place:
            behind = f" behind {self.behind}" if self.behind else ""
            return f"queued, place {self.place}{behind}"
        return f"being pulled, {self.far}"

    def document(self) -> dict[str, Any]:
        far = {} if self.totals is None else {**self.totals.to_json()}
        if self.totals is not None and self.totals.percent is not None:
            far["percent"] = self.totals.percent
        own = {"place": self.place, "behind": self.behind, "starts_in": self.starts_in}
        return {**far, **own, "text": str(self)}


@dataclass(frozen=True, slots=True)
class Image:
    """An image that the pod needs.

    Attributes:
        is_present: None if the runtime did not say.
        pull: a pull of it that is under way.
        failure: why the last one failed; empty if none has.
        says: what the kubelet says of it (``ImagePullBackOff``).
        next_try: what is known of that, in words.
    """

    reference: str
    is_present: bool | None = None
    pull: PullState | None = None
    failure: str = ""
    says: str = ""
    next_try: str = ""

    def document(self) -> dict[str, Any]:
        pull = self.pull.document() if self.pull is not None else None
        return {**asdict(self), "pull": pull}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the journal about the pod: wall time, service, text."""

    at_s: float
    unit: str
    message: str


@dataclass(frozen=True, slots=True)
class PodFacts:
    """All that is known of a pod.

    Attributes:
        phase: as the API server has it; empty if it was not asked.
        reason: why the kubelet has ended it, such as ``Evicted``; of its status, as ``message``.
        unscheduled: what the scheduler says of a pod that has no node; empty if it has one.
        now_s: wall time of all this.
        images: those of its containers, in the order in which they are pulled.
        stray_pulls: pulls of the node whose pod nobody knows, by what they are called.
        stray_failures: errors of pulls of which nobody knows whose they were, by the image.
        problems: conditions of the runtime that do not hold, and why.
        journal: lines about the pod, the oldest first.
        missing: sources that could not be asked.
    """

    namespace: str
    name: str
    phase: str = ""
    reason: str = ""
    message: str = ""
    unscheduled: str = ""
    now_s: float = 0.0
    sandbox: Sandbox | None = None
    containers: tuple[Container, ...] = ()
    images: tuple[Image, ...] = ()
    stray_pulls: dict[str, PullState] = field(default_factory=dict)
    stray_failures: dict[str, str] = field(default_factory=dict)
    disks: tuple[Disk, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()
    journal: tuple[Line, ...] = ()
    missing: tuple[Missing, ...] = ()

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"

    def document(self) -> dict[str, Any]:
        found = asdict(self)
        found["disks"] = [disk.document() for disk in self.disks]
        found["missing"] = [one._asdict() for one in self.missing]
        found["images"] = [image.document() for image in self.images]
        found["stray_pulls"] = {name: one.document() for name, one in self.stray_pulls.items()}
        found["problems"] = [{"condition": name, "message": why} for name, why in self.problems]
        for key in ("containers", "journal"):
            found[key] = list(found[key])
        for one in found["containers"]:
            one["lines"] = list(one["lines"])
        return found
