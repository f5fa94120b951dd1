"""The logs of a container, or of a pod: their paths, and whether they may grow."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
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
    log = PurePosixPath(status.log_path)  # the kubelet numbers logs by attempt
    path = str(log.parent / f"{status.metadata.attempt - 1}{log.suffix}")
    return ContainerLog(container_id, noderoot.locate(path), is_alive=False)


def reopen_log(client: CriClient, container_id: str) -> None:
    client.call(
        "ReopenContainerLog",
        cri_pb2.ReopenContainerLogRequest(container_id=container_id),
        action=f"reopening the log of {quote(container_id)}",
    )


def life(
    client: CriClient,
    log: ContainerLog,
    *,
    every_s: float = 1.0,
    patience_s: float = 10.0,
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[], bool]:
    """Return a function that tells whether the container of a log is running.

    Args:
        every_s: the least time between two calls of the runtime.
        patience_s: how long the runtime may be unavailable before its error is raised; containers
            survive a restart of the runtime.
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


def find(client: CriClient, text: str) -> str | cri_pb2.PodSandbox:
    """Return the container ID for a word; for a pod with several containers, return the pod."""
    if re.fullmatch(WHOLE_ID, text):
        return text
    lookup = Lookup(client)
    if (named := lookup.named_pod(text)) is not None and len(lookup.containers_of(named)) > 1:
        return named
    target = lookup.target(text, "container")
    if target.error is None:
        return target.id
    try:
        return lookup.find_pod(text)
    except PycrictlError:
        raise target.error from None


def logs_of(
    client: CriClient,
    pod: cri_pb2.PodSandbox,
    *,
    previous: bool = False,
    warn: Callable[[str], None],
) -> list[tuple[str, ContainerLog]]:
    """Return the log of each container's newest attempt or, with ``previous``, of the one before.

    Each has kubectl's name (``pod/POD/CONTAINER``); ``warn`` gets the error of each missing log.
    """
    logs = []
    for container in Lookup(client).containers_of(pod):
        if container.state == cri_pb2.CONTAINER_CREATED or (
            previous and not container.metadata.attempt
        ):
            continue
        name = f"pod/{pod.metadata.name}/{container.metadata.name}"
        try:
            logs.append((name, container_log(client, container.id, previous=previous)))
        except PycrictlError as error:
            warn(f"{name}: {error.message}")
    return logs
