"""The archive of a copy at its node, between the copy's thread and the client's connections.

A copy has a thread of its own from the request that begins it: file operations block. An archive
for a container (``Upload``) is staged beside its destination as it arrives. One out of a container
(``Download``) is spooled, as its size and checksum may have to be known before its first byte is
sent. If the protocol is not resumable, a large file that has not been written to for a while stays
where it is and is read twice. A resumable copy survives the loss of a connection.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import Final

from pycrictl.base.errors import PycrictlError, RemoteProtocolError, StreamError
from pycrictl.copy.archive.archives import Archive, Spool
from pycrictl.copy.archive.pack import PIECE_BYTES, Census, measure, pack
from pycrictl.copy.methods import Method
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.transfer.messages import (
    STATUS,
    Acknowledgement,
    Arriving,
    CopyProtocol,
    Event,
    Link,
    ignore,
    next_event,
    receive,
    send,
)
from pycrictl.copy.tree.places import Source
from pycrictl.copy.tree.walk import Watch

LARGE_BYTES: Final = 16 * 1024 * 1024
"""The minimum size for which a container's file is read twice instead of being spooled."""

REST_S: Final = 10.0
"""Files written to more recently than this are always spooled."""


class Transfer:
    """An archive and its successive connections. Any thread may call the methods."""

    heartbeat_s = 10.0  # Of resumable copies; clients give up after three times this

    def __init__(self, protocol: CopyProtocol, size_bytes: int = 0, crc32: int = 0) -> None:
        self.protocol = protocol  # This end's protocol of the connections
        self.size_bytes, self.crc32 = size_bytes, crc32  # As announced, or made so far
        self.admit: Callable[[int], None] = ignore  # Called with each new size first; may raise
        self.on_progress: Callable[[int], None] = ignore  # Called with the bytes delivered
        self._changed = threading.Condition()
        self._link: Link | None = None
        self._error: PycrictlError | None = None
        self._last_word: bytes | None = None

    def attach(self, link: Link) -> None:
        """Attach a connection; an earlier one is closed, as the client has abandoned it.

        If the copy has concluded, the connection gets the final status, and is closed.
        """
        with self._changed:
            before, self._link = self._link, link
            is_over = self._last_word is not None
            self._changed.notify_all()
        if before is not None:
            before.interrupt()
        if is_over:
            word = self._last_word or b""
            threading.Thread(target=self.conclude, args=(word,), daemon=True).start()

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
        """Close the connection after sending the final status, unless that is empty."""
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

    def lose(self, link: Link) -> None:
        """Close a connection; the copy may resume over the next one."""
        with self._changed:
            if self._link is link:
                self._link = None
        link.close()

    def _wait(self, is_ready: Callable[[], bool]) -> bool:
        """Wait until ``is_ready``, but no longer than ``heartbeat_s``; return whether it is."""
        with self._changed:
            has_come = self._changed.wait_for(
                lambda: self._error is not None or is_ready(), timeout=self.heartbeat_s
            )
        self.check_wanted()
        return has_come


class Upload(Transfer, Archive):
    """The archive that is copied into a container; the copy's thread writes it there.

    Attributes:
        on_arrived: called when the whole archive has arrived and its files may become visible;
            with a resumable protocol, not before ``allow``.
    """

    def __init__(self, protocol: CopyProtocol, size_bytes: int, crc32: int) -> None:
        super().__init__(protocol, size_bytes, crc32)
        self.on_arrived: Callable[[], object] = lambda: None
        self._is_allowed = not protocol.resumes

    def allow(self) -> None:
        """Allow it to become visible once it is complete."""
        self._is_allowed = True
        self._notify()

    def pieces(self, offset: int = 0) -> Generator[memoryview, None, None]:
        protocol = self.protocol
        arriving = Arriving(self.size_bytes, self.crc32)
        is_ended = False
        while not (is_ended or self._may_end(arriving)):
            link = self._link
            if link is None:
                self._wait(lambda: self._link is not None or self._may_end(arriving))
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
                is_ended = not protocol.resumes
            except StreamError:
                self.check_wanted()
                if not protocol.resumes:
                    raise
            if protocol.resumes:
                self.lose(link)
        arriving.check()
        self.on_arrived()

    def _may_end(self, arriving: Arriving) -> bool:
        return self.protocol.resumes and arriving.is_whole and self._is_allowed


class Download(Transfer):
    """The archive of a copy out of a container, sent from a file that may still grow.

    Args:
        folder: where it is spooled.
    """

    def __init__(self, protocol: CopyProtocol, folder: str) -> None:
        super().__init__(protocol)
        self._sent_bytes = 0
        self._folder = folder
        self._spool: Spool | None = None
        self._kept: Callable[[], Generator[memoryview, None, None]] | None = None
        self._held = ExitStack()
        self._is_made = False
        self._failure = b""

    # In the thread that makes it

    def make(self, method: Method, path: bytes, rules: Rules, watch: Watch) -> Summary:
        """Make the archive of a path in the container."""
        # Names are judged by the receiver: here each would take memory.
        rules = rules._replace(max_entries=0)
        with ExitStack() as stack:
            archive = stack.enter_context(method.read(path, rules, watch))
            if archive.tree is not None and not self.protocol.resumes and _is_at_rest(archive.tree):
                measured = measure(archive.tree, on_skip=watch.on_skip, check=self._grow)
                archive.check()
                self.size_bytes, self.crc32, summary = measured
                self._kept = partial(pack, archive.tree, on_skip=ignore)
                self._held = stack.pop_all()
                return summary
            census = Census()
            with closing(archive.pieces()) as pieces:
                for piece in census.through(pieces):
                    self.write(piece)
            archive.check()
            return census.summary

    def write(self, piece: memoryview) -> None:
        self._grow(self.size_bytes + len(piece))
        if self._spool is None:
            self._spool = self._held.enter_context(Spool(self._folder))
        self._spool.write(piece)
        self.size_bytes, self.crc32 = self._spool.size_bytes, self._spool.crc32
        self._notify()

    def finish(self, failure: bytes = b"") -> None:
        """Mark the archive as complete, or as failed with a status for the client."""
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
        """Send the archive over ``link``; with a resumable protocol, serve the link until it ends.

        Args:
            offset: where the client resumes.

        Raises:
            PycrictlError: the connection or the copy failed.
        """
        protocol = self.protocol
        size_bytes = None if protocol.resumes else self.size_bytes
        if protocol.resumes:
            link.send(*protocol.heartbeat(offset))
        with closing(self._pieces(link, offset) if self._kept is None else self._kept()) as pieces:
            send(
                link, protocol, pieces, self._acknowledged,
                offset=offset, size_bytes=size_bytes, on_sent=self._count,
            )  # fmt: skip
        if self._failure:
            link.send(STATUS, self._failure)
        elif end := protocol.end(self.size_bytes, self.crc32):
            link.send(*end)
        while protocol.resumes and not self._failure:
            self._acknowledged(next_event(link, protocol))

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

    def _count(self, sent_bytes: int) -> None:
        if not self.protocol.resumes:  # its client acknowledges nothing
            self._sent_bytes += sent_bytes
            self.on_progress(self._sent_bytes)

    def _acknowledged(self, event: Event) -> None:
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
