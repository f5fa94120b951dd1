"""The logs of a container, of pods, or of the node: their paths, and whether they may grow."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Final

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

ASK_AGAIN_S: Final = 1.0
"""Minimum interval between polls of the runtime about running containers."""

PATIENCE_S: Final = 10.0
"""How long the runtime may be unavailable while a log is followed; containers survive a restart."""


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


class Polling:
    """Limits how often the runtime is polled, and tolerates short outages."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._asked = self._answered = clock()

    def is_due(self) -> bool:
        return self._clock() - self._asked >= ASK_AGAIN_S

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Suppress the failures of a runtime that answered within the last ten seconds."""
        self._asked = self._clock()
        try:
            yield
        except (ConnectError, DeadlineExceeded, Unavailable):
            if self._clock() - self._answered > PATIENCE_S:
                raise
        else:
            self._answered = self._clock()


def life(
    client: CriClient, log: ContainerLog, *, clock: Callable[[], float] = time.monotonic
) -> Callable[[], bool]:
    """Return a check whether a container runs, which raises if the runtime stays unavailable."""
    lives, polling = log.is_alive, Polling(clock)
    request = cri_pb2.ContainerStatusRequest(container_id=log.container_id)

    def lasts() -> bool:
        nonlocal lives
        if lives and polling.is_due():
            with polling.asking():
                try:
                    status = client.call("ContainerStatus", request).status
                    lives = status.state == cri_pb2.CONTAINER_RUNNING
                except NotFound:
                    lives = False
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


def pod_of_id(client: CriClient, pod_sandbox_id: str) -> PodFilter | None:
    request = cri_pb2.PodSandboxStatusRequest(pod_sandbox_id=pod_sandbox_id)
    try:
        metadata = client.call("PodSandboxStatus", request).status.metadata
    except PycrictlError:
        return None
    return PodFilter(f"{metadata.namespace}/{metadata.name}")


@dataclass(eq=False)
class PodLogs:
    client: CriClient
    pods: PodFilter
    warn: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._known: set[str] = set()
        self._running: set[str] = set()
        self._is_ready = False
        self._polling = Polling(self.clock)

    def present(self, *, previous: bool = False) -> list[ContainerLog]:
        """Return the logs of the newest attempt of each container, or of the attempt before."""
        lookup = Lookup(self.client)
        pods = [pod for pod in lookup.pods if self.pods.match(pod)]
        if not pods:
            raise NotFound("no pod is selected", hint="'pycrictl pods' lists the pods of the node")
        newest = {
            container.id: container
            for pod in pods
            for container in lookup.containers_of(pod)
            if not previous or container.metadata.attempt
        }
        self._note(pods, lookup.containers)
        # Exited containers are earlier attempts or shown here: ``new`` must not return them.
        self._known |= {
            container.id
            for container in lookup.containers
            if container.state == cri_pb2.CONTAINER_EXITED
        }
        return list(self._logs(lookup, newest.values(), previous=previous))

    def new(self) -> list[ContainerLog]:
        if not self._polling.is_due():
            return []
        lookup = Lookup(self.client)
        started: list[cri_pb2.Container] = []
        with self._polling.asking():
            pods = [pod for pod in lookup.pods if self.pods.match(pod)]
            self._note(pods, lookup.containers)
            sandboxes = {pod.id for pod in pods}
            started = [
                container
                for container in lookup.containers
                if container.pod_sandbox_id in sandboxes and container.id not in self._known
            ]
        return list(self._logs(lookup, started))

    def is_running(self, container_id: str) -> bool:
        """Return whether a container was running when the lists were last fetched."""
        return container_id in self._running

    def lasts(self) -> bool:
        """Return whether a pod is ready (its containers may restart) or a known container runs."""
        return self._is_ready or bool(self._running & self._known)

    def _note(self, pods: list[cri_pb2.PodSandbox], containers: list[cri_pb2.Container]) -> None:
        self._is_ready = any(pod.state == cri_pb2.SANDBOX_READY for pod in pods)
        self._running = {
            container.id for container in containers if container.state == cri_pb2.CONTAINER_RUNNING
        }

    def _logs(
        self, lookup: Lookup, containers: Iterable[cri_pb2.Container], *, previous: bool = False
    ) -> Iterator[ContainerLog]:
        for container in sorted(containers, key=lambda container: container.created_at):
            is_other = self.pods.container not in ("", container.metadata.name)
            if is_other or container.state == cri_pb2.CONTAINER_CREATED:
                continue
            self._known.add(container.id)
            name = lookup.full_name(container)
            try:
                log = container_log(self.client, container.id, previous=previous)
                yield replace(log, name=name)
            except PycrictlError as error:
                self.warn(f"{name}: {error.message}")
