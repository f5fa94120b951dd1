"""ImagePull objects, built from the images that pods need and the pulls of the node. Pure.

There is one for each pod and image, named after the pod and its first container with that image.
A container's name has no dot, so the last dot separates the two. Text from pods, runtimes and
registries is escaped here, since kubectl shows objects as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from pycrictl.base.units import escape, format_moment
from pycrictl.cluster.agent.api.discovery import MAX_TEXT
from pycrictl.cluster.agent.api.names import GROUP_VERSION, KIND, Document
from pycrictl.kube.pods import Pod, PodImage
from pycrictl.pulls.messages import status_of
from pycrictl.pulls.reference import Match, match
from pycrictl.pulls.sources.failures import REASONS
from pycrictl.pulls.state import Phase, PullState, Sums

_NOT_ITS_IMAGE: Final = frozenset(
    "CrashLoopBackOff CreateContainerConfigError CreateContainerError RunContainerError"
    " PostStartHookError PreCreateHookError PreStartHookError".split()
)
"""The reasons of waiting containers whose image is already present."""


class PullPhase(StrEnum):
    WAITING = "Waiting"
    QUEUED = "Queued"
    PULLING = "Pulling"
    EXTRACTING = "Extracting"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    BACK_OFF = "BackOff"

    @property
    def has_failed(self) -> bool:
        return self in (PullPhase.FAILED, PullPhase.BACK_OFF)


OF_LAYERS: Final[dict[str, Phase]] = {
    PullPhase.WAITING: Phase.WAITING,
    PullPhase.QUEUED: Phase.WAITING,
    PullPhase.PULLING: Phase.DOWNLOADING,
    PullPhase.EXTRACTING: Phase.EXTRACTING,
    PullPhase.SUCCEEDED: Phase.DONE,
    PullPhase.FAILED: Phase.FAILED,
    PullPhase.BACK_OFF: Phase.FAILED,
}
"""The phase of a pull whose layers are unknown."""


@dataclass(frozen=True, slots=True)
class Need:
    pod: Pod
    image: str
    uses: tuple[PodImage, ...]

    @property
    def name(self) -> str:
        return f"{self.pod.name}.{self.uses[0].container}"

    @property
    def _is_over(self) -> bool:
        return self.pod.phase in ("Succeeded", "Failed")

    @property
    def has_started(self) -> bool:
        """Whether a container has started, which proves that the image is present."""
        return any(use.has_started for use in self.uses)

    @property
    def is_void(self) -> bool:
        """Whether the pod ended before a container with this image started."""
        return self._is_over and not self.has_started

    @property
    def is_open(self) -> bool:
        """Whether the kubelet pulls the image, or is about to."""
        is_asked = any(use.is_due and use.reason not in _NOT_ITS_IMAGE for use in self.uses)
        return is_asked and not self._is_over and not self.has_started

    @property
    def is_ahead(self) -> bool:
        """Whether nobody has asked for the image yet: an init container has to end first."""
        return not self.has_started and not any(use.is_due for use in self.uses)

    @property
    def failed_s(self) -> float:
        """When the kubelet said that the pull had failed; 0 if it does not say so."""
        return self.pod.status_s if self.reason is not None else 0.0

    @property
    def reason(self) -> PodImage | None:
        return next((use for use in self.uses if use.reason in REASONS), None)


def needs_of(pod: Pod) -> list[Need]:
    """Return the images a pod needs, in the order in which the kubelet pulls them."""
    uses: dict[str, list[PodImage]] = {}
    for use in pod.images:
        uses.setdefault(use.image, []).append(use)
    return [Need(pod, image, tuple(pod_uses)) for image, pod_uses in uses.items()]


def is_waiting(pod: Pod) -> bool:
    return any(need.is_open for need in needs_of(pod))


def pod_of(name: str) -> str:
    return name.rpartition(".")[0]


def objects_of(
    pods: Iterable[Pod],
    pulls: Sequence[PullState],
    node: str,
    *,
    wants_all: bool = False,
    problem: str = "",
) -> list[Document]:
    """Return the objects of some pods of a node.

    Args:
        wants_all: include images that are already present.
        problem: why the node's pulls are unknown; empty if they are known.
    """
    needed = pulls_by_need(pods, pulls, wants_all=wants_all)
    return [_object(need, pull, node, problem) for need, pull in needed]


def pulls_by_need(
    pods: Iterable[Pod], pulls: Sequence[PullState], *, wants_all: bool = False
) -> Iterator[tuple[Need, PullState | None]]:
    """Iterate over the images that pods wait for, or all that they need, and their pulls."""
    for need in (need for pod in pods for need in needs_of(pod) if not need.is_void):
        pull = pull_for(need, pulls)
        if wants_all or need.is_open or pull is not None:
            yield need, pull


def pull_for(need: Need, pulls: Sequence[PullState]) -> PullState | None:
    """Return the pull of an image that a pod needs.

    A pull that may also be for another image is left out. A pull that ended before the second in
    which the pod was created only shows that the image is present.
    """
    pull = None
    for other in reversed(pulls):
        answer = match(need.image, other, failed_s=need.failed_s)
        if answer is Match.YES:
            pull = other
            break
        if answer is Match.MAYBE and not other.candidates:
            pull = pull or other
    if pull is None or pull.is_running or pull.ended_s >= need.pod.created_s:
        return pull
    return None if pull.has_failed else replace(pull, layers=(), sums=Sums(), began_s=0.0)


def _object(need: Need, pull: PullState | None, node: str, problem: str) -> Document:
    pod = need.pod
    digest = hashlib.sha256(need.image.encode("utf-8", "replace")).hexdigest()[:8]
    created = format_moment(pull.began_s) if pull is not None and pull.began_s else pod.created
    return {
        "apiVersion": GROUP_VERSION,
        "kind": KIND,
        "metadata": {
            "name": need.name,
            "namespace": pod.namespace,
            "uid": f"{pod.uid}-{digest}",
            "creationTimestamp": created or None,
        },
        "spec": {
            "podName": pod.name,
            "podUID": pod.uid,
            "containers": [use.container for use in need.uses],
            "image": escape(need.image),
            **({"nodeName": escape(node)} if node else {}),
        },
        "status": _status(need, pull, problem),
    }


def _status(need: Need, pull: PullState | None, problem: str) -> Document:
    phase = phase_of(need, pull)
    status: Document = {"phase": phase.value}
    reason = need.reason
    if pull is not None:
        is_moving = pull.is_running and phase in (PullPhase.PULLING, PullPhase.EXTRACTING)
        status |= status_of(pull, is_moving=is_moving)
    if phase is PullPhase.SUCCEEDED:
        status["percent"] = 100
    elif phase.has_failed:
        status["error"] = escape(error_of(need, pull)[:MAX_TEXT])
    if reason is not None:
        status["kubeletReason"] = escape(reason.reason[:MAX_TEXT])
    if problem and phase is not PullPhase.SUCCEEDED:
        status["unknown"] = True
        status["error"] = escape(problem[:MAX_TEXT])
    status["conditions"] = _conditions(need, pull, phase, status)
    return status


def error_of(need: Need, pull: PullState | None) -> str:
    """Return why a pull has failed."""
    reason = need.reason
    said = (reason.message or reason.reason) if reason is not None else "the pull failed"
    return (pull.error if pull is not None else "") or said


def _conditions(
    need: Need, pull: PullState | None, phase: PullPhase, status: Document
) -> list[Document]:
    """Return the conditions, for ``kubectl wait``."""
    began_s = pull.began_s if pull is not None else 0.0
    ended_s = pull.ended_s if pull is not None else 0.0
    since_s = began_s or need.pod.created_s
    if phase is PullPhase.SUCCEEDED or phase.has_failed:
        since_s = ended_s or since_s
    known = {"Pulled": phase is PullPhase.SUCCEEDED, "Failed": phase.has_failed}
    return [
        {
            "type": kind,
            "status": "Unknown" if "unknown" in status else str(holds),
            "reason": phase.value,
            "message": status.get("error", ""),
            **({"lastTransitionTime": format_moment(since_s)} if since_s else {}),
        }
        for kind, holds in known.items()
    ]


def phase_of(need: Need, pull: PullState | None) -> PullPhase:
    """Return the phase of an image's pull.

    The node's own state is newer than the pod's status: while the kubelet pulls again after a
    failure, that status is still ``ImagePullBackOff``.
    """
    is_running = pull is not None and pull.is_running and not (pull.has_failed and pull.is_over)
    # Until bytes arrive, the last error stays: an attempt may end at once, like the ones before.
    if pull is not None and is_running and (pull.has_bytes or need.reason is None):
        return _running_phase(pull)
    if need.is_ahead:
        return PullPhase.WAITING
    if not need.is_open and not need.is_void:
        return PullPhase.SUCCEEDED
    if need.reason is not None:
        is_back_off = need.reason.reason == "ImagePullBackOff"
        return PullPhase.BACK_OFF if is_back_off else PullPhase.FAILED
    if pull is None:
        return PullPhase.WAITING
    return PullPhase.FAILED if pull.has_failed else PullPhase.SUCCEEDED


def _running_phase(pull: PullState) -> PullPhase:
    if pull.is_queued:
        return PullPhase.QUEUED
    return PullPhase.EXTRACTING if pull.is_extracting else PullPhase.PULLING
