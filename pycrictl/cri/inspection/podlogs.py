"""The logs of several containers: those of a pod, of the pods with a label, of the whole node."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pycrictl._proto import cri_pb2
from pycrictl.cri.inspection.containerlog import ContainerLog, Polling, container_log
from pycrictl.cri.lists.lookup import WHOLE_ID, Lookup
from pycrictl.errors import NotFound, PycrictlError

if TYPE_CHECKING:
    from pycrictl.cri.calls.client import CriClient


@dataclass(frozen=True, slots=True)
class PodFilter:
    """Conditions on pods: NAMESPACE/NAME, labels."""

    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def match(self, pod: cri_pb2.PodSandbox) -> bool:
        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        has_labels = all(pod.labels.get(key) == value for key, value in self.labels.items())
        return has_labels and self.name in ("", name)


@dataclass(frozen=True, slots=True)
class NamedLog:
    name: str
    log: ContainerLog


def find(client: CriClient, text: str, *, whole_pod: bool = False) -> str | PodFilter:
    """Return the ID of the container that a word stands for, or the pod of several."""
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


class PodLogs:
    """The logs of the containers of pods, and whether more is to come."""

    def __init__(
        self,
        client: CriClient,
        pods: PodFilter,
        *,
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._pods = pods
        self._warn = warn
        self._known: set[str] = set()
        self._running: set[str] = set()
        self._is_ready = False
        self._polling = Polling(clock)

    def present(self, *, previous: bool = False) -> list[NamedLog]:
        """Return the logs of the newest attempt of each container, or of the one before it."""
        lookup = Lookup(self._client)
        pods = [pod for pod in lookup.pods if self._pods.match(pod)]
        if not pods:
            raise NotFound("no pod is selected", hint="'pycrictl pods' lists the pods of the node")
        newest = {
            each.id: each
            for pod in pods
            for each in lookup.containers_of(pod)
            if not previous or each.metadata.attempt
        }
        self._note(pods, lookup.containers)
        # Whatever has ended before is the past of a container, whose newest attempt is shown.
        self._known |= {
            each.id for each in lookup.containers if each.state == cri_pb2.CONTAINER_EXITED
        }
        return list(self._logs(lookup, newest.values(), previous=previous))

    def new(self) -> list[NamedLog]:
        """Return the logs of the containers that were started since."""
        if not self._polling.is_due():
            return []
        lookup = Lookup(self._client)
        started: list[cri_pb2.Container] = []
        with self._polling.asking():
            pods = [pod for pod in lookup.pods if self._pods.match(pod)]
            self._note(pods, lookup.containers)
            sandboxes = {pod.id for pod in pods}
            started = [
                each
                for each in lookup.containers
                if each.pod_sandbox_id in sandboxes and each.id not in self._known
            ]
        return list(self._logs(lookup, started))

    def is_running(self, container_id: str) -> bool:
        """Return whether a container was running when the lists were last fetched."""
        return container_id in self._running

    def lasts(self) -> bool:
        """Return whether a pod is ready, so that its containers may start again, or one runs."""
        return self._is_ready or bool(self._running & self._known)

    def _note(self, pods: list[cri_pb2.PodSandbox], containers: list[cri_pb2.Container]) -> None:
        self._is_ready = any(pod.state == cri_pb2.SANDBOX_READY for pod in pods)
        self._running = {each.id for each in containers if each.state == cri_pb2.CONTAINER_RUNNING}

    def _logs(
        self, lookup: Lookup, containers: Iterable[cri_pb2.Container], *, previous: bool = False
    ) -> Iterator[NamedLog]:
        for each in sorted(containers, key=lambda each: each.created_at):
            if each.state == cri_pb2.CONTAINER_CREATED:
                continue
            self._known.add(each.id)
            name = lookup.full_name(each)
            try:
                yield NamedLog(name, container_log(self._client, each.id, previous=previous))
            except PycrictlError as error:
                self._warn(f"{name}: {error.message}")
