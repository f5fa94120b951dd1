"""The copies of this node, as the API offers them.

A copy into a container is staged there as it arrives; a copy out of one is spooled in a file
without a name. A copy ends with its agent: its client then starts it again. Files are accessed
through the root of the container's first process; programs of the container are never run.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from pycrictl._proto import cri_pb2
from pycrictl.base.environ import raise_file_limit
from pycrictl.base.errors import NotFound, PycrictlError
from pycrictl.base.units import format_moment, quote
from pycrictl.cluster.agent.copies.requests import (
    Audit,
    CopyEnded,
    CopyOwner,
    CopySpec,
    NodeCopy,
    Refused,
    lasting,
    parse_request,
    refused,
)
from pycrictl.copy import on_node
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.service.copies import Copies, Copy
from pycrictl.copy.service.life import Event, State
from pycrictl.copy.service.slots import Slots
from pycrictl.copy.service.transfer import Download, Upload
from pycrictl.copy.transfer.messages import ResumableProtocol, ignore
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


class NodeCopies(Copies[NodeCopy]):
    """The copies of this node.

    Args:
        folder: where archives of copies out of containers are kept.
        open_client: connects to the runtime.
        audit: called with the end of each copy, refused ones included.
    """

    def __init__(
        self,
        folder: str,
        open_client: Callable[[], AbstractContextManager[CriClient]],
        slots: Slots,
        audit: Audit,
        *,
        lifetime_s: float = LIFETIME_S,
    ) -> None:
        super().__init__(slots, lifetime_s=lifetime_s, keeps_ended=True)
        self._folder = folder
        self._open_client = open_client
        self.audit = audit

    def start(self) -> None:
        """Remove what killed programs have left in containers."""
        threading.Thread(target=self._sweep_stages, daemon=True).start()

    def explain(self, exc: Exception) -> Refused:
        return refused(exc)

    def last_word(self, copy: Copy[NodeCopy], error: Exception | None) -> bytes:
        if not isinstance(error, Refused):
            return b""  # the client requests it
        return json.dumps(lasting(error).document).encode()

    def ended(self, copy: Copy[NodeCopy]) -> None:
        about, error = copy.about, getattr(copy.error, "message", "")
        pod, sizes = _whole(about.pod), (copy.size_bytes, copy.offset)
        what = about.owner, pod, about.container, about.spec
        self.audit(CopyEnded(*what, copy.state, *sizes, error))

    # Requests of clients

    async def create(self, owner: CopyOwner, pod: Pod, body: bytes) -> Copy[NodeCopy]:
        """Begin the copy that a request asks for.

        A copy out of a container is returned once its archive has begun; if that takes long, it is
        returned earlier. It is in the phase ``Measuring`` until its archive is complete.
        """
        spec, copy = CopySpec(), None
        try:
            name, spec = parse_request(body)
            container = await asyncio.to_thread(self._find_container, pod, spec)
            protocol = ResumableProtocol(is_client=False, is_sender=not spec.is_to)
            transfer: Upload | Download = Download(protocol, self._folder)
            if spec.is_to:
                transfer = Upload(protocol, spec.size_bytes, spec.crc32)
            created = format_moment(time.time())
            target = spec.container or pod.container
            about = NodeCopy(owner, pod, spec, target, container.id, created)
            copy = Copy(about, transfer, container.pod_sandbox_id, owner)
            copy.name = name or copy.name
            watch = Watch(ignore, copy.skip, note=copy.add_note, on_archive=about.expect)
            await self.begin(copy, partial(self.work, copy, watch), PATIENCE_S)
        except Exception as exc:
            why = refused(exc)
            if copy is None or copy.making is None:  # it has not even begun
                self.refuse(owner, pod, spec, why.message)
            raise why from None
        return copy

    def refuse(self, owner: CopyOwner, pod: Pod, spec: CopySpec, why: str) -> None:
        """Note that a copy was refused."""
        what = owner, _whole(pod), spec.container or pod.container, spec
        self.audit(CopyEnded(*what, State.REFUSED, spec.size_bytes, error=why))

    def find(self, name: str, owner: CopyOwner, pod: Pod) -> Copy[NodeCopy]:
        """Return a copy, and count this as activity; another user's copy is refused as unknown."""
        copy = self.current.get(name)
        key = owner, pod.namespace, pod.name, pod.uid
        if copy is None or copy.about.key != key:
            raise Refused(
                404,
                f"copy {quote(name[:32])} is not known on the node of"
                f" pod {quote(_whole(pod))}: the agent was restarted, there was no request"
                " about it for 15 minutes, or the pod was replaced; start the copy again",
            )
        copy.heard_s = self.clock()
        return copy

    def check_moving(self, copy: Copy[NodeCopy]) -> None:
        """Require that a copy can continue to transfer bytes."""
        if isinstance(copy.error, Refused):
            raise lasting(copy.error)
        if copy.state not in (State.MEASURING, State.WAITING, State.COPYING):
            raise Refused(409, f"the copy is {copy.state}: no bytes are wanted")

    async def finish(self, copy: Copy[NodeCopy]) -> None:
        """Move an archive that has arrived into place, or end a copy that the client has whole.

        If that takes long, the copy is in the phase ``Committing`` afterwards, and a second call
        has the result.
        """
        if copy.state is State.MEASURING:
            raise Refused(409, "the archive is still being made")
        is_open = copy.state in (State.WAITING, State.COPYING)
        if copy.is_to and is_open and copy.offset != copy.size_bytes:
            raise Refused(409, f"only {copy.offset} of {copy.size_bytes} bytes have arrived")
        if not copy.state.is_over:
            await self.commit(copy, PATIENCE_S)

    async def abandon(self, copy: Copy[NodeCopy]) -> None:
        """Abandon a copy: nothing of it is left, unless it is already in place."""
        await self.give_up(copy, Event.ABANDONED, "it was given up", limit_s=PATIENCE_S)

    # In threads

    def work(self, copy: Copy[NodeCopy], watch: Watch) -> Summary:
        """Read or write the archive of a copy."""
        spec = copy.about.spec
        raise_file_limit()
        with self._open_client() as client:
            locate = partial(on_node.locate_here, client, copy.about.container_id)
            method, follow = on_node.OnNode(locate), spec.follow_links
            return copy.transfer.run(method, spec.path, spec.rules, watch, follow=follow)

    def _find_container(self, pod: Pod, spec: CopySpec) -> cri_pb2.Container:
        """Return the running container of a pod."""
        name = spec.container or pod.container
        labels = {POD_UID: pod.uid, CONTAINER_NAME: name}
        wanted = cri_pb2.ContainerFilter(label_selector=labels)
        with self._open_client() as client:
            request = cri_pb2.ListContainersRequest(filter=wanted)
            containers = client.call("ListContainers", request).containers
        running = [
            container for container in containers if container.state == cri_pb2.CONTAINER_RUNNING
        ]
        if not running:
            shown = quote(_whole(pod))
            names = [image.container for image in pod.images if not image.is_volume]
            what = f"container {quote(name)} of pod {shown} is not running"
            if names and name not in names:
                what = f"pod {shown} has no container {quote(name)}, only {', '.join(names)}"
            raise NotFound(what, code="NotFound")
        latest: cri_pb2.Container = max(running, key=lambda container: container.created_at)
        return latest

    def _sweep_stages(self) -> None:
        with suppress(PycrictlError, OSError), self._open_client() as client:
            on_node.sweep(partial(on_node.locate_here, client))


def _whole(pod: Pod) -> str:
    return f"{pod.namespace}/{pod.name}"
