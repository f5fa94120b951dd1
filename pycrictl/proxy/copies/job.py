"""One copy of the proxy, from the call that asks for it until nothing is left of it.

Work on files blocks, so each copy has its own thread while there is some to do. There are never
more threads than copies, and copies are limited (``quotas``).
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from pycrictl.copy.rules.quotas import IDLE_S, time_limit_s
from pycrictl.copy.stream.connection import CopyConnection, serve_stream
from pycrictl.errors import Cancelled, PycrictlError
from pycrictl.proxy.copies import incoming, outgoing
from pycrictl.proxy.copies.incoming import to_error
from pycrictl.proxy.copies.outgoing import Content
from pycrictl.servicelog import Log

if TYPE_CHECKING:
    from pycrictl.copy.rules.policy import Rules
    from pycrictl.copy.rules.summary import Summary
    from pycrictl.copy.tree.identity import Locate

T = TypeVar("T")


class CopyJob:
    """A copy, from the call that asks for it to its end.

    Args:
        direction: ``to`` or ``from`` the container.
        container_id: the full ID.
        pod: the ID of the pod's sandbox, whose quota it counts for.
        path: in the container.
        size_bytes: of the archive; 0 while it is not known.
        rules: what may be in the archive.
        trace: the caller's place in a trace; empty if there is none.
        locate: finds the container's first process.
        log: gets a line when it is over.
        on_end: called when nothing is left of it.

    Attributes:
        checksum: of the archive, as announced.
        work: the thread that works for it, or the last that did.
        began_at: on the loop's clock.
    """

    def __init__(
        self,
        direction: str,
        container_id: str,
        pod: str,
        path: bytes,
        *,
        size_bytes: int,
        rules: Rules,
        trace: str,
        locate: Locate,
        log: Log,
        on_end: Callable[[CopyJob], None],
    ) -> None:
        self.pod = pod
        self.checksum = 0
        self.work: asyncio.Future[Any] | None = None
        self._direction = direction
        self._container_id = container_id
        self._path = path
        self._size_bytes = size_bytes
        self._rules = rules
        self._trace = trace
        self._locate = locate
        self._log = log
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self.began_at = self._loop.time()
        self._state = "measuring" if direction == "from" else "waiting"
        self._content: Content | None = None
        self._connection: CopyConnection | None = None
        self._unwanted = threading.Event()
        self._expiry: asyncio.TimerHandle | None = None
        self._is_ended = False
        self._is_free = False

    async def collect(self, folder: str, check_size: Callable[[int], None]) -> Content:
        """Measure what is to be copied out of the container; see ``outgoing.collect``."""

        def work() -> Content:
            return outgoing.collect(
                self._locate,
                self._path,
                folder=folder,
                check_size=check_size,
                check_wanted=self._check_wanted,
            )

        self._content = await self._run(work)
        self._size_bytes = self._content.size_bytes
        return self._content

    def wait(self, lifetime_s: float) -> None:
        """Wait for somebody to open the URL, which ends the copy if nobody does."""
        self._state = "waiting"
        self._expiry = self._loop.call_later(lifetime_s, self.end, "expired")

    def redeemed(self) -> None:
        """Stop waiting: somebody has opened the URL."""
        if self._expiry is not None:
            self._expiry.cancel()

    def drop(self) -> None:
        """End the copy, whose URL was opened in a way that is of no use."""
        self.end("refused")

    async def serve(self, sock: socket.socket) -> None:
        """Make the copy, over a connection whose handshake is over."""
        self._state = "copying"
        connection = self._connection = serve_stream(
            sock,
            label="the client",
            idle_s=IDLE_S,
            deadline=time.monotonic() + time_limit_s(self._size_bytes),
        )
        try:
            summary = await self._run(lambda: self._transfer(connection))
        except asyncio.CancelledError:
            self.end("stopped")
            raise
        except PycrictlError as exc:
            self.end("failed", error=exc.message)
        else:
            self.end("done", files=summary.files, skipped=summary.skipped or "")

    def end(self, end: str, **details: object) -> None:
        """End the copy; free all that it holds as soon as its thread has let go."""
        if self._is_ended:
            return
        self._is_ended = True
        self._unwanted.set()
        if self._expiry is not None:
            self._expiry.cancel()
        if self._connection is not None:
            self._connection.interrupt()
        self._log.info(
            "copy",
            direction=self._direction,
            container=self._container_id,
            pod=self.pod,
            path=os.fsdecode(self._path),
            size_bytes=self._size_bytes,
            end=end,
            duration_s=round(self._loop.time() - self.began_at, 3),
            trace=self._trace,
            **details,
        )
        if self.work is None:
            self._free()
        else:
            self.work.add_done_callback(lambda _: self._free())

    def document(self) -> dict[str, Any]:
        """Describe the copy for the status."""
        return {
            "direction": self._direction,
            "container": self._container_id,
            "pod": self.pod,
            "path": os.fsdecode(self._path),
            "state": self._state,
            "bytes": self._size_bytes,
        }

    def _transfer(self, connection: CopyConnection) -> Summary:
        try:
            if self._content is not None:
                return outgoing.deliver(
                    connection,
                    self._content,
                    check_wanted=self._check_wanted,
                    on_done=self._release_soon,
                )
            return incoming.take_in(
                connection,
                self._locate,
                self._path,
                size_bytes=self._size_bytes,
                checksum=self.checksum,
                rules=self._rules,
                check_wanted=self._check_wanted,
                on_done=self._release_soon,
            )
        finally:
            connection.close()

    def _release_soon(self) -> None:
        """Free the slot before the client learns that the copy is over: it may ask for another."""
        self._loop.call_soon_threadsafe(self._free)

    async def _run(self, work: Callable[[], T]) -> T:
        """Do it in a thread, which is not waited for if this is cancelled."""
        done: Future[T] = Future()
        self.work = future = asyncio.wrap_future(done)
        # Not one of a pool: it must not keep the program alive if a file system hangs.
        threading.Thread(target=_carry_out, args=(work, done), daemon=True).start()
        return await asyncio.shield(future)

    def _check_wanted(self) -> None:
        if self._unwanted.is_set():
            raise Cancelled("nobody waits for the copy any more", code="Canceled")

    def _free(self) -> None:
        if self._is_free:
            return
        self._is_free = True
        content = self._content
        if self.work is not None and self.work.done() and not self.work.exception():
            # It may have become ready just when nobody wanted it any more.
            content = self.work.result() if isinstance(self.work.result(), Content) else content
        if content is not None:
            content.close()
        self._on_end(self)


def _carry_out(work: Callable[[], T], done: Future[T]) -> None:
    try:
        result = work()
    except Exception as exc:
        done.set_exception(to_error(exc))
    else:
        done.set_result(result)
