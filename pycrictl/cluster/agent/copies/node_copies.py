"""The copies of this node, as the API offers them; clients whose agent ended start theirs again."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import NotFound
from pycrictl.base.units import format_moment, quote
from pycrictl.cluster.agent.copies.requests import (
    Audit,
    CopyEnded,
    CopyOwner,
    CopySpec,
    NodeCopy,
    Refused,
    parse_request,
    refused,
)
from pycrictl.copy import on_node
from pycrictl.copy.service.copies import Copies
from pycrictl.copy.service.life import State
from pycrictl.copy.service.slots import Slots
from pycrictl.copy.service.transfer import Download, Upload
from pycrictl.copy.transfer.messages import ResumableProtocol
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
        self._audit = audit

    def locate(self, container_id: str) -> on_node.FirstProcess:
        with self._open_client() as client:
            return on_node.locate_here(client, container_id)

    def explain(self, exc: Exception) -> Refused:
        why = refused(exc)
        # Trying again cannot help a copy that has begun.
        return Refused(422, why.message) if why.code == 429 else why

    def last_word(self, copy: NodeCopy, error: Exception | None) -> bytes:
        """Return the refusal; the client requests the outcome of a success."""
        return json.dumps(error.document).encode() if isinstance(error, Refused) else b""

    def ended(self, copy: NodeCopy) -> None:
        sizes, error = (copy.size_bytes, copy.offset), getattr(copy.error, "message", "")
        self._audit(CopyEnded(copy.user, _whole(copy.pod), copy.spec, copy.state, *sizes, error))

    async def create(self, owner: CopyOwner, pod: Pod, body: bytes) -> NodeCopy:
        """Begin the copy that a request asks for.

        A copy out of a container is returned once its archive has begun; if that takes long, it is
        returned earlier. It is in the phase ``Measuring`` until its archive is complete.
        """
        spec, copy = CopySpec(container=pod.container), None
        try:
            name, spec = parse_request(body)
            spec = spec._replace(container=spec.container or pod.container)
            container = await asyncio.to_thread(self._find_container, pod, spec.container)
            protocol = ResumableProtocol(is_client=False, is_sender=not spec.is_to)
            transfer: Upload | Download = Download(protocol, self._folder)
            if spec.is_to:
                transfer = Upload(protocol, spec.size_bytes, spec.crc32)
            copy = NodeCopy(
                container.id,
                spec.path,
                transfer,
                container.pod_sandbox_id,
                rules=spec.rules,
                user=owner,
                pod=pod,
                spec=spec,
                created=format_moment(time.time()),
            )
            copy.name = name or copy.name
            await self.begin(copy, PATIENCE_S)
        except Exception as exc:
            why = refused(exc)
            if copy is None or copy.making is None:  # it has not even begun
                sizes = spec.size_bytes, 0
                self._audit(CopyEnded(owner, _whole(pod), spec, State.REFUSED, *sizes, why.message))
            raise why from None
        return copy

    def find(self, name: str, owner: CopyOwner, pod: Pod) -> NodeCopy:
        """Return a copy, and count this as activity; another user's copy is refused as unknown."""
        copy = self.current.get(name)
        key = owner, _whole(pod), pod.uid
        if copy is None or (copy.user, _whole(copy.pod), copy.pod.uid) != key:
            raise Refused(
                404,
                f"copy {quote(name[:32])} is not known on the node of"
                f" pod {quote(_whole(pod))}: the agent was restarted, there was no request"
                " about it for 15 minutes, or the pod was replaced; start the copy again",
            )
        copy.heard_s = self.clock()
        return copy

    def check_moving(self, copy: NodeCopy) -> None:
        """Require that a copy can continue to transfer bytes."""
        if isinstance(copy.error, Refused):
            raise copy.error
        if copy.state not in (State.MEASURING, State.WAITING, State.COPYING):
            raise Refused(409, f"the copy is {copy.state}: no bytes are wanted")

    async def finish(self, copy: NodeCopy) -> None:
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

    def _find_container(self, pod: Pod, name: str) -> cri_pb2.Container:
        """Return the running container of a pod; called in a thread."""
        labels = {POD_UID: pod.uid, CONTAINER_NAME: name}
        wanted = cri_pb2.ContainerFilter(label_selector=labels)
        with self._open_client() as client:
            request = cri_pb2.ListContainersRequest(filter=wanted)
            containers = client.call("ListContainers", request).containers
        running = [one for one in containers if one.state == cri_pb2.CONTAINER_RUNNING]
        if running:
            latest: cri_pb2.Container = max(running, key=lambda container: container.created_at)
            return latest
        shown = quote(_whole(pod))
        names = [image.container for image in pod.images if not image.is_volume]
        what = f"container {quote(name)} of pod {shown} is not running"
        if names and name not in names:
            what = f"pod {shown} has no container {quote(name)}, only {', '.join(names)}"
        raise NotFound(what, code="NotFound")


def _whole(pod: Pod) -> str:
    return f"{pod.namespace}/{pod.name}"
