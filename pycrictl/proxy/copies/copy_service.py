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
from pycrictl.base.errors import CopyError, NotFound, PycrictlError, UsageError
from pycrictl.copy import on_node
from pycrictl.copy.rules.outcome import encode_failure, refusal_codes
from pycrictl.copy.rules.spec import check_container_path
from pycrictl.copy.service.copies import Copies, Copy
from pycrictl.copy.service.life import Event
from pycrictl.copy.service.slots import IDLE_S, Slots, time_limit_s
from pycrictl.copy.service.transfer import Download, Upload
from pycrictl.copy.transfer.link import SocketLink
from pycrictl.copy.transfer.messages import FROM_CONTAINER, TO_CONTAINER, ChannelProtocol
from pycrictl.proxy.events import CopyEnded, Emit
from pycrictl.proxy.runtime_lookup import CallFailed, RuntimeLookup
from pycrictl.proxy.serve.stream_server import COPY_PATH, LIFETIME_S, Tokens
from pycrictl.proxy.settings import ProxySettings
from pycrictl.proxy.upstream import Answer, CallRequest
from pycrictl.streams.wire.codes import INVALID_ARGUMENT, NOT_FOUND

if TYPE_CHECKING:
    from google.protobuf.message import Message

COPY_TO: Final = "/runtime.v1.RuntimeService/CopyToContainer"
COPY_FROM: Final = "/runtime.v1.RuntimeService/CopyFromContainer"


class CopyService(Copies[Copy]):
    """Answers the calls, and serves the streams behind their URLs, as long as those are valid."""

    def __init__(
        self, settings: ProxySettings, lookup: RuntimeLookup, tokens: Tokens, emit: Emit
    ) -> None:
        slots = Slots(
            size_limit_bytes=settings.copy_size_limit_bytes, copies_per_pod=settings.copies_per_pod
        )
        super().__init__(slots, lifetime_s=LIFETIME_S)
        self._lookup = lookup
        self._runtime_path = settings.upstream
        self._spool_folder = settings.spool_dir
        self._tokens = tokens
        self._emit = emit

    def snapshot(self) -> list[dict[str, Any]]:
        return [
            {**_names(copy), "state": copy.state.value, "bytes": copy.size_bytes}
            for copy in self.running
        ]

    def locate(self, container_id: str) -> on_node.FirstProcess:
        on_node.check_node(self._runtime_path)
        return on_node.locate(self._call, container_id)

    def explain(self, exc: Exception) -> PycrictlError:
        if isinstance(exc, PycrictlError):
            return exc
        return CopyError(f"the proxy failed: {type(exc).__name__}: {exc}")

    def last_word(self, copy: Copy, error: Exception | None) -> bytes:
        return encode_failure(error) if isinstance(error, PycrictlError) else copy.success()

    def ended(self, copy: Copy) -> None:
        is_done = copy.error is None
        self._emit(
            CopyEnded(
                **_names(copy),
                size_bytes=copy.size_bytes,
                end=copy.state.value,
                duration_s=self.clock() - copy.began_s,
                error=getattr(copy.error, "message", ""),
                files=copy.summary.files if is_done else None,
                skipped=copy.skipped_count if is_done else 0,
            )
        )

    async def handle(self, request: CallRequest) -> Answer:
        """Answer one of the two calls; CopyFromContainer once size and checksum are known."""
        copy = None
        try:
            copy = await self._begun(request)
            url = self._tokens.issue(COPY_PATH, partial(self._serve, copy), now=self.loop.time())
        except (PycrictlError, DecodeError) as exc:
            if copy is not None:  # there are too many URLs
                await self.give_up(copy, Event.ABANDONED, str(exc))
            return _refusal(exc)
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
        if request.path == COPY_TO:
            asked = cri_pb2.CopyToContainerRequest.FromString(request.message)
            transfer = Upload(ChannelProtocol(TO_CONTAINER), asked.size, asked.checksum)
        else:
            asked = cri_pb2.CopyFromContainerRequest.FromString(request.message)
            transfer = Download(ChannelProtocol(FROM_CONTAINER), self._spool_folder)
        if not asked.container_id:
            raise UsageError("no container ID is given")
        container = await self._lookup.container(asked.container_id)
        await asyncio.to_thread(self.locate, container.id)
        path = asked.path.encode()
        check_container_path(path)
        copy = Copy(container.id, path, transfer, container.pod_sandbox_id)
        await self.begin(copy)
        return copy

    async def _serve(self, copy: Copy, sock: socket.socket, opening: bytes) -> None:
        """Make a copy over the connection that opened its URL, and close the connection."""
        deadline = time.monotonic() + time_limit_s(copy.size_bytes)
        try:
            sock.send(opening)
            await self.attach(copy, SocketLink(sock, idle_s=IDLE_S, deadline=deadline))
            if copy.task is not None:
                await asyncio.shield(copy.task)
        except OSError:  # the client has disconnected
            sock.close()
            await self.give_up(copy, Event.ABANDONED, "its URL was not opened as a WebSocket")

    def _call(self, name: str, request: Message) -> Any:
        """Make a call to the runtime from a thread, over the proxy's own connections."""
        try:
            call = self._lookup.call(name, request)
            return asyncio.run_coroutine_threadsafe(call, self.loop).result()
        except CallFailed as exc:
            if exc.answer.code == NOT_FOUND:
                raise NotFound(exc.message, code="NotFound") from exc
            raise


def _names(copy: Copy) -> dict[str, str]:
    return {
        "direction": "to" if copy.is_to else "from",
        "container": copy.container_id,
        "pod": copy.sandbox_id,
        "path": os.fsdecode(copy.path),
    }


def _refusal(exc: Exception) -> Answer:
    if isinstance(exc, CallFailed):
        return exc.answer
    if not isinstance(exc, PycrictlError):
        return Answer(INVALID_ARGUMENT, "pycrictl proxy: the request cannot be read")
    code, _ = refusal_codes(exc)
    if isinstance(exc.__cause__, FileNotFoundError | NotADirectoryError):
        code = NOT_FOUND
    hint = f" ({exc.hint})" if exc.hint else ""
    return Answer(code, f"pycrictl proxy: {exc.message}{hint}")
