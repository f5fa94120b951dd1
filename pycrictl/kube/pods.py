"""The pods of this node: their images, their waiting reasons, their pull secrets.

With a kubelet's credential, the API server lists only the pods of its own node (``spec.nodeName``).
Documents are untrusted: parts without the expected shape are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pycrictl.base.errors import RemoteProtocolError
from pycrictl.base.foreign import count, flag, mapping, mappings, moment, text, texts

if TYPE_CHECKING:
    from pycrictl.kube.apiclient import ApiClient

_DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
_LISTS: Final = (
    ("initContainers", "initContainerStatuses", "init"),
    ("containers", "containerStatuses", "app"),
    ("ephemeralContainers", "ephemeralContainerStatuses", "debug"),
)


class Run(NamedTuple):
    """A run of a container: the current one, or the one before.

    Attributes:
        state: ``running`` or ``exited``; empty if there was no run.
        message: the termination message, or the error of a run that could not begin.
    """

    state: str = ""
    started_s: float = 0.0
    finished_s: float = 0.0
    exit_code: int = 0
    reason: str = ""
    message: str = ""


class PodImage(NamedTuple):
    """An image that a pod needs, and the container that needs it.

    Attributes:
        container: the container's name, or the volume's.
        reason: why the container is waiting (``ErrImagePull``, ``ImagePullBackOff`` …).
        has_started: the container runs or has run, so its image is present.
        is_due: the kubelet pulls it as soon as it can; False behind an unfinished init container.
        is_ready: the result of its probes; None if unknown, or if it cannot have any.
        role: ``app``, ``init``, ``sidecar`` (an init container that keeps running), or ``debug``
            (``kubectl debug`` added it to the running pod).
        is_started: its startup probe has succeeded, if it has one; None if unknown.
    """

    container: str
    image: str
    reason: str = ""
    message: str = ""
    has_started: bool = False
    is_due: bool = True
    is_volume: bool = False
    is_ready: bool | None = None
    role: str = "app"
    is_started: bool | None = None
    id: str = ""
    restarts: int = 0
    run: Run = Run()
    before: Run = Run()

    @property
    def lets_others_begin(self) -> bool:
        """Whether later containers may begin: an init container must end, a sidecar must start."""
        if self.role == "init":
            return self.run.state == "exited" and self.run.exit_code == 0
        return self.role != "sidecar" or self.has_started


class Pod(NamedTuple):
    """A pod as the API server knows it.

    Attributes:
        phase: empty for a pod that is not from the API server.
        images: in the order in which the kubelet pulls them.
        reason, message: why the kubelet ended it, such as ``Evicted``.
        node: empty until it is set.
        created: its creation time (RFC 3339).
        container: name of the default container.
        status_s: when its status was last written (Unix time); 0 if never.
        owner: KIND/NAME of its controller; empty if it has none.
        deletion_s: when its grace period ends, in Unix seconds; 0 if it is not being deleted.
        scheduling_gates: the gates that keep the scheduler from considering it.
        unmet_gates: its readiness gates whose conditions do not hold.
        unscheduled: why it has no node, in the scheduler's words, without those on preemption.
        is_made: whether its sandbox and network are ready; None if unknown.
        claims: the names of its PersistentVolumeClaims.
        source_uid: the UID of a static pod in the kubelet's Events.
    """

    namespace: str
    name: str
    uid: str
    phase: str
    images: tuple[PodImage, ...]
    pull_secrets: tuple[str, ...]
    reason: str = ""
    message: str = ""
    node: str = ""
    created: str = ""
    container: str = ""
    status_s: float = 0.0
    owner: str = ""
    restart_policy: str = ""
    deletion_s: float = 0.0
    grace_s: int = 0
    finalizers: tuple[str, ...] = ()
    scheduler: str = ""
    scheduling_gates: tuple[str, ...] = ()
    unmet_gates: tuple[str, ...] = ()
    unscheduled: str = ""
    is_made: bool | None = None
    claims: tuple[str, ...] = ()
    source_uid: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def created_s(self) -> float:
        return moment(self.created)


def list_pods(client: ApiClient) -> tuple[Pod, ...]:
    answer = client.get("/api/v1/pods", {"fieldSelector": f"spec.nodeName={client.node}"})
    if not isinstance(answer, dict):
        raise RemoteProtocolError("the API server did not return a list of pods")
    return tuple(filter(None, map(parse_pod, mappings(answer.get("items")))))


def parse_pod(document: Mapping[str, Any]) -> Pod | None:
    metadata, spec = mapping(document.get("metadata")), mapping(document.get("spec"))
    status = mapping(document.get("status"))
    if not (name := text(metadata.get("name"))):
        return None
    images: list[PodImage] = []
    is_due = True
    for key, status_key, role in _LISTS:
        statuses = {text(item.get("name")): item for item in mappings(status.get(status_key))}
        for spec_of_one in mappings(spec.get(key)):
            image = _container(spec_of_one, statuses.get(text(spec_of_one.get("name")), {}), role)
            images.append(image._replace(is_due=is_due or role == "debug"))
            is_due &= image.lets_others_begin
    volumes = mappings(spec.get("volumes"))
    for volume in volumes:
        if reference := text(mapping(volume.get("image")).get("reference")):
            has_run = status.get("phase") in ("Running", "Succeeded")
            name_of_volume = text(volume.get("name"))
            images.append(PodImage(name_of_volume, reference, has_started=has_run, is_volume=True))
    conditions = {text(item.get("type")): item for item in mappings(status.get("conditions"))}
    scheduled = conditions.get("PodScheduled", {})
    is_scheduled = scheduled.get("status") != "False" or bool(spec.get("nodeName"))
    made = conditions.get("PodReadyToStartContainers", {}).get("status")
    gates = [text(item.get("conditionType")) for item in mappings(spec.get("readinessGates"))]
    return Pod(
        text(metadata.get("namespace")) or "default",
        name,
        text(metadata.get("uid")),
        text(status.get("phase")),
        tuple(image for image in images if image.image),
        _names(spec.get("imagePullSecrets")),
        text(status.get("reason")),
        text(status.get("message")),
        text(spec.get("nodeName")),
        text(metadata.get("creationTimestamp")),
        _default_container(metadata, spec),
        _status_s(metadata),
        owner=controller_of(metadata),
        restart_policy=text(spec.get("restartPolicy")),
        deletion_s=moment(metadata.get("deletionTimestamp")),
        grace_s=count(metadata.get("deletionGracePeriodSeconds")),
        finalizers=tuple(texts(metadata.get("finalizers"))),
        scheduler=text(spec.get("schedulerName")),
        scheduling_gates=_names(spec.get("schedulingGates")),
        unmet_gates=tuple(
            gate for gate in gates if conditions.get(gate, {}).get("status") != "True"
        ),
        unscheduled=_unscheduled(text(scheduled.get("message"))) if not is_scheduled else "",
        is_made=made == "True" if made else None,
        claims=tuple(
            claim
            for volume in volumes
            if (claim := text(mapping(volume.get("persistentVolumeClaim")).get("claimName")))
        ),
        source_uid=text(mapping(metadata.get("annotations")).get("kubernetes.io/config.mirror")),
    )


def _unscheduled(message: str) -> str:
    words = " ".join(message.split())
    return re.split(r"\.? (?:no new claims |preemption: )|\. not found$", words)[0].rstrip(".")


def _status_s(metadata: Mapping[str, Any]) -> float:
    writers = mappings(metadata.get("managedFields"))
    times = [
        moment(writer.get("time")) for writer in writers if writer.get("subresource") == "status"
    ]
    return max(times, default=0.0)


def _container(spec: Mapping[str, Any], status: Mapping[str, Any], role: str) -> PodImage:
    state = mapping(status.get("state"))
    waiting = mapping(state.get("waiting"))
    if role == "init" and spec.get("restartPolicy") == "Always":
        role = "sidecar"
    run = _run(state)
    # The kubelet sets ``ready`` of init containers only at their end, never of debug containers.
    ready = status.get("ready") if role in ("app", "sidecar") else None
    return PodImage(
        text(spec.get("name")),
        text(spec.get("image")),
        text(waiting.get("reason")),
        text(waiting.get("message")),
        has_started=bool(run.state),
        is_ready=flag(ready),
        role=role,
        is_started=flag(status.get("started")),
        id=text(status.get("containerID")).rpartition("/")[2],
        restarts=count(status.get("restartCount")),
        run=run,
        before=_run(mapping(status.get("lastState"))),
    )


def _run(state: Mapping[str, Any]) -> Run:
    if "running" in state:
        return Run("running", moment(mapping(state["running"]).get("startedAt")))
    if "terminated" not in state:
        return Run()
    ended = mapping(state["terminated"])
    return Run(
        "exited",
        moment(ended.get("startedAt")),
        moment(ended.get("finishedAt")),
        count(ended.get("exitCode")),
        text(ended.get("reason")),
        text(ended.get("message")),
    )


def controller_of(metadata: Mapping[str, Any]) -> str:
    """Return KIND/NAME of the controller of an object; empty if it has none."""
    owners = (
        owner for owner in mappings(metadata.get("ownerReferences")) if owner.get("controller")
    )
    return next((f"{text(owner.get('kind'))}/{text(owner.get('name'))}" for owner in owners), "")


def _names(objects: object) -> tuple[str, ...]:
    return tuple(name for item in mappings(objects) if (name := text(item.get("name"))))


def _default_container(metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> str:
    names = [text(container.get("name")) for container in mappings(spec.get("containers"))]
    named = text(mapping(metadata.get("annotations")).get(_DEFAULT_CONTAINER))
    return named if named in names else next(iter(names), "")
