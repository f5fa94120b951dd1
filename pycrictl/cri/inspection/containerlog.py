"""A container's log: where it is, and whether more is to come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from pycrictl import noderoot
from pycrictl._proto import cri_pb2
from pycrictl.cri.inspection import statuses
from pycrictl.errors import (
    ConnectError,
    DeadlineExceeded,
    NotFound,
    PycrictlError,
    Unavailable,
)
from pycrictl.units import quote

if TYPE_CHECKING:
    from pycrictl.cri.calls.client import CriClient

ASK_AGAIN_S: Final = 1.0
"""How old an answer about a running container may be."""

PATIENCE_S: Final = 10.0
"""How long the runtime may be away while a log is followed; containers outlive its restart."""


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
    path = previous_path(status.log_path, status.metadata.attempt)
    return ContainerLog(container_id, noderoot.locate(path), is_alive=False)


def previous_path(path: str, attempt: int) -> str:
    """Kubelet numbers the logs of a container by its attempts, in one folder."""
    log = PurePosixPath(path)
    return str(log.parent / f"{attempt - 1}{log.suffix}")


def reopen_log(client: CriClient, container_id: str) -> None:
    client.call(
        "ReopenContainerLog",
        cri_pb2.ReopenContainerLogRequest(container_id=container_id),
        what=f"reopening the log of {quote(container_id)}",
    )


class Polling:
    """When the runtime was asked and answered last: now and then is enough, and it may be away."""

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


class Life:
    """Whether a container may still write."""

    def __init__(
        self, client: CriClient, log: ContainerLog, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._container_id = log.container_id
        self._lives = log.is_alive
        self._polling = Polling(clock)

    def lasts(self) -> bool:
        """Return whether it runs; raise if the runtime has not answered for ten seconds."""
        if not self._lives or not self._polling.is_due():
            return self._lives
        request = cri_pb2.ContainerStatusRequest(container_id=self._container_id)
        with self._polling.asking():
            try:
                answer = self._client.call("ContainerStatus", request)
            except NotFound:
                self._lives = False
            else:
                self._lives = answer.status.state == cri_pb2.CONTAINER_RUNNING
        return self._lives
