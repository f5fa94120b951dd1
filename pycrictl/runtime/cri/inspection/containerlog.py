"""The logs of a container, of pods, or of the node: their paths, and whether they may grow."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from pycrictl._proto import cri_pb2
from pycrictl.base import noderoot
from pycrictl.base.errors import (
    ConnectError,
    DeadlineExceeded,
    NotFound,
    PycrictlError,
    Unavailable,
)
from pycrictl.base.units import quote
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.inspection import statuses
from pycrictl.runtime.cri.lists.lookup import WHOLE_ID, Lookup


@dataclass(frozen=True, slots=True)
class ContainerLog:
    container_id: str
    path: str
    is_alive: bool
    name: str = ""


def container_log(client: CriClient, container_id: str, *, previous: bool = False) -> ContainerLog:
    status = next(statuses.read(client, "container", [container_id])).status
    name = quote(status.metadata.name or container_id)
    if not status.log_path:
        raise PycrictlError(
            f"container {name} has no log",
            hint="it was created without a log path, or its pod without a log directory",
        )
    if not previous:
        is_alive = status.state == cri_pb2.CONTAINER_RUNNING
        return ContainerLog(container_id, noderoot.locate(status.log_path), is_alive)
    if not status.metadata.attempt:
        raise PycrictlError(f"container {name} has no earlier attempt")
    path = previous_path(status.log_path, status.metadata.attempt)
    return ContainerLog(container_id, noderoot.locate(path), is_alive=False)


def previous_path(path: str, attempt: int) -> str:
    """Return the path of the previous attempt's log; kubelet numbers logs by attempt."""
    log = PurePosixPath(path)
    return str(log.parent / f"{attempt - 1}{log.suffix}")


def reopen_log(client: CriClient, container_id: str) -> None:
    client.call(
        "ReopenContainerLog",
        cri_pb2.ReopenContainerLogRequest(container_id=container_id),
        what=f"reopening the log of {quote(container_id)}",
    )


def life(
    client: CriClient,
    log: ContainerLog,
    *,
    every_s: float = 1.0,
    patience_s: float = 10.0,
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[], bool]:
    """Return a check whether a container runs.

    Args:
        every_s: the least time between two calls of the runtime.
        patience_s: how long the runtime may be unavailable before the check raises; containers
            survive its restart.
    """
    lives = log.is_alive
    asked = answered = clock()
    request = cri_pb2.ContainerStatusRequest(container_id=log.container_id)

    def lasts() -> bool:
        nonlocal lives, asked, answered
        if not lives or clock() - asked < every_s:
            return lives
        asked = clock()
        try:
            state = client.call("ContainerStatus", request).status.state
            lives = state == cri_pb2.CONTAINER_RUNNING
        except NotFound:
            lives = False
        except (ConnectError, DeadlineExceeded, Unavailable):
            if clock() - answered > patience_s:
                raise
            return lives
        answered = clock()
        return lives

    return lasts


@dataclass(frozen=True, slots=True)
class PodFilter:
    """Selects containers by their pods and names; empty texts select all.

    Attributes:
        name: the pod's NAMESPACE/NAME.
        labels: labels that the pod must have.
        namespace: the pod's namespace.
        container: the container's name.
    """

    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    namespace: str = ""
    container: str = ""

    def match(self, pod: cri_pb2.PodSandbox) -> bool:
        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        has_labels = all(pod.labels.get(key) == value for key, value in self.labels.items())
        in_namespace = self.namespace in ("", pod.metadata.namespace)
        return has_labels and in_namespace and self.name in ("", name)


def find(client: CriClient, text: str, *, whole_pod: bool = False) -> str | PodFilter:
    lookup = Lookup(client)
    if not whole_pod:
        if re.fullmatch(WHOLE_ID, text):
            return text
        if (named := lookup.named_pod(text)) is not None and len(lookup.containers_of(named)) > 1:
            return PodFilter(text)
        target = lookup.target(text, "container")
        if target.error is None:
            return target.id
        try:
            pod = lookup.find_pod(text)
        except PycrictlError:
            raise target.error from None
    else:
        pod = lookup.find_pod(text)
    return PodFilter(f"{pod.metadata.namespace}/{pod.metadata.name}")


def logs_of(
    client: CriClient, pods: PodFilter, *, previous: bool = False, warn: Callable[[str], None]
) -> list[ContainerLog]:
    """Return the logs of the newest attempt of each container, or of the attempt before.

    ``warn`` is called for each container without such a log.
    """
    lookup = Lookup(client)
    selected = [pod for pod in lookup.pods if pods.match(pod)]
    if not selected:
        raise NotFound("no pod is selected", hint="'pycrictl pods' lists the pods of the node")
    containers = {
        container.id: container
        for pod in selected
        for container in lookup.containers_of(pod)
        if pods.container in ("", container.metadata.name)
        and container.state != cri_pb2.CONTAINER_CREATED
        and (container.metadata.attempt or not previous)
    }
    logs = []
    for container in sorted(containers.values(), key=lambda container: container.created_at):
        name = lookup.full_name(container)
        try:
            log = container_log(client, container.id, previous=previous)
            logs.append(replace(log, name=name))
        except PycrictlError as error:
            warn(f"{name}: {error.message}")
    return logs
