"""Facts about a pod at one moment: plain data, independent of its collector."""

from __future__ import annotations

from dataclasses import dataclass, field

from pycrictl.diagnosis.findings import Condition, Disk, Missing
from pycrictl.pulls.state import PullState


@dataclass(frozen=True, slots=True)
class Sandbox:
    id: str
    is_ready: bool
    created_s: float = 0.0
    address: str = ""


@dataclass(frozen=True, slots=True)
class Container:
    """A container of the pod; ``state`` is empty before it exists.

    ``exit_code``, ``reason`` and ``message`` are of the last exit; ``waiting`` and ``is_ready`` are
    from the kubelet. ``has_crashed_before``: a listed earlier attempt failed. ``is_ephemeral``:
    ``kubectl debug`` added it, which does not concern the pod's health.
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
    is_ephemeral: bool = False
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Image:
    """An image that the pod needs; ``says`` is the kubelet's reason (``ImagePullBackOff``)."""

    reference: str
    is_present: bool | None = None
    pull: PullState | None = None
    failure: str = ""
    says: str = ""
    next_try: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    at_s: float
    unit: str
    message: str


@dataclass(frozen=True, slots=True)
class PodFacts:
    """All known facts about a pod.

    ``phase`` is empty if the API server was not queried; ``reason`` and ``message`` are the pod's.
    ``unscheduled`` is the scheduler's message on a pod without a node. ``stray_pulls`` and
    ``stray_failures`` are not known to be the pod's, ``problems`` are runtime conditions that do
    not hold.
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
    problems: tuple[Condition, ...] = ()
    journal: tuple[Line, ...] = ()
    missing: tuple[Missing, ...] = ()

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"
