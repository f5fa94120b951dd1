"""Nodes, workloads that make pods, and claims that pods wait for, as the API server has them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from pycrictl.base.foreign import count, mapping, mappings, moment, text
from pycrictl.base.units import age_in_words
from pycrictl.kube.pods import controller_of

READY: Final = "Ready"
_TROUBLES: Final = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")


class NodeCondition(NamedTuple):
    """A condition that is not as it should be: ``Ready``, or one of the pressures."""

    condition: str
    message: str
    since_s: float


class Node(NamedTuple):
    """A node of the cluster.

    Attributes:
        conditions: only those that are not as they should be.
        taints: as KEY=VALUE:EFFECT, without those that the cluster sets for conditions.
        exists: False for a node that pods name, but that the API server does not have.
    """

    name: str
    conditions: tuple[NodeCondition, ...] = ()
    is_cordoned: bool = False
    taints: tuple[str, ...] = ()
    exists: bool = True
    now_s: float = 0.0

    @property
    def full_name(self) -> str:
        return f"node {self.name}"

    @property
    def unready(self) -> str:
        """How long it has not been ready, and why; empty if it is ready."""
        conditions = (condition for condition in self.conditions if condition.condition == READY)
        ages = (
            (age_in_words(max(self.now_s - condition.since_s, 0.0)), condition.message)
            for condition in conditions
        )
        return next((f"for {age}: {message}" for age, message in ages), "")

    @property
    def pressures(self) -> list[str]:
        return [
            condition.condition for condition in self.conditions if condition.condition != READY
        ]

    @property
    def refusals(self) -> list[str]:
        """Why it takes no pods, or only pods with tolerations."""
        cordoned = ["is cordoned"] * self.is_cordoned + ["is not ready"] * bool(self.unready)
        return cordoned + [f"has {condition}" for condition in (*self.pressures, *self.taints)]


def parse_node(document: Mapping[str, Any], now_s: float = 0.0) -> Node:
    spec, metadata = mapping(document.get("spec")), mapping(document.get("metadata"))
    return Node(
        text(metadata.get("name")),
        tuple(_conditions(document)),
        spec.get("unschedulable") is True,
        tuple(
            f"{text(taint.get('key'))}{value and '='}{value}:{text(taint.get('effect'))}"
            for taint in mappings(spec.get("taints"))
            if not text(taint.get("key")).startswith("node.kubernetes.io/")
            for value in [text(taint.get("value"))]
        ),
        now_s=now_s,
    )


def _conditions(document: Mapping[str, Any]) -> Iterator[NodeCondition]:
    created_s = moment(mapping(document.get("metadata")).get("creationTimestamp"))
    has_reported = False
    for item in mappings(mapping(document.get("status")).get("conditions")):
        condition, status = text(item.get("type")), item.get("status")
        has_reported |= condition == READY
        if status != "True" if condition == READY else condition in _TROUBLES and status == "True":
            message = text(item.get("message")) or text(item.get("reason"))
            yield NodeCondition(condition, message, moment(item.get("lastTransitionTime")))
    if not has_reported:
        yield NodeCondition(READY, "its kubelet has not reported yet", created_s)


_REFUSED: Final = (
    r'^(?:Error creating: |Create .* failed error: |(?:pods|persistentvolumeclaims) "[^"]*" is'
    r" forbidden: )+"
)


class Workload(NamedTuple):
    """A Deployment, ReplicaSet, StatefulSet, DaemonSet, Job or CronJob.

    Attributes:
        kind: its kind, in lower case.
        wanted, made, ready: numbers of pods; a CronJob wants none itself.
        conditions: the messages of its conditions, by ``TYPE=STATUS/REASON``.
        owner: KIND/NAME of its controller.
        since_s: when it was created, or a CronJob last started a Job, in Unix seconds; earlier
            Events do not count.
        warnings: messages of its Events, the oldest first.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    wanted: int
    made: int
    ready: int
    is_suspended: bool
    conditions: Mapping[str, str]
    owner: str
    since_s: float
    now_s: float = 0.0
    warnings: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def lacks_pods(self) -> bool:
        return self.made < self.wanted

    @property
    def creation_error(self) -> str:
        """Why its last pod could not be created; empty if no pod is missing."""
        said = [
            warning for warning in self.warnings if re.match("Error creating: |Create ", warning)
        ]
        said += filter(None, [self.conditions.get("ReplicaFailure=True/FailedCreate")])
        return re.sub(_REFUSED, "", said[-1]) if said and self.lacks_pods else ""

    def condition(self, name: str) -> str:
        """Return the message of a condition, by the start of TYPE=STATUS/REASON; or empty."""
        return next((said for key, said in self.conditions.items() if key.startswith(name)), "")


class Claim(NamedTuple):
    """A PersistentVolumeClaim; ``warnings`` are messages of its Events, the oldest first."""

    namespace: str
    name: str
    uid: str
    phase: str
    storage_class: str
    volume: str
    warnings: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        return f"persistentvolumeclaim {self.namespace}/{self.name}"

    @property
    def binding_error(self) -> str:
        """Why it has no volume; empty if it has one, or may be waiting for its first pod."""
        if self.phase != "Pending" or self.warnings:
            return self.warnings[-1] if self.phase == "Pending" else ""
        nothing = "it names no storage class, there is no default, and no volume fits"
        return "" if self.storage_class else nothing


def parse_claim(document: Mapping[str, Any]) -> Claim:
    metadata, spec = mapping(document.get("metadata")), mapping(document.get("spec"))
    return Claim(
        text(metadata.get("namespace")),
        text(metadata.get("name")),
        text(metadata.get("uid")),
        text(mapping(document.get("status")).get("phase")),
        text(spec.get("storageClassName")),
        text(spec.get("volumeName")),
    )


Counts = tuple[int, int, int]


def _replicas(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Counts:
    ready = count(status.get("readyReplicas"))
    return count(spec.get("replicas", 1)), count(status.get("replicas")), ready


def _daemons(_: Mapping[str, Any], status: Mapping[str, Any]) -> Counts:
    names = ("desiredNumberScheduled", "currentNumberScheduled", "numberReady")
    wanted, made, ready = (count(status.get(name)) for name in names)
    return wanted, made, ready


def _job(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Counts:
    """Count a Job as one pod, which counts as made once any pod was made."""
    made = any(count(status.get(key)) for key in ("active", "succeeded", "failed"))
    return int(count(spec.get("parallelism", 1)) > 0), int(made), count(status.get("ready"))


_COUNTS: Final[Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Counts]]] = {
    "deployment": _replicas,
    "replicaset": _replicas,
    "statefulset": _replicas,
    "daemonset": _daemons,
    "job": _job,
    "cronjob": lambda *_: (0, 0, 0),
}


def parse_workload(kind: str, document: Mapping[str, Any]) -> Workload:
    """Parse an object of a kind: a key of ``_COUNTS``."""
    metadata, spec = mapping(document.get("metadata")), mapping(document.get("spec"))
    status = mapping(document.get("status"))
    return Workload(
        kind,
        text(metadata.get("namespace")),
        text(metadata.get("name")),
        text(metadata.get("uid")),
        *_COUNTS[kind](spec, status),
        spec.get("suspend") is True or spec.get("paused") is True,
        {
            "{type}={status}/{reason}".format_map({"reason": "", **condition}): text(
                condition.get("message")
            )
            for condition in mappings(status.get("conditions"))
            if {"type", "status"} <= condition.keys()
        },
        controller_of(metadata),
        _since_s(metadata, status),
    )


def _since_s(metadata: Mapping[str, Any], status: Mapping[str, Any]) -> float:
    return max(moment(metadata.get("creationTimestamp")), moment(status.get("lastScheduleTime")))
