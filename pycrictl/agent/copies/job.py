"""A session while the agent runs, and what threads do for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from pycrictl.agent.copies.engine import Engine
from pycrictl.agent.copies.refusals import Refused
from pycrictl.agent.copies.session import CopyPhase, Direction, Session
from pycrictl.agent.copies.store import Archive, Store
from pycrictl.copy.archive.checksum import Checksum, wrong_checksum
from pycrictl.copy.archive.pieces import PIECE_BYTES, Arriving
from pycrictl.copy.rules import outcome
from pycrictl.copy.rules.policy import Skipped
from pycrictl.copy.rules.summary import Summary
from pycrictl.errors import Cancelled


@dataclass(slots=True, eq=False)
class Copy:
    """A session while the agent runs.

    Attributes:
        session: what is kept of it.
        archive: its file; None once it is over.
        arriving: what has come so far; None until it is known after a restart.
        job: what a thread does for it, or did.
        stream: serves its connection, if it has one.
        is_unwanted: its job is to stop.
        skipped: what was left out, as far as it is listed.
        news: is set when the archive that is being made has grown, or is over.
    """

    session: Session
    archive: Archive | None
    arriving: Arriving | None = None
    job: asyncio.Task[None] | None = None
    stream: asyncio.Task[Any] | None = None
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

    async def disconnect(self) -> None:
        """End its connection, if that is not what calls this."""
        stream, self.stream = self.stream, None
        if stream is not None and stream is not asyncio.current_task() and not stream.done():
            stream.cancel()
            await asyncio.wait([stream])

    def skip(self, one: Skipped) -> None:
        """Count an entry that was left out."""
        self.skipped_count += 1
        if len(self.skipped) < outcome.MAX_SKIPPED:
            self.skipped.append(one)

    def check_wanted(self) -> None:
        """Raise an error if nobody wants the copy any more."""
        if self.is_unwanted:
            raise Cancelled("the copy was given up", code="Canceled")

    def success(self, summary: Summary) -> dict[str, Any]:
        """Return what the client is told of a copy that has been made (a ``Status``)."""
        summary.skipped = max(summary.skipped, self.skipped_count)
        found: dict[str, Any] = json.loads(outcome.encode_success(summary, self.skipped))
        return found


def reopened(session: Session, store: Store) -> Archive:
    """Return the archive of a session that an earlier agent has left; a new one to be measured.

    Raises:
        Refused: nothing can be made of it.
        CopyError: it cannot be opened.
    """
    if session.phase is CopyPhase.COMMITTING:
        raise Refused(
            500,
            "the agent was restarted while the copy was put into its place:"
            " see whether it is there before you copy again",
        )
    if session.phase is CopyPhase.MEASURING:
        store.remove_archive(session)
        return store.open_archive(session, is_new=True)
    archive = store.open_archive(session)
    is_arriving = session.spec.direction is Direction.TO
    missing_bytes = session.size_bytes - archive.size_bytes
    if missing_bytes < 0 or (missing_bytes and not is_arriving):
        archive.close()
        raise Refused(500, "the session's archive is damaged; begin again")
    return archive


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

    def expect(size_bytes: int) -> None:
        session.expected_bytes = size_bytes

    engine.pack(session.place, session.spec, write, copy.skip, expect)
    return checksum.value


def put(copy: Copy, engine: Engine) -> Summary:
    """Put what has arrived into the container, if it is what was announced. It blocks."""
    session, archive, arriving = copy.session, copy.archive, copy.arriving
    assert archive is not None
    assert arriving is not None
    if arriving.crc32 != session.crc32:
        raise wrong_checksum()
    engine.check(session.place)
    with closing(_pieces(copy, archive)) as pieces:
        return engine.place(session.place, session.spec, pieces, copy.skip)


def _pieces(copy: Copy, archive: Archive) -> Generator[memoryview, None, None]:
    with memoryview(bytearray(PIECE_BYTES)) as buffer:
        offset = 0
        while count := archive.read(offset, buffer):
            copy.check_wanted()
            with buffer[:count] as piece:  # whoever still has it then has nothing
                yield piece
            offset += count
