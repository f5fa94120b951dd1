"""Facts about a pod at one moment: plain data, whatever their source."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pycrictl.diagnosis.findings import Disk, Missing, RuntimeCondition
from pycrictl.kube.cluster_objects import Claim, Node
from pycrictl.kube.kubelet_log import Sign
from pycrictl.kube.pods import Pod
from pycrictl.node.journal import JournalLine
from pycrictl.pulls.state import PullState

LOG_LINES: Final = 3
LOG_LINE_CHARS: Final = 300
"""How many of a crashed container's last log lines are kept, and the most characters of each."""


class Source(StrEnum):
    """Where facts come from; a source that was read may still have no facts."""

    RUNTIME = "runtime"
    API = "API server"
    JOURNAL = "journal"
    """The logs of the kubelet and the runtime; in a cluster, Events instead."""
    NODES = "nodes"


@dataclass(frozen=True, slots=True)
class Sandbox:
    id: str
    is_ready: bool
    created_s: float = 0.0
    address: str = ""


@dataclass(frozen=True, slots=True)
class Container:
    """A container of the pod; ``state`` is empty before it exists.

    ``exit_code``, ``reason`` and ``message`` are of the last exit, which ended a run of ``ran_s``;
    ``message`` is the termination message, or the runtime's error if it could not start.
    ``waiting``, ``is_ready`` and ``is_started`` (after the startup probe, if any) are from the
    kubelet, as is ``role``: ``app``, ``init``, ``sidecar``, ``debug`` (``kubectl debug`` added it,
    which does not concern the pod's health), or empty if unknown. ``has_crashed_before``: an
    earlier run failed.
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
    ran_s: float = 0.0
    has_crashed_before: bool = False
    waiting: str = ""
    waiting_message: str = ""
    is_ready: bool | None = None
    is_started: bool | None = None
    role: str = ""
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
class PodFacts:
    """All known facts about a pod.

    ``pod`` is what the API server has, ``node`` the pod's node, and ``closed`` are nodes that are
    cordoned or tainted, for a pod without a node. ``unbound`` are the pod's claims without a
    volume. ``problems`` are runtime conditions that do not hold. ``signs`` are the
    problems that ``journal`` shows, the oldest first; both include Events.
    """

    namespace: str
    name: str
    seen: tuple[Source, ...] = ()
    pod: Pod | None = None
    now_s: float = 0.0
    sandbox: Sandbox | None = None
    containers: tuple[Container, ...] = ()
    images: tuple[Image, ...] = ()
    node: Node | None = None
    closed: tuple[Node, ...] = ()
    unbound: tuple[Claim, ...] = ()
    disks: tuple[Disk, ...] = ()
    problems: tuple[RuntimeCondition, ...] = ()
    signs: tuple[Sign, ...] = ()
    journal: tuple[JournalLine, ...] = ()
    missing: tuple[Missing, ...] = ()

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def phase(self) -> str:
        return self.pod.phase if self.pod is not None else ""

    @property
    def api(self) -> Pod:
        """What the API server has, for causes that need it."""
        assert self.pod is not None
        return self.pod

    def last(self, kind: str, name: str = "", probes: str = "") -> Sign | None:
        """Return the last sign of a kind; ``name`` and ``probes`` narrow the choice."""
        signs = (sign for sign in reversed(self.signs) if sign.kind == kind)
        signs = (sign for sign in signs if name in ("", sign.name))
        return next((sign for sign in signs if sign.probe in probes or not probes), None)

    @property
    def has_ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed")
