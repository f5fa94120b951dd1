"""The data transfer of a copy at its node, over successive connections from its client.

A copy has a thread of its own from the call that begins it to its end: file operations block. An
archive for a container (``Upload``) is staged beside its destination as it arrives; one out of a
container (``Download``) is spooled, and may be sent while it grows. The service sets the limits,
authorizes connections, and handles the outcome.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import closing, suppress
from typing import Final, TypeVar

from pycrictl.copy.archive.measure import Measured
from pycrictl.copy.archive.pack import PIECE_BYTES
from pycrictl.copy.archive.spool import Spool
from pycrictl.copy.rules import outcome
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules, Skipped
from pycrictl.copy.rules.spec import SourceKind
from pycrictl.copy.transfer.flow import ignore, next_event, receive, send
from pycrictl.copy.transfer.link import SocketLink
from pycrictl.copy.transfer.messages import (
    STATUS,
    Acknowledgement,
    Arriving,
    CopyProtocol,
    Event,
    ResumableProtocol,
)
from pycrictl.copy.tree.places import Source
from pycrictl.copy.tree.walk import Watch
from pycrictl.errors import Exhausted, PycrictlError, RemoteProtocolError, StreamError

HEARTBEAT_S: Final = 10.0
"""The heartbeat interval of resumable copies: clients give up after three times as long."""

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


class Skips:
    """The skipped entries of a copy: their number, and the first few by name; and its last note."""

    def __init__(self) -> None:
        self.count = 0
        self.named: list[Skipped] = []
        self.note = ""

    def add(self, one: Skipped) -> None:
        self.count += 1
        if len(self.named) < outcome.MAX_SKIPPED:
            self.named.append(one)

    def success(self, summary: Summary) -> bytes:
        """Return the outcome of a successful copy (a ``Status``)."""
        summary.skipped = self.count
        return outcome.encode_success(summary, self.named, self.note)

    def add_note(self, note: str) -> None:
        self.note = note


class Transfer:
    """The data transfer of a copy. Any thread may call its methods.

    Args:
        protocol: of its connections, at this end.
        admit: called with the new size before the archive grows; raises ``Exhausted`` if that is
            too large for now, or another error.
        on_progress: called with the number of archive bytes delivered so far.
    """

    def __init__(
        self,
        protocol: CopyProtocol,
        *,
        admit: Callable[[int], None] = ignore,
        on_progress: Callable[[int], None] = ignore,
    ) -> None:
        self.protocol = protocol
        self._admit = admit
        self._on_progress = on_progress
        self._changed = threading.Condition()
        self._link: SocketLink | None = None
        self._error: PycrictlError | None = None
        self._is_over = False

    def attach(self, link: SocketLink) -> None:
        """Attach a connection; an earlier one is closed, as the client has abandoned it."""
        with self._changed:
            if self._is_over:
                link.abort()
                return
            before, self._link = self._link, link
            self._changed.notify_all()
        if before is not None:
            before.interrupt()

    def cancel(self, why: PycrictlError) -> None:
        """Cancel the copy and its connection; its thread soon raises ``why``."""
        self._error = self._error or why
        self._notify()
        if (link := self._link) is not None:
            link.interrupt()

    def check_wanted(self) -> None:
        if self._error is not None:
            raise self._error

    def run(
        self, act: Callable[[], Summary], last_word: Callable[[Summary | Exception], bytes]
    ) -> Summary:
        """Run ``act``, and send its outcome to the client.

        Args:
            act: moves the archive to or from its place.
            last_word: called with its result or error; returns a status for the client.
        """
        try:
            summary = act()
        except Exception as exc:
            self._conclude(last_word(exc))
            raise
        self._conclude(last_word(summary))
        return summary

    def _conclude(self, status: bytes) -> None:
        """Close the connection after sending ``status``, unless that is empty; accept no other."""
        with self._changed:
            link, self._link = self._link, None
            self._is_over = True
        if link is not None:
            link.deadline = None  # moving a copy into place may have taken long
            with suppress(StreamError):
                if status:
                    link.send(STATUS, status)
            link.close()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _release(self, link: SocketLink) -> None:
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

    With a resumable protocol, it does not end before ``allow`` is called.

    Args:
        size_bytes, crc32: of the archive, as announced.
        refusal: encodes an ``Exhausted`` as the status for a client.
    """

    tree: Source | None = None
    kind: SourceKind | None = None
    name: bytes | None = None
    pattern: bytes | None = None

    def __init__(
        self,
        protocol: CopyProtocol,
        size_bytes: int,
        crc32: int,
        *,
        refusal: Callable[[Exception], bytes] = lambda _: b"",
        **callbacks: Callable[[int], None],
    ) -> None:
        super().__init__(protocol, **callbacks)
        self._measured = Measured(size_bytes, crc32, Summary())
        self._refusal = refusal
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
        while not self._may_end(arriving):
            link = self._link
            if link is None:
                if not self._wait(lambda: self._link is not None or self._may_end(arriving)):
                    yield memoryview(b"")
                continue
            try:
                if protocol.resumes:
                    link.send(*protocol.heartbeat(arriving.offset))
                for piece in receive(
                    link, protocol, arriving, admit=self._admit, on_taken=self._on_progress
                ):
                    self.check_wanted()
                    yield piece
                arriving.check()
                if not protocol.resumes:
                    return
                self._lose(link)
            except (StreamError, Exhausted) as exc:
                self.check_wanted()
                if not protocol.resumes:
                    raise
                self._lose(link, exc)
        arriving.check()

    def _may_end(self, arriving: Arriving) -> bool:
        return self.protocol.resumes and arriving.is_whole and self._is_allowed

    def _lose(self, link: SocketLink, exc: PycrictlError | None = None) -> None:
        """Close a connection; the copy resumes over the next one."""
        self._release(link)
        if isinstance(exc, Exhausted):
            with suppress(StreamError):
                link.send(STATUS, self._refusal(exc))
        link.close()


class Download(Transfer):
    """The archive of a copy out of a container, sent from a file that may still grow.

    Args:
        spool: stores the archive; closed by the caller, once nothing is sent from it any more.
    """

    def __init__(self, spool: Spool, **callbacks: Callable[[int], None]) -> None:
        super().__init__(ResumableProtocol(is_client=False, is_sender=True), **callbacks)
        self.spool = spool
        self._is_made = False
        self._failure = b""

    def write(self, piece: memoryview) -> None:
        self.check_wanted()
        self._admit(self.spool.size_bytes + len(piece))
        self.spool.write(piece)
        self._notify()

    def run(
        self, act: Callable[[], Summary], last_word: Callable[[Summary | Exception], bytes]
    ) -> Summary:
        """Make the archive; on failure, ``deliver`` sends the reason to the client."""
        try:
            summary = act()
            self.spool.finish()
        except Exception as exc:
            self._failure = last_word(exc)
            raise
        finally:
            self._is_made = True
            self._notify()
        return summary

    def deliver(self, link: SocketLink, offset: int) -> None:
        """Send the archive over an attached connection, until that ends.

        Args:
            offset: where the client resumes.
        """
        try:
            link.send(*self.protocol.heartbeat(offset))
            with closing(self._pieces(link, offset)) as pieces:
                send(link, self.protocol, pieces, self._take_event, offset=offset)
            if self._failure:
                link.send(STATUS, self._failure)
                return
            if end := self.protocol.end(self.spool.size_bytes, self.spool.crc32):
                link.send(*end)
            while True:
                self._take_event(next_event(link, self.protocol))
        except PycrictlError:
            pass  # the client has everything, has reconnected, or has given up
        finally:
            self._release(link)
            link.close()

    def _pieces(self, link: SocketLink, offset: int) -> Generator[memoryview, None, None]:
        spool = self.spool
        with memoryview(bytearray(PIECE_BYTES)) as buffer:
            while True:
                is_ready = self._wait(lambda: self._has_more(offset))  # noqa: B023 (called at once)
                if self._link is not link:
                    raise StreamError("the client has opened another connection")
                if spool.size_bytes > offset and not self._failure:
                    piece = spool.read(offset, buffer)
                    yield piece
                    offset += len(piece)
                elif is_ready:
                    return
                else:
                    yield memoryview(b"")

    def _has_more(self, offset: int) -> bool:
        return self._is_made or self.spool.size_bytes > offset

    def _take_event(self, event: Event) -> None:
        if isinstance(event, Acknowledgement):
            if event.offset > self.spool.size_bytes:
                raise RemoteProtocolError("the client acknowledges more bytes than the copy has")
            self._on_progress(event.offset)
