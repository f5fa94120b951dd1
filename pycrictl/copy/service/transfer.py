"""The archive of a copy at its node, between the copy's thread and the client's connections.

A copy has a thread of its own from the request that begins it: file operations block. An archive
for a container (``Upload``) is staged beside its destination as it arrives. One out of a container
(``Download``) is spooled, as its size and checksum may have to be known before its first byte is
sent; only a large file that has not been written to for a while stays where it is and is read a
second time. Both survive their connections if the protocol resumes.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import Final, TypeVar

from pycrictl.copy.archive.measure import Census, Measured, measure
from pycrictl.copy.archive.pack import PIECE_BYTES, pack
from pycrictl.copy.archive.spool import Spool
from pycrictl.copy.method import Method
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.spec import SourceKind
from pycrictl.copy.transfer.flow import Link, ignore, next_event, receive, send
from pycrictl.copy.transfer.messages import (
    STATUS,
    Acknowledgement,
    Arriving,
    CopyProtocol,
    Event,
)
from pycrictl.copy.tree.places import Source
from pycrictl.copy.tree.walk import Watch
from pycrictl.errors import Exhausted, PycrictlError, RemoteProtocolError, StreamError

HEARTBEAT_S: Final = 10.0
"""The heartbeat interval of resumable copies: clients give up after three times as long."""

LARGE_BYTES: Final = 16 * 1024 * 1024
"""The minimum size for which a container's file is read twice instead of being spooled."""

REST_S: Final = 10.0
"""Files written to more recently than this are always spooled."""

T = TypeVar("T")


def in_thread(work: Callable[[], T]) -> Future[T]:
    """Run ``work`` in a daemon thread of its own; return a future of its result.

    Not in a pool, which waits for its threads at the end: a file system that hangs must neither
    keep the program alive nor take a thread from other copies. The future cannot be cancelled.
    """
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()

    def carry_out() -> None:
        try:
            result = work()
        except BaseException as exc:
            done.set_exception(exc)
        else:
            done.set_result(result)

    threading.Thread(target=carry_out, daemon=True).start()
    return done


class Transfer:
    """An archive and its successive connections. Any thread may call the methods.

    Attributes:
        protocol: of the connections, at this end.
        admit: called with the new size before the archive grows; may raise an error, ``Exhausted``
            if that is too large for now.
        on_progress: called with the number of archive bytes delivered so far.
    """

    def __init__(self, protocol: CopyProtocol) -> None:
        self.protocol = protocol
        self.admit: Callable[[int], None] = ignore
        self.on_progress: Callable[[int], None] = ignore
        self._changed = threading.Condition()
        self._link: Link | None = None
        self._error: PycrictlError | None = None
        self._last_word: bytes | None = None

    def attach(self, link: Link) -> None:
        """Attach a connection; an earlier one is closed, as the client has abandoned it.

        After the last word, the connection gets that, and is closed.
        """
        with self._changed:
            before, self._link = self._link, link
            is_over = self._last_word is not None
            self._changed.notify_all()
        if before is not None:
            before.interrupt()
        if is_over:
            in_thread(partial(self.conclude, self._last_word or b""))

    def cancel(self, why: PycrictlError) -> None:
        """Cancel the copy and its connection; its thread soon raises ``why``."""
        self._error = self._error or why
        self._notify()
        if (link := self._link) is not None:
            link.interrupt()

    def check_wanted(self) -> None:
        if self._error is not None:
            raise self._error

    def conclude(self, status: bytes) -> None:
        """Close the connection after sending a status, the last word, unless that is empty."""
        with self._changed:
            link, self._link = self._link, None
            self._last_word = status
        if link is not None:
            link.deadline = None  # moving a copy into place may have taken long
            with suppress(StreamError):
                if status:
                    link.send(STATUS, status)
            link.close()

    def close(self) -> None:
        """Free the archive; no thread may use it any more."""

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _release(self, link: Link) -> None:
        with self._changed:
            if self._link is link:
                self._link = None

    def _wait(self, is_ready: Callable[[], bool]) -> bool:
        """Wait until ``is_ready``, but no longer than ``HEARTBEAT_S``; return whether it is."""
        with self._changed:
            found = self._changed.wait_for(
                lambda: self._error is not None or is_ready(), timeout=HEARTBEAT_S
            )
        self.check_wanted()
        return found


class Upload(Transfer):
    """The archive of a copy into a container: an ``Incoming``, which its thread writes there.

    Args:
        size_bytes, crc32: of the archive, as announced.

    Attributes:
        encode: encodes an ``Exhausted`` as the status for a client, who may try again.
        on_arrived: called when the archive has arrived whole, and may become visible. With a
            resumable protocol, that is not before ``allow``.
    """

    tree: Source | None = None
    kind: SourceKind | None = None
    name: bytes | None = None
    pattern: bytes | None = None

    def __init__(self, protocol: CopyProtocol, size_bytes: int, crc32: int) -> None:
        super().__init__(protocol)
        self.encode: Callable[[Exception], bytes] = lambda _: b""
        self.on_arrived: Callable[[], object] = lambda: None
        self._measured = Measured(size_bytes, crc32, Summary())
        self._is_allowed = not protocol.resumes

    def allow(self) -> None:
        """Allow it to become visible once it is complete."""
        self._is_allowed = True
        self._notify()

    def measured(self, rules: Rules, watch: Watch) -> Measured:
        return self._measured

    def pieces(self, offset: int = 0) -> Generator[memoryview, None, None]:
        """See ``Incoming``; yields an empty piece while none is available."""
        protocol = self.protocol
        arriving = Arriving(self._measured.size_bytes, self._measured.crc32)
        is_ended = False
        while not (is_ended or self._may_end(arriving)):
            link = self._link
            if link is None:
                if not self._wait(lambda: self._link is not None or self._may_end(arriving)):
                    yield memoryview(b"")
                continue
            try:
                if protocol.resumes:
                    link.send(*protocol.heartbeat(arriving.offset))
                for piece in receive(
                    link, protocol, arriving, admit=self.admit, on_taken=self.on_progress
                ):
                    self.check_wanted()
                    yield piece
                arriving.check()
                if protocol.resumes:
                    self._lose(link)
                is_ended = not protocol.resumes
            except (StreamError, Exhausted) as exc:
                self.check_wanted()
                if not protocol.resumes:
                    raise
                self._lose(link, exc)
        arriving.check()
        self.on_arrived()

    def _may_end(self, arriving: Arriving) -> bool:
        return self.protocol.resumes and arriving.is_whole and self._is_allowed

    def _lose(self, link: Link, exc: PycrictlError | None = None) -> None:
        """Close a connection; the copy resumes over the next one."""
        self._release(link)
        if isinstance(exc, Exhausted):
            with suppress(StreamError):
                link.send(STATUS, self.encode(exc))
        link.close()


class Download(Transfer):
    """The archive of a copy out of a container, sent from a file that may still grow.

    Args:
        folder: where it is spooled.
    """

    def __init__(self, protocol: CopyProtocol, folder: str) -> None:
        super().__init__(protocol)
        self._folder = folder
        self._spool: Spool | None = None
        self._kept: Callable[[], Generator[memoryview, None, None]] | None = None
        self._measured: Measured | None = None
        self._held = ExitStack()
        self._is_made = False
        self._failure = b""

    @property
    def size_bytes(self) -> int:
        """How much of the archive has been made; all of it in the end."""
        if self._measured is not None:
            return self._measured.size_bytes
        return 0 if self._spool is None else self._spool.size_bytes

    @property
    def crc32(self) -> int:
        if self._measured is not None:
            return self._measured.crc32
        return 0 if self._spool is None else self._spool.crc32

    # In the thread that makes it

    def fill(
        self,
        method: Method,
        path: bytes,
        watch: Watch,
        *,
        follow: bool = False,
        spools: bool = True,
    ) -> Summary:
        """Make the archive of a path in the container.

        Args:
            spools: spool every file, so that the first bytes can be sent at once.
        """
        # Names are judged by the receiver: here each would take memory.
        rules = Rules(max_entries=0)
        with ExitStack() as stack:
            archive = stack.enter_context(method.read(path, rules, watch, follow=follow))
            if archive.tree is not None and not spools and _is_at_rest(archive.tree):
                measured = measure(archive.tree, on_skip=watch.on_skip, check=self._grow)
                archive.check()
                self._kept = partial(pack, archive.tree, on_skip=ignore)
                self._measured = measured
                self._held = stack.pop_all()
                return measured.summary
            census = Census()
            with closing(archive.pieces()) as pieces:
                for piece in census.through(pieces):
                    self.write(piece)
            archive.check()
            return census.summary

    def write(self, piece: memoryview) -> None:
        self._grow(self.size_bytes + len(piece))
        if self._spool is None:
            spool = self._held.enter_context(Spool(self._folder))
            with self._changed:
                self._spool = spool
        self._spool.write(piece)
        self._notify()

    def finish(self, failure: bytes = b"") -> None:
        """Note that the archive is complete, or the status for a client if that failed."""
        if self._spool is not None and not failure:
            self._spool.finish()
        self._failure = failure
        self._is_made = True
        self._notify()

    def _grow(self, size_bytes: int) -> None:
        self.check_wanted()
        self.admit(size_bytes)

    # In the threads that send it

    def deliver(self, link: Link, offset: int) -> None:
        """Send the archive over an attached connection, until that ends.

        Args:
            offset: where the client resumes.

        Raises:
            PycrictlError: the copy failed; not if it can resume.
        """
        protocol = self.protocol
        if not protocol.resumes:
            assert self._is_made
            size_bytes = self.size_bytes
            pieces = self._pieces(link, 0) if self._kept is None else self._kept()
            with closing(pieces):
                send(link, protocol, pieces, ignore, size_bytes=size_bytes)
            if end := protocol.end(size_bytes, self.crc32):
                link.send(*end)
            return
        try:
            link.send(*protocol.heartbeat(offset))
            with closing(self._pieces(link, offset)) as pieces:
                send(link, protocol, pieces, self._take_event, offset=offset)
            if self._failure:
                link.send(STATUS, self._failure)
                return
            if end := protocol.end(self.size_bytes, self.crc32):
                link.send(*end)
            while True:
                self._take_event(next_event(link, protocol))
        except PycrictlError:
            pass  # the client has everything, has reconnected, or has given up
        finally:
            self._release(link)
            link.close()

    def close(self) -> None:
        self._held.close()

    def _pieces(self, link: Link, offset: int) -> Generator[memoryview, None, None]:
        with memoryview(bytearray(PIECE_BYTES)) as buffer:
            while True:
                is_ready = self._wait(lambda: self._has_more(offset))  # noqa: B023 (called at once)
                if self._link is not link:
                    raise StreamError("the client has opened another connection")
                if self._spool is not None and self.size_bytes > offset and not self._failure:
                    piece = self._spool.read(offset, buffer)
                    yield piece
                    offset += len(piece)
                elif is_ready:
                    return
                else:
                    yield memoryview(b"")

    def _has_more(self, offset: int) -> bool:
        return self._is_made or self.size_bytes > offset

    def _take_event(self, event: Event) -> None:
        if isinstance(event, Acknowledgement):
            if event.offset > self.size_bytes:
                raise RemoteProtocolError("the client acknowledges more bytes than the copy has")
            self.on_progress(event.offset)


def _is_at_rest(source: Source) -> bool:
    status = os.fstat(source.fd)
    return (
        stat.S_ISREG(status.st_mode)
        and status.st_size >= LARGE_BYTES
        and time.time() - status.st_mtime > REST_S
    )
