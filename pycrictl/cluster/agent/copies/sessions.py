"""The copies of this node as sessions of the API: its requests become calls of ``copy.service``.

A copy ends with its agent, and must then be started again.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import NotFound, PycrictlError
from pycrictl.base.units import format_moment, quote
from pycrictl.cluster.agent.api.answers import respond
from pycrictl.cluster.agent.copies.documents import (
    Audit,
    CopyEnded,
    CopyOwner,
    CopyRequest,
    CopySpec,
    NodeCopy,
    Refused,
    name_of,
    parse_request,
    refused,
)
from pycrictl.cluster.agent.copies.stream_link import StreamLink, accept
from pycrictl.copy.service.copies import Copies
from pycrictl.copy.service.life import Event, State
from pycrictl.copy.service.transfer import Download, Upload
from pycrictl.copy.transfer.messages import ResumableProtocol
from pycrictl.kube.pods import Pod
from pycrictl.runtime.cri.lists.lookup import containers

POD_UID: Final = "io.kubernetes.pod.uid"
CONTAINER_NAME: Final = "io.kubernetes.container.name"

PATIENCE_S: Final = 20.0
"""How long a request waits for its result; the API server gives a request 60 s."""


@dataclass(frozen=True)
class Sessions:
    """Answers requests of users who may make copies; ``audit`` gets those refused at once."""

    service: Copies[NodeCopy]
    audit: Audit

    async def answer(self, asked: CopyRequest, owner: CopyOwner, pod: Pod) -> web.StreamResponse:
        """Answer a request; raise ``Refused`` if that fails."""
        try:
            match asked.http.method, asked.words:
                case "POST", []:
                    copy = await self._create(owner, pod, await asked.body())
                    return respond(copy.document, status=201)
                case "GET", [name]:
                    copy = self._find(name, owner, pod)
                case "POST", [name, "commit"]:
                    copy = self._find(name, owner, pod)
                    await self.service.commit(copy, PATIENCE_S)
                case "POST", [name, "abandon"]:
                    copy, why = self._find(name, owner, pod), "it was cancelled"
                    await self.service.give_up(copy, Event.ABANDONED, why, limit_s=PATIENCE_S)
                case "GET", [name, "data"]:
                    return await self._move(self._find(name, owner, pod), asked)
                case _, [] | [_] | [_, "commit" | "abandon" | "data"]:
                    raise Refused(405, f"{asked.http.method[:20]} is not served here")
                case _:
                    raise Refused(404, "the server could not find the requested resource")
        except PycrictlError as exc:
            raise refused(exc) from None
        return respond(copy.document)

    async def _create(self, owner: CopyOwner, pod: Pod, body: bytes) -> NodeCopy:
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
            transfer: Upload | Download = Download(protocol, self.service.folder)
            if spec.is_to:
                transfer = Upload(protocol, spec.size_bytes, spec.crc32)
            ids = container.id, spec.path, transfer, container.pod_sandbox_id
            now = format_moment(time.time())
            copy = NodeCopy(*ids, rules=spec.rules, user=owner, pod=pod, spec=spec, created=now)
            copy.name = name or copy.name
            await self.service.begin(copy, PATIENCE_S)
        except (PycrictlError, Refused) as exc:
            if copy is None or copy.making is None:  # it has not even begun
                record = owner, name_of(pod), spec, State.REFUSED, spec.size_bytes
                self.audit(CopyEnded(*record, error=exc.message))
            raise
        return copy

    def _find(self, name: str, owner: CopyOwner, pod: Pod) -> NodeCopy:
        """Return a copy, and count this as activity; another user's copy is refused as unknown."""
        copy = self.service.current.get(name)
        key = owner, name_of(pod), pod.uid
        if copy is None or (copy.user, name_of(copy.pod), copy.pod.uid) != key:
            raise Refused(
                404,
                f"copy {quote(name[:32])} is not known on the node of"
                f" pod {quote(name_of(pod))}: the agent was restarted, there was no request"
                " about it for 15 minutes, or the pod was replaced; start the copy again",
            )
        copy.heard_s = self.service.clock()
        return copy

    async def _move(self, copy: NodeCopy, asked: CopyRequest) -> web.StreamResponse:
        """Upgrade the connection of a request, and continue a copy over it until it is closed."""
        offset = asked.given.get("offset", "0")
        if not re.fullmatch("[0-9]{1,19}", offset):
            raise Refused(400, "offset is not a number")
        self.service.check_open(copy)
        socket = await accept(asked.http)
        link = StreamLink(socket, asked.http)
        try:
            await self.service.attach(copy, link, int(offset))
            await link.closed.wait()
        finally:
            link.abort()
        return socket

    def _find_container(self, pod: Pod, name: str) -> cri_pb2.Container:
        """Return the running container of a pod; called in a thread."""
        labels = {POD_UID: pod.uid, CONTAINER_NAME: name}
        is_running = cri_pb2.ContainerStateValue(state=cri_pb2.CONTAINER_RUNNING)
        wanted = cri_pb2.ContainerFilter(label_selector=labels, state=is_running)
        with self.service.connect() as client:
            running = containers(client, wanted)
        if running:
            return max(running, key=lambda container: container.created_at)
        shown = quote(name_of(pod))
        names = [image.container for image in pod.images if not image.is_volume]
        problem = f"container {quote(name)} of pod {shown} is not running"
        if names and name not in names:
            problem = f"pod {shown} has no container {quote(name)}, only {', '.join(names)}"
        raise NotFound(problem, code="NotFound")
