"""Begins, resumes, commits, abandons and forgets the copies of a node.

Sessions are managed in the loop; work on files and the runtime is done in threads. A copy into a
container is staged there as it arrives; a copy out of one is spooled in a file without a name. A
session ends with its agent: its client then starts the copy again.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Final

from pycrictl.agent.copies.admission import Admission, free_bytes
from pycrictl.agent.copies.engine import Engine, replaced
from pycrictl.agent.copies.session import (
    LIFETIME_S,
    Audit,
    CopyOwner,
    CopyPhase,
    CopySpec,
    Direction,
    End,
    Place,
    Refused,
    Session,
    encode_refusal,
    lasting,
    refused,
)
from pycrictl.copy.archive.spool import Spool
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.quotas import Quotas
from pycrictl.copy.transfer.flow import ignore
from pycrictl.copy.transfer.link import SocketLink
from pycrictl.copy.transfer.messages import ResumableProtocol
from pycrictl.copy.transfer.serving import Download, Upload, in_thread
from pycrictl.copy.tree.walk import Watch
from pycrictl.errors import (
    Cancelled,
    ConnectError,
    CopyError,
    Exhausted,
    FailedPrecondition,
    NotFound,
    PycrictlError,
)
from pycrictl.kube.pods import Pod
from pycrictl.units import format_moment, quote

PATIENCE_S: Final = 20.0
"""How long a request waits for its result; the API server gives a request 60 s."""

MAX_SESSIONS: Final = 1000
"""Sessions kept at most; the oldest of those that are over make room."""

STOP_S: Final = 5.0
"""How long threads may take to end."""

_SWEEP_S: Final = 5.0


@dataclass(eq=False)
class Copies:
    """The copies of this node.

    Attributes:
        folder: for the archives of copies out of containers.
        spool_limit_bytes: disk space for all copies together; 0 for no limit.
        audit: called with the end of each copy, refused ones included.
        lifetime_s: how long a session is kept without any activity of its client.
    """

    folder: str
    engine: Engine
    quotas: Quotas
    _: KW_ONLY
    spool_limit_bytes: int
    audit: Audit
    clock: Callable[[], float] = time.monotonic
    lifetime_s: float = LIFETIME_S

    def __post_init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        free = partial(free_bytes, self.folder)
        self.admission = Admission(
            self.quotas, self.spool_limit_bytes, free, self.clock, self._expire
        )

    async def start(self) -> None:
        """Start to expire sessions; remove what killed programs have left in containers."""
        in_thread(self.engine.sweep)
        self._loop = asyncio.get_running_loop()
        self._sweeper = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        """End all copies; clients start them again with the next agent."""
        self._sweeper.cancel()
        why = End.STOPPED, "the agent was stopped", 503
        await asyncio.gather(*(self._give_up(one, *why) for one in self.sessions.values()))

    async def begin(
        self, owner: CopyOwner, asked: Place, spec: CopySpec, name: str = ""
    ) -> Session:
        """Begin a copy.

        A copy out of a container is returned once its archive is complete, as in KEP-4582; if that
        takes long, the session is returned earlier, in the phase ``Measuring``. With the option
        ``early``, it is returned once its archive has begun.
        """
        phase = CopyPhase.TRANSFERRING if spec.direction is Direction.TO else CopyPhase.MEASURING
        session = Session(
            name or os.urandom(16).hex(), owner, asked, spec, phase, spec.size_bytes, spec.crc32,
            created=format_moment(time.time()), heard_s=self.clock(),
        )  # fmt: skip
        try:
            await self._begin(session)
        except Exception as exc:
            why = refused(exc)
            self._end(session, End.REFUSED, why.message, why.code)
            raise why from None
        return session

    async def _begin(self, session: Session) -> None:
        self.quotas.check_size(session.size_bytes)
        session.place = await asyncio.to_thread(self.engine.find, session.place)
        await self.admission.take(session)
        spool = None
        try:
            if session.spec.direction is Direction.FROM:
                spool = await asyncio.to_thread(Spool, self.folder)
            if session.name in self.sessions:
                raise Refused(409, "there is a copy of that name")
        except BaseException:
            self.admission.give(session)
            if spool is not None:
                spool.close()
            raise
        if len(self.sessions) >= MAX_SESSIONS:  # the quotas allow fewer running ones
            self._forget(next(one for one in self.sessions.values() if one.is_over))
        self.sessions[session.name] = session
        self._start(session, spool)
        if spool is None:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(session.begun.wait(), PATIENCE_S)
        if session.is_over:
            self._forget(session)
            raise Refused(session.code, session.message)

    def _start(self, session: Session, spool: Spool | None) -> None:
        """Start the thread of a copy, and the task that waits for its end."""
        place, spec, engine = session.place, session.spec, self.engine

        def expect(size_bytes: int) -> None:
            session.expected_bytes = size_bytes

        watch = Watch(ignore, session.skips.add, note=session.skips.add_note, on_archive=expect)
        admit, progressed = partial(self._admit, session), partial(self._progressed, session)
        last_word = partial(self._last_word, session)
        if spool is None:
            protocol = ResumableProtocol(is_client=False, is_sender=False)
            session.transfer = upload = Upload(
                protocol, spec.size_bytes, spec.crc32,
                refusal=encode_refusal, admit=admit, on_progress=progressed,
            )  # fmt: skip
            act = partial(engine.place, place, spec, upload, watch)
        else:
            session.transfer = download = Download(spool, admit=admit, on_progress=progressed)
            act = partial(engine.pack, place, spec, download.write, watch)
        work = asyncio.wrap_future(in_thread(partial(session.transfer.run, act, last_word)))
        session.task = asyncio.create_task(self._attend(session, work))

    async def _attend(self, session: Session, work: asyncio.Future[Summary]) -> None:
        """Follow a copy until its threads have ended and all it holds is released."""
        await asyncio.wait([work])
        if work.exception() is None and not session.is_over:
            session.outcome = json.loads(session.skips.success(work.result()))
            if isinstance(session.transfer, Download):
                spool = session.transfer.spool
                session.size_bytes, session.crc32 = spool.size_bytes, spool.crc32
                session.phase = CopyPhase.TRANSFERRING
            else:
                self._end(session, End.DONE)
        session.begun.set()
        session.settled.set()
        await session.over.wait()
        await session.wait(None)
        self.admission.give(session)
        if isinstance(session.transfer, Download):
            in_thread(session.transfer.spool.close)  # this waits for writes to the disk

    # Called by threads

    def _admit(self, session: Session, size_bytes: int) -> None:
        self.quotas.check_size(size_bytes)
        try:
            self.admission.hold_now(session, size_bytes)
        except Exhausted:
            held = self.admission.hold(session, size_bytes)
            asyncio.run_coroutine_threadsafe(held, self._loop).result(PATIENCE_S)
        if session.spec.early and not session.begun.is_set():
            self._loop.call_soon_threadsafe(session.begun.set)

    def _progressed(self, session: Session, offset: int) -> None:
        session.heard_s = self.clock()
        if offset > session.offset:
            session.moved_s = session.heard_s
        session.offset = offset

    def _last_word(self, session: Session, end: Summary | Exception) -> bytes:
        """End the session of a failed copy; return the status that its client then gets."""
        if isinstance(end, Summary):
            return b""  # the client requests it
        if isinstance(end, FailedPrecondition | NotFound):
            # A proxy's refusal of a path has the same code as that of a stopped container.
            try:
                self.engine.check(session.place)
                end = CopyError(end.message, hint=end.hint)
            except FailedPrecondition as exc:
                end = exc
            except PycrictlError:  # the runtime cannot be asked
                pass
        why = refused(end)
        if isinstance(end, ConnectError) and session.spec.direction is Direction.TO:
            # A proxy of this node has ended, or timed out while the client was disconnected.
            why = Refused(404, f"{why.message}; start the copy again")
        self._loop.call_soon_threadsafe(self._fail, session, why)
        return encode_refusal(lasting(why))

    # Requests of clients

    def find(self, name: str, owner: CopyOwner, pod: Pod) -> Session:
        """Return a copy, and count this as activity; another user's copy is refused as unknown."""
        session, whole_pod = self.sessions.get(name), f"{pod.namespace}/{pod.name}"
        if session is not None and (session.owner, session.place.whole_pod) == (owner, whole_pod):
            if session.place.pod_uid != pod.uid:
                raise refused(replaced(session.place))
            session.heard_s = self.clock()
            return session
        raise Refused(
            404,
            f"copy {quote(name[:32])} is not known on the node of"
            f" pod {quote(whole_pod)}: the agent was restarted, there was no request"
            " about it for 15 minutes, or the pod was replaced; start the copy again",
        )

    def expires(self, session: Session) -> str:
        return format_moment(time.time() + session.heard_s + self.lifetime_s - self.clock())

    async def check(self, session: Session) -> None:
        """Require that a copy can continue: it has not failed, and its container still runs."""
        _check_not_failed(session)
        try:
            await asyncio.to_thread(self.engine.check, session.place)
        except PycrictlError as exc:
            if isinstance(exc, FailedPrecondition):
                session.transfer.cancel(exc)
                self._fail(session, refused(exc))
            raise refused(exc) from exc

    async def check_moving(self, session: Session, offset: int) -> None:
        """Require that a copy can continue to transfer bytes at an offset."""
        await self.check(session)
        _check_not_failed(session)  # it may have failed meanwhile
        if session.phase not in (CopyPhase.MEASURING, CopyPhase.TRANSFERRING):
            raise Refused(409, f"the copy is {session.phase.value.lower()}: no bytes are wanted")
        if session.phase is CopyPhase.TRANSFERRING and offset > session.size_bytes:
            raise Refused(422, f"the archive has {session.size_bytes} bytes")

    async def connect(self, session: Session, link: SocketLink, offset: int) -> None:
        """Continue a copy over a new connection, and close the previous one."""
        transfer, before = session.transfer, session.sending
        transfer.attach(link)
        if isinstance(transfer, Download):
            if before is not None:
                await asyncio.wait([before])
            sending = in_thread(partial(transfer.deliver, link, offset))
            session.sending = asyncio.wrap_future(sending)

    async def commit(self, session: Session) -> Session:
        """Move an archive that has arrived into place, or end a copy that the client has whole.

        If that takes long, the session is returned earlier, in the phase ``Committing``, and a
        second call returns the result.
        """
        if session.phase is CopyPhase.MEASURING:
            raise Refused(409, "the archive is still being made")
        if session.phase is CopyPhase.TRANSFERRING:
            if isinstance(session.transfer, Download):
                session.offset = session.size_bytes
                self._end(session, End.DONE)
                await self._give_up(session, End.DONE)
                return session
            if session.offset != session.size_bytes:
                raise Refused(
                    409, f"only {session.offset} of {session.size_bytes} bytes have arrived"
                )
            await self.check(session)
            if session.phase is CopyPhase.TRANSFERRING:  # else another call was quicker
                session.phase = CopyPhase.COMMITTING
                session.transfer.allow()
        with suppress(TimeoutError):
            await asyncio.wait_for(session.over.wait(), PATIENCE_S)
        return session

    async def abandon(self, session: Session) -> Session:
        """Abandon a copy: nothing of it is left, unless it is already in place."""
        await self._give_up(session, End.ABANDONED, "it was given up", 410, limit_s=PATIENCE_S)
        return session

    def snapshot(self) -> dict[str, int]:
        running = sum(not session.is_over for session in self.sessions.values())
        return {"copies": running, "spool_bytes": self.admission.held_bytes}

    # How sessions end

    def _fail(self, session: Session, why: Refused) -> None:
        if not session.is_unwanted:  # else ``_give_up`` ends it
            self._end(session, End.FAILED, why.message, why.code)

    def _end(self, session: Session, end: End, message: str = "", code: int = 0) -> None:
        if not session.is_over:
            session.end(end, message, code)
            self.audit(session, end)

    async def _give_up(
        self,
        session: Session,
        end: End,
        message: str = "",
        code: int = 0,
        *,
        limit_s: float = STOP_S,
    ) -> None:
        """Stop the threads of a copy, end it if it is not over by then, and forget it.

        All that it holds is then released, unless a thread hangs.
        """
        if end is not End.STOPPED or session.phase is not CopyPhase.COMMITTING:
            session.is_unwanted = True
            session.transfer.cancel(Cancelled("the copy was given up", code="Canceled"))
        await session.wait(limit_s)
        self._end(session, end, message, code)
        await asyncio.wait([session.task], timeout=STOP_S)
        self._forget(session)

    def _forget(self, session: Session) -> None:
        self.sessions.pop(session.name, None)

    async def _sweep(self) -> None:
        """Remove sessions whose client sent no request for too long."""
        while True:
            await asyncio.sleep(min(_SWEEP_S, self.lifetime_s / 4))
            now = self.clock()
            for session in list(self.sessions.values()):
                is_old = now - session.heard_s >= self.lifetime_s
                if is_old and session.phase is not CopyPhase.COMMITTING:
                    await self._expire(session, "there was no request about it for too long")

    async def _expire(self, session: Session, why: str) -> None:
        await self._give_up(session, End.EXPIRED, why, 410)


def _check_not_failed(session: Session) -> None:
    if session.phase is CopyPhase.FAILED:
        raise lasting(Refused(session.code, session.message))
