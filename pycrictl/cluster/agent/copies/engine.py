"""The node's part of a copy: finds the container, and reads or writes archives of its files.

Files are accessed through the root of the container's first process. Programs of the container are
never run. All of it blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pycrictl._proto import cri_pb2
from pycrictl.base.environ import raise_file_limit
from pycrictl.base.errors import FailedPrecondition, NotFound, PycrictlError
from pycrictl.base.units import quote
from pycrictl.cluster.agent.copies.requests import CopySpec, Place
from pycrictl.copy import on_node
from pycrictl.copy.archive.archives import Incoming
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.service.transfer import Download
from pycrictl.copy.tree.walk import Watch

if TYPE_CHECKING:
    from pycrictl.runtime.cri.calls.client import CriClient

POD_UID: Final = "io.kubernetes.pod.uid"
CONTAINER_NAME: Final = "io.kubernetes.container.name"


class Engine:
    def __init__(self, open_client: Callable[[], AbstractContextManager[CriClient]]) -> None:
        self._open_client = open_client

    def find(self, asked: Place) -> Place:
        """Return a place with the IDs of its running container."""
        labels = {POD_UID: asked.pod_uid, CONTAINER_NAME: asked.container}
        found = self._containers(label_selector=labels)
        running = [one for one in found if one.state == cri_pb2.CONTAINER_RUNNING]
        if not running:
            state = "is not running" if found else "has not been made yet"
            raise NotFound(
                f"container {quote(asked.container)} of pod {quote(asked.whole_pod)} {state}",
                code="NotFound",
            )
        newest = max(running, key=lambda one: one.created_at)
        return replace(asked, container_id=newest.id, sandbox_id=newest.pod_sandbox_id)

    def check(self, place: Place) -> None:
        """Require that a container still runs; raise ``FailedPrecondition`` if not."""
        found = self._containers(id=place.container_id)
        if not any(one.state == cri_pb2.CONTAINER_RUNNING for one in found):
            raise replaced(place)

    def sweep(self) -> None:
        with suppress(PycrictlError, OSError), self._open_client() as client:
            on_node.sweep(partial(on_node.locate_here, client))

    def pack(self, place: Place, spec: CopySpec, download: Download, watch: Watch) -> Summary:
        with self._method(place) as method:
            return download.fill(method, spec.path, watch, follow=spec.follow_links)

    def place(self, place: Place, spec: CopySpec, archive: Incoming, watch: Watch) -> Summary:
        with self._method(place) as method:
            return method.write(archive, spec.path, spec.rules, watch)

    def _containers(self, **wanted: Any) -> Sequence[cri_pb2.Container]:
        request = cri_pb2.ListContainersRequest(filter=cri_pb2.ContainerFilter(**wanted))
        with self._open_client() as client:
            found: Sequence[cri_pb2.Container] = client.call("ListContainers", request).containers
        return found

    @contextmanager
    def _method(self, place: Place) -> Iterator[on_node.OnNode]:
        raise_file_limit()
        with self._open_client() as client:
            try:
                yield on_node.OnNode(partial(on_node.locate_here, client, place.container_id))
            except (FailedPrecondition, NotFound):
                self.check(place)
                raise


def replaced(place: Place) -> FailedPrecondition:
    return FailedPrecondition(
        f"container {quote(place.container)} of pod {quote(place.whole_pod)} was stopped or"
        " replaced since the copy began: the copy cannot be resumed",
        code="FailedPrecondition",
        hint="start the copy again",
    )
