"""One copy made by the proxy, from its call until its resources are freed.

File IO blocks, so each copy has its own thread while it has work to do. There are never more
threads than copies, and copies are limited (``quotas``).

Content copied out of a container has to be read before the call is answered, and the same bytes
must be sent afterwards. So it is kept in a spool file; only a large file that has not been written
to for a while stays where it is and is read a second time.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pycrictl.copy.archive.measure import Census, Measured, measure
from pycrictl.copy.archive.pack import pack
from pycrictl.copy.archive.spool import Spool
from pycrictl.copy.on_node import OnNode
from pycrictl.copy.rules import outcome
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.quotas import IDLE_S, time_limit_s
from pycrictl.copy.transfer.flow import ignore, send
from pycrictl.copy.transfer.link import SocketLink
from pycrictl.copy.transfer.messages import FROM_CONTAINER, TO_CONTAINER, ChannelProtocol
from pycrictl.copy.transfer.serving import Skips, Transfer, Upload, in_thread
from pycrictl.copy.tree.identity import ContainerRoot
from pycrictl.copy.tree.places import Source, open_source
from pycrictl.copy.tree.walk import Watch
from pycrictl.errors import Cancelled, CopyError, PycrictlError
from pycrictl.servicelog import Log

if TYPE_CHECKING:
    from pycrictl.copy.tree.identity import Locate

LARGE_BYTES: Final = 16 * 1024 * 1024
"""The minimum size for which a container's file is kept open instead of being spooled."""

REST_S: Final = 10.0
"""Files written to more recently than this are always spooled."""

T = TypeVar("T")


@dataclass(eq=False)
class CopyJob:
    """A copy, from its call to its end.

    Attributes:
        direction: ``to`` or ``from`` the container.
        pod: the ID of the pod's sandbox, towards whose quota the copy counts.
        size_bytes, crc32: of the archive; 0 while unknown.
        on_free: called when the copy's resources are freed, maybe more than once.
        work: the future of its current or last thread.
    """

    direction: str
    container_id: str
    pod: str
    path: bytes
    size_bytes: int
    crc32: int
    rules: Rules
    trace: str
    locate: Locate
    log: Log
    on_free: Callable[[CopyJob], None]
    work: asyncio.Future[Any] | None = None

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.began_at = self._loop.time()
        self._skips = Skips()
        self._summary = Summary()
        self._keeper: Spool | Source | None = None
        self._transfer: Transfer | Upload
        if self.direction == "from":
            self._state = "measuring"
            self._transfer = Transfer(ChannelProtocol(FROM_CONTAINER))
        else:
            self._state = "waiting"
            self._transfer = Upload(ChannelProtocol(TO_CONTAINER), self.size_bytes, self.crc32)
        self.expiry: asyncio.TimerHandle | None = None
        self._is_ended = False

    async def collect(self, folder: str, check_size: Callable[[int], None]) -> None:
        """Measure the content to be copied out, and spool it if needed.

        Args:
            check_size: called with the size of the archive as it grows; raises if it is too large.
        """

        def check(size_bytes: int) -> None:
            self._transfer.check_wanted()
            check_size(size_bytes)

        found = await self._run(partial(self._collect, folder, check))
        self.size_bytes, self.crc32, self._summary = found

    def wait(self, lifetime_s: float) -> None:
        self._state = "waiting"
        self.expiry = self._loop.call_later(lifetime_s, self.end, "expired")

    def drop(self) -> None:
        self.end("refused")

    async def serve(self, sock: socket.socket) -> None:
        self._state = "copying"
        deadline = time.monotonic() + time_limit_s(self.size_bytes)
        link = SocketLink(sock, idle_s=IDLE_S, deadline=deadline)
        self._transfer.attach(link)
        move = partial(self._move, link)
        try:
            summary = await self._run(partial(self._transfer.run, move, self._last_word))
        except asyncio.CancelledError:
            self.end("stopped")
            raise
        except PycrictlError as exc:
            self.end("failed", error=exc.message)
        else:
            self.end("done", files=summary.files, skipped=summary.skipped or "")

    def end(self, end: str, **details: object) -> None:
        """End the copy; free its resources as soon as its thread has finished."""
        if self._is_ended:
            return
        self._is_ended = True
        self._transfer.cancel(Cancelled("nobody waits for the copy any more", code="Canceled"))
        if self.expiry is not None:
            self.expiry.cancel()
        self.log.info(
            "copy",
            **self._names,
            size_bytes=self.size_bytes,
            end=end,
            duration_s=round(self._loop.time() - self.began_at, 3),
            trace=self.trace,
            **details,
        )
        if self.work is None:
            self._free()
        else:
            self.work.add_done_callback(lambda _: self._free())

    def document(self) -> dict[str, Any]:
        return {**self._names, "state": self._state, "bytes": self.size_bytes}

    @property
    def _names(self) -> dict[str, str]:
        return {
            "direction": self.direction,
            "container": self.container_id,
            "pod": self.pod,
            "path": os.fsdecode(self.path),
        }

    # In its thread

    def _collect(self, folder: str, check: Callable[[int], None]) -> Measured:
        with ExitStack() as kept, ContainerRoot(self.locate) as root:
            source = open_source(root, self.path)
            keeper: Spool | Source = source
            if _is_at_rest(source):
                kept.enter_context(source)
                found = measure(source, on_skip=self._skips.add, check=check)
            else:
                with source:
                    keeper = kept.enter_context(Spool(folder))
                    found = self._spool(source, keeper, check)
            root.check_running()
            kept.pop_all()
        self._keeper = keeper
        return found

    def _spool(self, source: Source, spool: Spool, check: Callable[[int], None]) -> Measured:
        census = Census()
        packing = pack(source, on_skip=self._skips.add, on_entry=census.count)
        with closing(packing) as pieces:
            for piece in pieces:
                check(spool.size_bytes + len(piece))
                spool.write(piece)
        spool.finish()
        return Measured(spool.size_bytes, spool.crc32, census.summary)

    def _move(self, link: SocketLink) -> Summary:
        transfer, keeper = self._transfer, self._keeper
        if isinstance(transfer, Upload):
            watch = Watch(ignore, self._skips.add)
            return OnNode(self.locate).write(transfer, self.path, self.rules, watch)
        assert keeper is not None
        packed = pack(keeper, on_skip=ignore) if isinstance(keeper, Source) else keeper.pieces()
        with closing(packed) as pieces:
            send(link, transfer.protocol, pieces, ignore, size_bytes=self.size_bytes)
        if end := transfer.protocol.end(self.size_bytes, self.crc32):
            link.send(*end)
        return self._summary

    def _last_word(self, end: Summary | Exception) -> bytes:
        """Free the slot before returning the last message: the client may start another copy."""
        self._loop.call_soon_threadsafe(self._free)
        if isinstance(end, Summary):
            return self._skips.success(end)
        return outcome.encode_failure(to_error(end))

    async def _run(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread, without waiting for it if this coroutine is cancelled."""
        self.work = future = asyncio.wrap_future(in_thread(work))
        try:
            return await asyncio.shield(future)
        except PycrictlError:
            raise
        except Exception as exc:
            raise to_error(exc) from exc

    def _free(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.close()
        self.on_free(self)


def to_error(exc: Exception) -> PycrictlError:
    """Return the error to report; even a bug in the proxy ends only one copy."""
    if isinstance(exc, PycrictlError):
        return exc
    if isinstance(exc, OSError):
        return CopyError(f"the proxy cannot copy: {os.strerror(exc.errno or 0).lower()}")
    return CopyError(f"the proxy failed: {type(exc).__name__}: {exc}")


def _is_at_rest(source: Source) -> bool:
    status = os.fstat(source.fd)
    return (
        stat.S_ISREG(status.st_mode)
        and status.st_size >= LARGE_BYTES
        and time.time() - status.st_mtime > REST_S
    )
