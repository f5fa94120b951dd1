"""A session while the agent runs, and what threads do for it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from pycrictl.agent.copies import work
from pycrictl.agent.copies.engine import Engine
from pycrictl.agent.copies.refusals import Refused
from pycrictl.agent.copies.session import CopyPhase, Session
from pycrictl.agent.copies.store import AHEAD_BYTES, Archive
from pycrictl.copy.archive.checksum import Checksum, wrong_checksum
from pycrictl.copy.archive.pack import PIECE_BYTES
from pycrictl.copy.archive.pieces import Arriving
from pycrictl.copy.rules import outcome
from pycrictl.copy.rules.policy import Skipped
from pycrictl.copy.rules.summary import Summary
from pycrictl.copy.tree.watch import Watch
from pycrictl.errors import Cancelled

_COMMIT_S: Final = 20.0
"""How long what has arrived stays beside its place without a commit."""

_LOOK_S: Final = 0.5
_LOOKS: Final = 5
_PAUSE_S: Final = 0.002
"""An archive is made no slower than a piece in so many pauses, however slow its client is."""

_STOP_S: Final = 5.0


@dataclass(slots=True, eq=False)
class Copy:
    """A session while the agent runs.

    Attributes:
        session: what is kept of it.
        archive: its file; None once it is over.
        arriving: what has come so far; None until it is known.
        job: what a thread does for it, or did.
        stream: serves its connection, if it has one.
        putting: puts what arrives beside its place.
        moved_s: when a byte of it has moved, on the service's clock.
        sent_bytes: up to where its archive was read to be sent.
        is_unwanted: its job is to stop.
        skipped: what was left out, as far as it is listed.
        news: is set when the archive that is being made has grown, or is over.
    """

    session: Session
    archive: Archive | None
    arriving: Arriving | None = None
    job: asyncio.Task[None] | None = None
    stream: asyncio.Task[Any] | None = None
    putting: Putting | None = None
    moved_s: float = 0.0
    sent_bytes: int = 0
    is_unwanted: bool = False
    skipped: list[Skipped] = field(default_factory=list)
    skipped_count: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_working(self) -> bool:
        """Whether a thread does something for it."""
        return self.job is not None and not self.job.done()

    async def grown(self, offset: int) -> bool:
        """Wait until its archive is longer than that; return whether it ever is.

        Raises:
            Refused: it cannot be made.
        """
        session = self.session
        while session.phase is CopyPhase.MEASURING and self.has_bytes <= offset:
            self.news.clear()
            await self.news.wait()
        if session.phase is CopyPhase.FAILED:
            raise Refused(session.lasting_code, session.message)
        return self.has_bytes > offset

    @property
    def has_bytes(self) -> int:
        """How much of its archive is there."""
        return 0 if self.archive is None else self.archive.size_bytes

    async def disconnect(self, *, is_whole: bool = False) -> None:
        """End its connection, if that is not what calls this, and what goes with it.

        Args:
            is_whole: everything has arrived, and will be put into its place.
        """
        stream, self.stream = self.stream, None
        if stream is not None and stream is not asyncio.current_task() and not stream.done():
            stream.cancel()
            await asyncio.wait([stream])
        if not is_whole:
            await self.stop_putting()

    async def stop_putting(self) -> None:
        """Remove what was put beside its place; it is put there again when it is wanted."""
        putting = self.putting
        if putting is not None:
            await putting.stop()
            if self.putting is putting:  # until here others may wait for the same
                self.putting = None
                self.forget_skipped()

    def forget_skipped(self) -> None:
        """Take back what was left out, as it is to be done anew."""
        self.skipped.clear()
        self.skipped_count = 0

    def skip(self, one: Skipped) -> None:
        """Count an entry that was left out."""
        self.skipped_count += 1
        if len(self.skipped) < outcome.MAX_SKIPPED:
            self.skipped.append(one)

    @property
    def watch(self) -> Watch:
        """What is to be called while something is done for it."""
        return Watch(_ignore, self.skip, on_archive=self.expect)

    def expect(self, size_bytes: int) -> None:
        """Note how long its archive will be."""
        self.session.expected_bytes = size_bytes

    def check_wanted(self) -> None:
        """Raise an error if nobody wants the copy any more."""
        if self.is_unwanted:
            raise Cancelled("the copy was given up", code="Canceled")

    def success(self, summary: Summary) -> dict[str, Any]:
        """Return what the client is told of a copy that has been made (a ``Status``)."""
        summary.skipped = max(summary.skipped, self.skipped_count)
        found: dict[str, Any] = json.loads(outcome.encode_success(summary, self.skipped))
        return found


def make_archive(
    copy: Copy, engine: Engine, admit: Callable[[int], None], on_growth: Callable[[], None]
) -> int:
    """Make the archive of what is copied out of a container; return its checksum. It blocks.

    Args:
        copy: gets it.
        engine: makes it.
        admit: called with its size before it grows to that; raises an error if that is too much.
        on_growth: called when it has grown.
    """
    session, archive = copy.session, copy.archive
    assert archive is not None
    checksum = Checksum()

    def write(piece: memoryview) -> None:
        copy.check_wanted()
        admit(archive.size_bytes + len(piece))
        checksum.add(piece)
        archive.append(piece)
        on_growth()
        for _ in range(_LOOKS):
            if copy.stream and archive.size_bytes - copy.sent_bytes > AHEAD_BYTES:
                time.sleep(_PAUSE_S)  # what goes out soon is not read from the disk

    engine.pack(session.place, session.spec, write, copy.watch)
    return checksum.value


class Putting:
    """Puts an archive into the container, while it arrives or once it is there.

    Nothing is visible before ``finish`` is called: until then everything is beside its place, and
    can be done again.

    Args:
        copy: its archive is read; nobody closes it meanwhile.
        engine: does it, in a thread.

    Attributes:
        done: what becomes of it.
        is_final: whether it was let go on to its end: what it raises then is the outcome.
    """

    def __init__(self, copy: Copy, engine: Engine) -> None:
        self.is_final = False
        self._copy = copy
        self._news = threading.Event()
        self._is_allowed = False
        self._is_unwanted = False
        session = copy.session

        def put() -> Summary:
            with closing(self._pieces()) as pieces:
                return engine.place(session.place, session.spec, pieces, copy.watch)

        self.done = work.start(put)
        self.done.add_done_callback(_look)

    async def finish(self) -> Summary:
        """Let it go on to its end, and return what was done; raises what went wrong."""
        self._is_allowed = True
        self._news.set()
        return await self.done

    async def stop(self) -> None:
        """Give it up, and wait until nothing of it is left, unless a file system hangs."""
        self._is_unwanted = True
        self._news.set()
        await asyncio.wait([self.done], timeout=_STOP_S)

    def wake(self) -> None:
        """Let it see what has arrived."""
        self._news.set()

    def _pieces(self) -> Generator[memoryview, None, None]:
        copy, archive = self._copy, self._copy.archive
        assert archive is not None
        with memoryview(bytearray(PIECE_BYTES)) as buffer:
            offset = 0
            while offset < copy.session.size_bytes:
                if count := archive.read(offset, buffer):
                    self._check_wanted()
                    with buffer[:count] as piece:  # whoever still has it then has nothing
                        yield piece
                    offset += count
                else:
                    self._wait()
        give_up_at = time.monotonic() + _COMMIT_S
        while not self._is_allowed and time.monotonic() < give_up_at:
            self._wait()
        if not self._is_allowed:
            raise Cancelled("nobody has said that it is wanted", code="Canceled")
        self.is_final = True

    def _wait(self) -> None:
        self._check_wanted()
        self._news.wait(_LOOK_S)
        self._news.clear()

    def _check_wanted(self) -> None:
        self._copy.check_wanted()
        if self._is_unwanted:
            raise Cancelled("it is begun anew", code="Canceled")


def verify(copy: Copy, engine: Engine) -> None:
    """Require that what has arrived can be put into its place. It blocks.

    Raises:
        CopyError: it is not what was announced.
        Gone: the container is not there any more.
    """
    assert copy.arriving is not None
    if copy.arriving.crc32 != copy.session.crc32:
        raise wrong_checksum()
    engine.check(copy.session.place)


def _ignore(_: int) -> None:
    """Count nothing."""


def _look(done: asyncio.Future[Summary]) -> None:
    """Take in an error of which nobody wants to know."""
    if not done.cancelled():
        done.exception()
