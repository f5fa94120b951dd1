"""``CopyToContainer`` and ``CopyFromContainer`` (KEP-4582), answered by the proxy for any runtime.

The proxy answers them even if the runtime implements them, so that quotas, checks and semantics
are the same on every node; the runtime only provides the container's first process. A copy counts
towards its pod's quota from its call until its threads have ended, or until its URL expires
unopened.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import PycrictlError, UsageError
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.spec import check_container_path
from pycrictl.copy.service.copies import Copies, Copy
from pycrictl.copy.service.life import Event
from pycrictl.copy.service.slots import CLIENT_IDLE_S, Slots, time_limit_s
from pycrictl.copy.service.transfer import Download, Upload
from pycrictl.copy.transfer.link import SocketLink
from pycrictl.copy.transfer.messages import FROM_CONTAINER, TO_CONTAINER, ChannelProtocol
from pycrictl.proxy.events import CopyEnded, Emit
from pycrictl.proxy.runtime_lookup import TIMEOUT_S, RuntimeLookup, refusal
from pycrictl.proxy.serve.stream_server import COPY_PATH, LIFETIME_S, Tokens
from pycrictl.proxy.settings import ProxySettings
from pycrictl.proxy.upstream import Answer, CallRequest
from pycrictl.runtime.cri.calls.client import CriClient

if TYPE_CHECKING:
    from google.protobuf.message import Message

COPY_TO: Final = "/runtime.v1.RuntimeService/CopyToContainer"
COPY_FROM: Final = "/runtime.v1.RuntimeService/CopyFromContainer"


class CopyCalls:
    """Answers the calls, and serves the streams behind their URLs, as long as those are valid."""

    def __init__(
        self, settings: ProxySettings, lookup: RuntimeLookup, tokens: Tokens, emit: Emit
    ) -> None:
        slots = Slots(
            size_limit_bytes=settings.copy_size_limit_bytes, copies_per_pod=settings.copies_per_pod
        )
        connect = partial(CriClient, settings.upstream, timeout_s=TIMEOUT_S)
        self.service: Copies[Copy] = Copies(
            slots,
            connect,
            settings.spool_dir,
            lambda copy: emit(self._end_of(copy)),
            lifetime_s=LIFETIME_S,
        )
        self._lookup = lookup
        self._tokens = tokens

    def snapshot(self) -> list[dict[str, Any]]:
        return [
            {**_names(copy), "state": copy.state.value, "bytes": copy.size_bytes}
            for copy in self.service.running
        ]

    async def handle(self, request: CallRequest) -> Answer:
        """Answer one of the two calls; CopyFromContainer once size and checksum are known."""
        copy = None
        try:
            copy = await self._begun(request)
            serve, now = partial(self._serve, copy), self.service.clock()
            url = self._tokens.issue(COPY_PATH, serve, now=now)
        except (PycrictlError, DecodeError) as exc:
            if copy is not None:  # there are too many URLs
                await self.service.give_up(copy, Event.ABANDONED, str(exc))
            return refusal(exc)
        response: Message = cri_pb2.CopyToContainerResponse(url=url)
        if not copy.is_to:
            response = cri_pb2.CopyFromContainerResponse(
                url=url, size=copy.size_bytes, checksum=copy.transfer.crc32
            )
        return Answer(response=response.SerializeToString())

    async def _begun(self, request: CallRequest) -> Copy:
        """Make all checks that are possible before copying, and begin the copy.

        The container is checked before the path, so that a client can use an empty path to test
        whether a copy is possible at all.
        """
        asked: cri_pb2.CopyToContainerRequest | cri_pb2.CopyFromContainerRequest
        transfer: Upload | Download
        rules = Rules()
        if request.path == COPY_TO:
            asked = cri_pb2.CopyToContainerRequest.FromString(request.message)
            transfer = Upload(ChannelProtocol(TO_CONTAINER), asked.size, asked.checksum)
        else:
            asked = cri_pb2.CopyFromContainerRequest.FromString(request.message)
            transfer = Download(ChannelProtocol(FROM_CONTAINER), self.service.folder)
            rules = Rules(archive=True)  # the client may keep times; the call does not say so
        if not asked.container_id:
            raise UsageError("no container ID is given")
        container = await self._lookup.container(asked.container_id)
        await asyncio.to_thread(self.service.locate, container.id)
        path = asked.path.encode()
        check_container_path(path)
        copy = Copy(container.id, path, transfer, container.pod_sandbox_id, rules=rules)
        await self.service.begin(copy)
        return copy

    async def _serve(self, copy: Copy, sock: socket.socket, opening: bytes) -> None:
        """Make a copy over the connection that opened its URL, and close the connection."""
        deadline = time.monotonic() + time_limit_s(copy.size_bytes)
        try:
            sock.send(opening)
            link = SocketLink(sock, idle_s=CLIENT_IDLE_S, deadline=deadline)
            await self.service.attach(copy, link)
            if copy.task is not None:
                await asyncio.shield(copy.task)
        except OSError:  # the client has disconnected
            sock.close()
            why = "its URL was not opened as a WebSocket"
            await self.service.give_up(copy, Event.ABANDONED, why)

    def _end_of(self, copy: Copy) -> CopyEnded:
        return CopyEnded(
            **_names(copy),
            size_bytes=copy.size_bytes,
            end=copy.state.value,
            duration_s=self.service.clock() - copy.began_s,
            error="" if copy.error is None else copy.error.message,
            files=copy.summary.files if copy.error is None else None,
            skipped=copy.skipped_count,
        )


def _names(copy: Copy) -> dict[str, str]:
    return {
        "direction": "to" if copy.is_to else "from",
        "container": copy.container_id,
        "pod": copy.sandbox_id,
        "path": os.fsdecode(copy.path),
    }
