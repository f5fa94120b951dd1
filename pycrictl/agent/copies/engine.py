"""What the node does for a copy: finds the container, makes archives of it, puts them into it.

The ways are those of ``pycrictl cp``: the calls of KEP-4582 where the runtime's socket is a proxy's
or the runtime has them, else the root of the container's first process. Never a program of the
container. All of it blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from pycrictl._proto import cri_pb2
from pycrictl.agent.copies.session import CopySpec, Place
from pycrictl.copy import ends, on_node
from pycrictl.copy.archive.archives import Incoming
from pycrictl.copy.method import Method, first_to_serve
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.transfer.over_rpc import OverRpc
from pycrictl.copy.tree.rootfs import raise_descriptor_limit
from pycrictl.copy.tree.walk import Watch
from pycrictl.errors import (
    ConnectError,
    FailedPrecondition,
    NotFound,
    PycrictlError,
    StreamError,
)
from pycrictl.units import quote

if TYPE_CHECKING:
    from pycrictl.cri.calls.client import CriClient

POD_UID: Final = "io.kubernetes.pod.uid"
CONTAINER_NAME: Final = "io.kubernetes.container.name"


class Gone(FailedPrecondition):
    """The container of a copy is not there any more."""


class Engine:
    def __init__(self, open_client: Callable[[], AbstractContextManager[CriClient]]) -> None:
        self._open_client = open_client

    def find(self, namespace: str, pod: str, pod_uid: str, container: str) -> Place:
        request = cri_pb2.ListContainersRequest()
        request.filter.label_selector[POD_UID] = pod_uid
        request.filter.label_selector[CONTAINER_NAME] = container
        with self._open_client() as client:
            found = client.call("ListContainers", request).containers
        running = [one for one in found if one.state == cri_pb2.CONTAINER_RUNNING]
        if not running:
            state = "is not running" if found else "has not been made yet"
            raise NotFound(
                f"container {quote(container)} of pod {quote(f'{namespace}/{pod}')} {state}",
                code="NotFound",
            )
        newest = max(running, key=lambda one: one.created_at)
        return Place(namespace, pod, pod_uid, container, newest.id, newest.pod_sandbox_id)

    def check(self, place: Place) -> None:
        request = cri_pb2.ListContainersRequest()
        request.filter.id = place.container_id
        with self._open_client() as client:
            found = client.call("ListContainers", request).containers
        if not any(one.state == cri_pb2.CONTAINER_RUNNING for one in found):
            raise replaced(place)

    def sweep(self) -> None:
        with suppress(PycrictlError, OSError), self._open_client() as client:
            on_node.sweep(partial(on_node.locate_here, client))

    def pack(
        self, place: Place, spec: CopySpec, write: Callable[[memoryview], None], watch: Watch
    ) -> None:
        def act(method: Method) -> None:
            # How many entries there may be is for the client to say.
            rules = Rules(max_entries=0)
            packing = ends.pack_from(method, spec.path, rules, watch, follow=spec.follow_links)
            with closing(packing) as pieces:
                for piece in pieces:
                    write(piece)

        with self._methods(place) as methods:
            first_to_serve(methods, act)

    def place(self, place: Place, spec: CopySpec, archive: Incoming, watch: Watch) -> Summary:
        def act(method: Method) -> Summary:
            try:
                return method.write(archive, spec.path, spec.rules, watch)
            except StreamError as exc:
                if method.name != OverRpc.name:
                    raise  # the archive is wrong
                raise ConnectError(exc.message) from exc

        with self._methods(place) as methods:
            return first_to_serve(methods, act)

    @contextmanager
    def _methods(self, place: Place) -> Iterator[list[Method]]:
        raise_descriptor_limit()
        with self._open_client() as client:
            container_id = place.container_id
            yield [OverRpc(client, container_id), on_node.for_client(client, container_id)]


def replaced(place: Place) -> Gone:
    whole = f"{place.namespace}/{place.pod}"
    return Gone(
        f"container {quote(place.container)} of pod {quote(whole)} was stopped or replaced since"
        " the copy began: the copy cannot be resumed",
        code="FailedPrecondition",
        hint="begin again",
    )
