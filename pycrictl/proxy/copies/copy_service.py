"""``CopyToContainer`` and ``CopyFromContainer`` (KEP-4582), answered by the proxy for any runtime.

The proxy answers them even if the runtime implements them, so that quotas, checks and semantics
are the same on every node. The copy is made on the node, through the container's file systems; the
runtime only provides the container's first process. A copy counts towards its pod's quota from its
call until its threads have ended, or until its URL expires unopened.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import CopyError, NotFound, PycrictlError, UsageError
from pycrictl.base.servicelog import Log
from pycrictl.copy import on_node
from pycrictl.copy.rules.outcome import encode_failure, refusal_codes
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.spec import check_container_path
from pycrictl.copy.service.copies import Copies, Copy
from pycrictl.copy.service.life import Event
from pycrictl.copy.service.slots import IDLE_S, Slots, time_limit_s
from pycrictl.copy.service.transfer import Download, Upload
from pycrictl.copy.transfer.link import SocketLink
from pycrictl.copy.transfer.messages import FROM_CONTAINER, TO_CONTAINER, ChannelProtocol, ignore
from pycrictl.copy.tree.walk import Watch
from pycrictl.proxy.events import CopyEnded, Emit
from pycrictl.proxy.runtime_lookup import CallFailed, RuntimeLookup
from pycrictl.proxy.serve.stream_server import COPY_PATH, LIFETIME_S, Tokens
from pycrictl.proxy.upstream import Answer, CallRequest
from pycrictl.streams.wire.codes import INVALID_ARGUMENT, NOT_FOUND

if TYPE_CHECKING:
    from google.protobuf.message import Message

COPY_TO: Final = "/runtime.v1.RuntimeService/CopyToContainer"
COPY_FROM: Final = "/runtime.v1.RuntimeService/CopyFromContainer"

_ASK_S: Final = 15.0

Asked = cri_pb2.CopyToContainerRequest | cri_pb2.CopyFromContainerRequest


class CallCopy(NamedTuple):
    """What the proxy knows about a copy."""

    container_id: str
    path: bytes


class CopyService(Copies[CallCopy]):
    """Answers the calls, and serves the streams behind their URLs.

    Args:
        lifetime_s: how long a URL is valid; the same as for the tokens.
    """

    def __init__(
        self,
        lookup: RuntimeLookup,
        slots: Slots,
        *,
        runtime_path: str,
        spool_folder: str,
        tokens: Tokens,
        emit: Emit,
        log: Log,
        lifetime_s: float = LIFETIME_S,
    ) -> None:
        super().__init__(slots, lifetime_s=lifetime_s)
        self._lookup = lookup
        self._runtime_path = runtime_path
        self._spool_folder = spool_folder
        self._tokens = tokens
        self._emit = emit
        self._log = log

    async def sweep(self) -> None:
        """Remove what copies of killed processes have left in containers."""
        locate = partial(on_node.locate, self._call)
        with suppress(PycrictlError, OSError):  # left to the next process
            if count := await asyncio.to_thread(on_node.sweep, locate):
                self._log.info("swept", stages=count)

    def snapshot(self) -> list[dict[str, Any]]:
        return [
            {**_names(copy), "state": copy.state.value, "bytes": copy.size_bytes}
            for copy in self.running
        ]

    def explain(self, exc: Exception) -> PycrictlError:
        if isinstance(exc, PycrictlError):
            return exc
        return CopyError(f"the proxy failed: {type(exc).__name__}: {exc}")

    def last_word(self, copy: Copy[CallCopy], error: Exception | None) -> bytes:
        return encode_failure(error) if isinstance(error, PycrictlError) else copy.success()

    def ended(self, copy: Copy[CallCopy]) -> None:
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

    async def handle_to(self, request: CallRequest) -> Answer:
        return await self._answer(request, cri_pb2.CopyToContainerRequest)

    async def handle_from(self, request: CallRequest) -> Answer:
        """Answer CopyFromContainer once size and checksum are known."""
        return await self._answer(request, cri_pb2.CopyFromContainerRequest)

    async def _answer(self, request: CallRequest, kind: type[Asked]) -> Answer:
        copy = None
        try:
            copy = await self._begun(kind.FromString(request.message))
            url = self._tokens.issue(COPY_PATH, partial(self._serve, copy), now=self.loop.time())
        except (PycrictlError, DecodeError) as exc:
            if copy is not None:  # there are too many URLs
                await self.give_up(copy, Event.REFUSED, str(exc))
            return _refusal(exc)
        if copy.is_to:
            return Answer(response=cri_pb2.CopyToContainerResponse(url=url).SerializeToString())
        response = cri_pb2.CopyFromContainerResponse(
            url=url, size=copy.size_bytes, checksum=copy.transfer.crc32
        )
        return Answer(response=response.SerializeToString())

    async def _serve(self, copy: Copy[CallCopy], sock: socket.socket, opening: bytes) -> None:
        """Make a copy over the connection that opened its URL, and close the connection."""
        deadline = time.monotonic() + time_limit_s(copy.size_bytes)
        try:
            sock.send(opening)
            await self.attach(copy, SocketLink(sock, idle_s=IDLE_S, deadline=deadline))
            if copy.task is not None:
                await asyncio.shield(copy.task)
        except OSError:  # the client has disconnected
            sock.close()
            await self.give_up(copy, Event.REFUSED, "its URL was not opened as a WebSocket")

    async def _begun(self, asked: Asked) -> Copy[CallCopy]:
        """Make all checks that are possible before copying, and begin the copy.

        The container is checked before the path, so that a client can use an empty path to test
        whether a copy is possible at all.
        """
        if not asked.container_id:
            raise UsageError("no container ID is given")
        container = await self._lookup.container(asked.container_id)
        locate = partial(on_node.locate, self._call, container.id)
        await asyncio.to_thread(on_node.check_node, self._runtime_path)
        await asyncio.to_thread(locate)
        path = asked.path.encode()
        check_container_path(path)
        transfer: Upload | Download = Download(ChannelProtocol(FROM_CONTAINER), self._spool_folder)
        if isinstance(asked, cri_pb2.CopyToContainerRequest):
            transfer = Upload(ChannelProtocol(TO_CONTAINER), asked.size, asked.checksum)
        copy = Copy(CallCopy(container.id, path), transfer, container.pod_sandbox_id)
        method, watch = on_node.OnNode(locate), Watch(ignore, copy.skip)
        work = partial(transfer.run, method, path, Rules(), watch)
        await self.begin(copy, work)
        return copy

    def _call(self, name: str, request: Message) -> Any:
        """Make a call to the runtime from a thread, over the proxy's own connections."""
        future = asyncio.run_coroutine_threadsafe(self._lookup.call(name, request), self.loop)
        try:
            return future.result(_ASK_S)
        except TimeoutError:
            future.cancel()
            raise CopyError("the runtime does not answer") from None
        except CallFailed as exc:
            if exc.answer.code == NOT_FOUND:
                raise NotFound(exc.message, code="NotFound") from exc
            raise


def _names(copy: Copy[CallCopy]) -> dict[str, str]:
    return {
        "direction": "to" if copy.is_to else "from",
        "container": copy.about.container_id,
        "pod": copy.pod,
        "path": os.fsdecode(copy.about.path),
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
