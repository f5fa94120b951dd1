"""``CopyToContainer`` and ``CopyFromContainer`` (KEP-4582), answered by the proxy for any runtime.

The proxy answers them even if the runtime implements them, so that quotas, checks and semantics
are the same on every node. The copy is made on the node, through the container's file systems; the
runtime only provides the container's first process.

A copy counts towards its pod's quota from its call until its resources are freed (``job``), or
until its URL expires unopened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from pycrictl._proto import cri_pb2
from pycrictl.copy import on_node
from pycrictl.copy.rules.outcome import refusal_codes
from pycrictl.copy.rules.policy import MAX_ENTRIES, Rules
from pycrictl.copy.rules.quotas import Quotas
from pycrictl.copy.rules.spec import check_container_path
from pycrictl.errors import CopyError, NotFound, PycrictlError, UsageError
from pycrictl.proxy.calls import Answer, CallRequest
from pycrictl.proxy.copies.job import CopyJob
from pycrictl.proxy.runtime_lookup import CallFailed, RuntimeLookup
from pycrictl.proxy.serve.tokens import LIFETIME_S, Tokens
from pycrictl.servicelog import Log
from pycrictl.wire.codes import INVALID_ARGUMENT, NOT_FOUND

if TYPE_CHECKING:
    from google.protobuf.message import Message

COPY_TO: Final = "/runtime.v1.RuntimeService/CopyToContainer"
COPY_FROM: Final = "/runtime.v1.RuntimeService/CopyFromContainer"

STOP_S: Final = 5.0
"""How long the threads of copies may take to end at shutdown."""

_ASK_S: Final = 15.0

Asked = cri_pb2.CopyToContainerRequest | cri_pb2.CopyFromContainerRequest


@dataclass(eq=False)
class CopyService:
    """Answers the calls, and serves the streams behind their URLs.

    Args:
        entry_limit: the maximum number of entries in an archive; 0 for no limit.
        lifetime_s: how long a URL is valid; the same as for the tokens.
    """

    lookup: RuntimeLookup
    quotas: Quotas
    runtime_path: str
    spool_folder: str
    tokens: Tokens[Any]
    url: Callable[[str], str]
    log: Log
    entry_limit: int = MAX_ENTRIES
    lifetime_s: float = LIFETIME_S

    def __post_init__(self) -> None:
        name = "the quota container-copy-entry-limit"
        self._rules = Rules(max_entries=self.entry_limit, max_entries_name=name)
        self._loop = asyncio.get_running_loop()
        self._copies: set[CopyJob] = set()

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

    async def _answer(self, request: CallRequest, kind: type[Asked]) -> Answer:
        copy: CopyJob | None = None
        try:
            copy = await self._admit(kind.FromString(request.message), request.trace)
            if copy.direction == "from":
                await copy.collect(self.spool_folder, self.quotas.check_size)
            url = self.url(self.tokens.issue(copy.pod, copy, now=self._loop.time()))
        except asyncio.CancelledError:
            if copy is not None:
                copy.end("abandoned")
            raise
        except (PycrictlError, DecodeError) as exc:
            refusal = _refusal(exc)
            if copy is not None:
                copy.end("refused", error=refusal.message)
            return refusal
        copy.wait(self.lifetime_s)
        response: Message = cri_pb2.CopyToContainerResponse(url=url)
        if copy.direction == "from":
            response = cri_pb2.CopyFromContainerResponse(
                url=url, size=copy.size_bytes, checksum=copy.crc32
            )
        return Answer(response=response.SerializeToString())

    def redeem(self, token: str) -> CopyJob | None:
        copy = self.tokens.redeem(token, now=self._loop.time())
        if not isinstance(copy, CopyJob):
            return None
        if copy.expiry is not None:
            copy.expiry.cancel()
        return copy

    async def stop(self) -> None:
        """End all copies; content that has not been moved into place by then is abandoned."""
        for copy in list(self._copies):
            copy.end("stopped")
        threads = [copy.work for copy in self._copies if copy.work is not None]
        if threads:
            await asyncio.wait(threads, timeout=STOP_S)

    def snapshot(self) -> list[dict[str, Any]]:
        return [copy.document() for copy in sorted(self._copies, key=lambda copy: copy.began_at)]

    def _freed(self, copy: CopyJob) -> None:
        if copy in self._copies:
            self._copies.discard(copy)
            self.quotas.give(copy.pod)

    async def _admit(self, asked: Asked, trace: str) -> CopyJob:
        """Make all checks that are possible before copying, and count the copy.

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
        direction, size_bytes, crc32 = "from", 0, 0
        if isinstance(asked, cri_pb2.CopyToContainerRequest):
            direction, size_bytes, crc32 = "to", asked.size, asked.checksum
        self.quotas.check_size(size_bytes)
        pod = container.pod_sandbox_id
        self.quotas.take(pod)
        copy = CopyJob(
            direction, container.id, pod, path, size_bytes, crc32,
            self._rules, trace, locate, self.log, self._freed,
        )  # fmt: skip
        self._copies.add(copy)
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
