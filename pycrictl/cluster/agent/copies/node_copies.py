"""The copies of this node, as the API offers them: the agent's ``Door`` to the service of copies.

A copy into a container is staged there as it arrives; a copy out of one is spooled in a file
without a name. A copy ends with its agent: its client then starts it again. Files are accessed
through the root of the container's first process; programs of the container are never run.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pycrictl._proto import cri_pb2
from pycrictl.base.environ import raise_file_limit
from pycrictl.base.errors import FailedPrecondition, NotFound, PycrictlError
from pycrictl.base.units import format_moment, quote
from pycrictl.cluster.agent.copies.requests import (
    Audit,
    CopyEnded,
    CopyOwner,
    CopySpec,
    Direction,
    NodeCopy,
    Place,
    Refused,
    lasting,
    phase_of,
    refused,
)
from pycrictl.copy import on_node
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.service.copies import Copies, Copy, Skips
from pycrictl.copy.service.life import Event, State
from pycrictl.copy.service.slots import Slots
from pycrictl.copy.service.transfer import Download, Upload
from pycrictl.copy.transfer.flow import ignore
from pycrictl.copy.transfer.messages import ResumableProtocol
from pycrictl.copy.tree.walk import Watch
from pycrictl.kube.pods import Pod

if TYPE_CHECKING:
    from pycrictl.runtime.cri.calls.client import CriClient

POD_UID: Final = "io.kubernetes.pod.uid"
CONTAINER_NAME: Final = "io.kubernetes.container.name"

LIFETIME_S: Final = 15 * 60.0
"""A copy without any activity of its client for this long is removed."""

PATIENCE_S: Final = 20.0
"""How long a request waits for its result; the API server gives a request 60 s."""


class NodeCopies:
    """The copies of this node.

    Args:
        folder: for the archives of copies out of containers.
        open_client: connects to the runtime.
        audit: called with the end of each copy, refused ones included.
        lifetime_s: how long a copy is kept without any activity of its client.
    """

    def __init__(
        self,
        folder: str,
        open_client: Callable[[], AbstractContextManager[CriClient]],
        slots: Slots[Copy[NodeCopy]],
        audit: Audit,
        *,
        lifetime_s: float = LIFETIME_S,
    ) -> None:
        self._folder = folder
        self._open_client = open_client
        self.audit = audit
        self._clock = slots.clock
        self.copies: Copies[NodeCopy] = Copies(slots, self, lifetime_s=lifetime_s, keeps_ended=True)
        self.stop = self.copies.stop

    def start(self) -> None:
        """Remove what killed programs have left in containers."""
        threading.Thread(target=self._sweep, daemon=True).start()

    def snapshot(self) -> dict[str, int]:
        held_bytes = self.copies.slots.held_bytes
        return {"copies": len(self.copies.running), "spool_bytes": held_bytes}

    # The door of the copies

    def explain(self, copy: Copy[NodeCopy], exc: Exception) -> Refused:
        return refused(exc)

    def status(self, copy: Copy[NodeCopy], error: Exception | None) -> bytes:
        if not isinstance(error, Refused):
            return b""  # the client requests it
        return json.dumps(lasting(error).document).encode()

    def ended(self, copy: Copy[NodeCopy]) -> None:
        about, error = copy.about, getattr(copy.error, "message", "")
        sizes = copy.size_bytes, copy.offset
        self.audit(CopyEnded(about.owner, about.place, about.spec, copy.state, *sizes, error))

    # Requests of clients

    async def begin(
        self, owner: CopyOwner, place: Place, spec: CopySpec, name: str = ""
    ) -> Copy[NodeCopy]:
        """Begin a copy.

        A copy out of a container is returned once its archive is complete, as in KEP-4582; if that
        takes long, it is returned earlier, in the phase ``Measuring``. With the option ``early``,
        it is returned once its archive has begun.
        """
        skips, is_to = Skips(), spec.direction is Direction.TO
        about = NodeCopy(owner, place, spec, format_moment(time.time()))
        protocol = ResumableProtocol(is_client=False, is_sender=not is_to)
        transfer = (
            Upload(protocol, spec.size_bytes, spec.crc32)
            if is_to
            else Download(protocol, self._folder)
        )
        copy = Copy(
            about, transfer, skips,
            owner=owner, size_bytes=spec.size_bytes, crc32=spec.crc32, is_early=spec.early,
        )  # fmt: skip
        copy.name = name or copy.name

        def expect(size_bytes: int) -> None:
            about.expected_bytes = size_bytes

        watch = Watch(ignore, skips.add, note=skips.add_note, on_archive=expect)
        try:
            about.place = await asyncio.to_thread(self._find_container, place)
            copy.pod = about.place.sandbox_id
            await self.copies.begin(copy, partial(self.work, copy, watch))
            await self.copies.made(copy, PATIENCE_S)
        except Exception as exc:
            self.copies.fail(copy, exc, Event.REFUSED)  # unless it has failed by itself
            await self.copies.give_up(copy, Event.REFUSED, "")
            raise copy.error or refused(exc) from None
        return copy

    def find(self, name: str, owner: CopyOwner, pod: Pod) -> Copy[NodeCopy]:
        """Return a copy, and count this as activity; another user's copy is refused as unknown."""
        copy, whole_pod = self.copies.current.get(name), f"{pod.namespace}/{pod.name}"
        if copy is not None and (copy.owner, copy.about.place.whole_pod) == (owner, whole_pod):
            if copy.about.place.pod_uid != pod.uid:
                raise refused(_replaced(copy.about.place))
            copy.heard_s = self._clock()
            return copy
        raise Refused(
            404,
            f"copy {quote(name[:32])} is not known on the node of"
            f" pod {quote(whole_pod)}: the agent was restarted, there was no request"
            " about it for 15 minutes, or the pod was replaced; start the copy again",
        )

    def expires(self, copy: Copy[NodeCopy]) -> str:
        left_s = copy.heard_s + self.copies.lifetime_s - self._clock()
        return format_moment(time.time() + left_s)

    async def check_moving(self, copy: Copy[NodeCopy], offset: int) -> None:
        """Require that a copy can continue to transfer bytes at an offset."""
        await self._check(copy)
        _check_not_failed(copy)  # it may have failed meanwhile
        if copy.state is State.STOPPING:
            raise Refused(503, "the agent is stopping")
        if copy.state not in (State.MEASURING, State.WAITING, State.COPYING):
            raise Refused(409, f"the copy is {phase_of(copy).lower()}: no bytes are wanted")
        if copy.state is not State.MEASURING and offset > copy.size_bytes:
            raise Refused(422, f"the archive has {copy.size_bytes} bytes")

    async def commit(self, copy: Copy[NodeCopy]) -> None:
        """Move an archive that has arrived into place, or end a copy that the client has whole.

        If that takes long, the copy is in the phase ``Committing`` afterwards, and a second call
        has the result.
        """
        if copy.state is State.MEASURING:
            raise Refused(409, "the archive is still being made")
        if copy.is_to and copy.state in (State.WAITING, State.COPYING):
            if copy.offset != copy.size_bytes:
                raise Refused(409, f"only {copy.offset} of {copy.size_bytes} bytes have arrived")
            await self._check(copy)
        if not copy.state.is_over:
            await self.copies.commit(copy, PATIENCE_S)

    async def abandon(self, copy: Copy[NodeCopy]) -> None:
        """Abandon a copy: nothing of it is left, unless it is already in place."""
        await self.copies.give_up(copy, Event.ABANDONED, "it was given up", limit_s=PATIENCE_S)

    async def _check(self, copy: Copy[NodeCopy]) -> None:
        """Require that a copy can continue: it has not failed, and its container still runs."""
        _check_not_failed(copy)
        try:
            await asyncio.to_thread(self._check_runs, copy.about.place)
        except PycrictlError as exc:
            if isinstance(exc, FailedPrecondition):
                self.copies.fail(copy, exc)
            raise refused(exc) from exc

    # In threads

    def work(self, copy: Copy[NodeCopy], watch: Watch) -> Summary:
        """Read or write the archive of a copy."""
        spec = copy.about.spec
        raise_file_limit()
        with self._method(copy.about.place) as method:
            if isinstance(copy.transfer, Upload):
                return method.write(copy.transfer, spec.path, spec.rules, watch)
            return copy.transfer.fill(method, spec.path, watch, follow=spec.follow_links)

    @contextmanager
    def _method(self, place: Place) -> Iterator[on_node.OnNode]:
        with self._open_client() as client:
            try:
                yield on_node.OnNode(partial(on_node.locate_here, client, place.container_id))
            except (FailedPrecondition, NotFound):
                self._check_runs(place)
                raise

    def _find_container(self, asked: Place) -> Place:
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

    def _check_runs(self, place: Place) -> None:
        """Require that a container still runs; raise ``FailedPrecondition`` if not."""
        found = self._containers(id=place.container_id)
        if not any(one.state == cri_pb2.CONTAINER_RUNNING for one in found):
            raise _replaced(place)

    def _containers(self, **wanted: Any) -> Sequence[cri_pb2.Container]:
        request = cri_pb2.ListContainersRequest(filter=cri_pb2.ContainerFilter(**wanted))
        with self._open_client() as client:
            found: Sequence[cri_pb2.Container] = client.call("ListContainers", request).containers
        return found

    def _sweep(self) -> None:
        with suppress(PycrictlError, OSError), self._open_client() as client:
            on_node.sweep(partial(on_node.locate_here, client))


def _check_not_failed(copy: Copy[NodeCopy]) -> None:
    if isinstance(copy.error, Refused):
        raise lasting(copy.error)


def _replaced(place: Place) -> FailedPrecondition:
    return FailedPrecondition(
        f"container {quote(place.container)} of pod {quote(place.whole_pod)} was stopped or"
        " replaced since the copy began: the copy cannot be resumed",
        code="FailedPrecondition",
        hint="start the copy again",
    )
