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
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import CopyError, NotFound, PycrictlError, UsageError, reason_of
from pycrictl.base.servicelog import Log
from pycrictl.copy import on_node
from pycrictl.copy.rules.outcome import encode_failure, refusal_codes
from pycrictl.copy.rules.policy import MAX_ENTRIES, Rules
from pycrictl.copy.rules.spec import check_container_path
from pycrictl.copy.service.copies import Copies, Copy, Skips
from pycrictl.copy.service.life import Event
from pycrictl.copy.service.slots import IDLE_S, Slots, time_limit_s
from pycrictl.copy.service.transfer import Download, Upload
from pycrictl.copy.transfer.flow import ignore
from pycrictl.copy.transfer.link import SocketLink
from pycrictl.copy.transfer.messages import FROM_CONTAINER, TO_CONTAINER, ChannelProtocol
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
    """What the proxy knows about a copy; ``trace`` is that of its call."""

    container_id: str
    path: bytes
    trace: str


@dataclass(eq=False)
class CopyService:
    """Answers the calls, and serves the streams behind their URLs; the ``Door`` of its copies.

    Args:
        entry_limit: the maximum number of entries in an archive; 0 for no limit.
        lifetime_s: how long a URL is valid; the same as for the tokens.
    """

    lookup: RuntimeLookup
    slots: Slots[Copy[CallCopy]]
    runtime_path: str
    spool_folder: str
    tokens: Tokens
    emit: Emit
    log: Log
    entry_limit: int = MAX_ENTRIES
    lifetime_s: float = LIFETIME_S

    def __post_init__(self) -> None:
        name = "the quota container-copy-entry-limit"
        self._rules = Rules(max_entries=self.entry_limit, max_entries_name=name)
        self._loop = asyncio.get_running_loop()
        self._copies: Copies[CallCopy] = Copies(self.slots, self, lifetime_s=self.lifetime_s)
        self.stop = self._copies.stop

    async def sweep(self) -> None:
        """Remove what copies of killed processes have left in containers."""
        locate = partial(on_node.locate, self._call)
        with suppress(PycrictlError, OSError):  # left to the next process
            if count := await asyncio.to_thread(on_node.sweep, locate):
                self.log.info("swept", stages=count)

    async def handle_to(self, request: CallRequest) -> Answer:
        return await self._answer(request, cri_pb2.CopyToContainerRequest)

    async def handle_from(self, request: CallRequest) -> Answer:
        """Answer CopyFromContainer once size and checksum are known."""
        return await self._answer(request, cri_pb2.CopyFromContainerRequest)

    def snapshot(self) -> list[dict[str, Any]]:
        return [
            {**_names(copy), "state": copy.state.value, "bytes": copy.size_bytes}
            for copy in self._copies.running
        ]

    # The door of the copies

    def explain(self, copy: Copy[CallCopy], exc: Exception) -> PycrictlError:
        if isinstance(exc, PycrictlError):
            return exc
        if isinstance(exc, OSError):
            return CopyError(f"the proxy cannot copy: {reason_of(exc)}")
        return CopyError(f"the proxy failed: {type(exc).__name__}: {exc}")

    def status(self, copy: Copy[CallCopy], error: Exception | None) -> bytes:
        if isinstance(error, PycrictlError):
            return encode_failure(error)
        return copy.skips.success(copy.summary)

    def ended(self, copy: Copy[CallCopy]) -> None:
        if copy.making is None:  # it was refused, and its caller has the reason
            return
        is_done = copy.error is None
        self.emit(
            CopyEnded(
                **_names(copy),
                size_bytes=copy.size_bytes,
                end=copy.state.value,
                duration_s=self.slots.clock() - copy.began_s,
                error=getattr(copy.error, "message", ""),
                files=copy.summary.files if is_done else None,
                skipped=copy.skips.count if is_done else 0,
                trace=copy.about.trace,
            )
        )

    # The calls

    async def _answer(self, request: CallRequest, kind: type[Asked]) -> Answer:
        copy: Copy[CallCopy] | None = None
        try:
            asked = kind.FromString(request.message)
            copy = await self._begun(asked, request.trace)
            await self._copies.made(copy)
            serve = partial(self._serve, copy)
            url = self.tokens.issue(COPY_PATH, serve, now=self._loop.time())
        except asyncio.CancelledError:
            if copy is not None:
                await self._copies.give_up(copy, Event.ABANDONED, "its call was cancelled")
            raise
        except (PycrictlError, DecodeError) as exc:
            if copy is not None:
                await self._copies.give_up(copy, Event.REFUSED, str(exc))
            return _refusal(exc)
        response: Message = cri_pb2.CopyToContainerResponse(url=url)
        if not copy.is_to:
            response = cri_pb2.CopyFromContainerResponse(
                url=url, size=copy.size_bytes, checksum=copy.crc32
            )
        return Answer(response=response.SerializeToString())

    async def _serve(self, copy: Copy[CallCopy], sock: socket.socket, opening: bytes) -> None:
        """Make a copy over the connection that opened its URL, and close the connection."""
        deadline = time.monotonic() + time_limit_s(copy.size_bytes)
        try:
            sock.send(opening)
            await self._copies.attach(copy, SocketLink(sock, idle_s=IDLE_S, deadline=deadline))
            if copy.task is not None:
                await asyncio.shield(copy.task)
        except OSError:  # the client has disconnected
            why = UsageError("its URL was not opened as a WebSocket")
            self._copies.fail(copy, why, Event.REFUSED)
            sock.close()

    async def _begun(self, asked: Asked, trace: str) -> Copy[CallCopy]:
        """Make all checks that are possible before copying, and begin the copy.

        The container is checked before the path, so that a client can use an empty path to test
        whether a copy is possible at all.
        """
        if not asked.container_id:
            raise UsageError("no container ID is given")
        container = await self.lookup.container(asked.container_id)
        locate = partial(on_node.locate, self._call, container.id)
        await asyncio.to_thread(on_node.check_node, self.runtime_path)
        await asyncio.to_thread(locate)
        path = asked.path.encode()
        check_container_path(path)
        method, skips = on_node.OnNode(locate), Skips()
        watch = Watch(ignore, skips.add)
        about, pod = CallCopy(container.id, path, trace), container.pod_sandbox_id
        if isinstance(asked, cri_pb2.CopyToContainerRequest):
            upload = Upload(ChannelProtocol(TO_CONTAINER), asked.size, asked.checksum)
            copy = Copy(about, upload, skips, pod, size_bytes=asked.size, crc32=asked.checksum)
            work = partial(method.write, upload, path, self._rules, watch)
        else:
            download = Download(ChannelProtocol(FROM_CONTAINER), self.spool_folder)
            copy = Copy(about, download, skips, pod)
            work = partial(download.fill, method, path, watch, spools=False)
        await self._copies.begin(copy, work)
        return copy

    def _call(self, name: str, request: Message) -> Any:
        """Make a call to the runtime from a thread, over the proxy's own connections."""
        future = asyncio.run_coroutine_threadsafe(self.lookup.call(name, request), self._loop)
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
