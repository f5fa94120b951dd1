"""The copies of a node: begun, taken up again, put into their place, given up, forgotten.

Everything about sessions is done in the loop; what touches files or the runtime has threads. What
goes into a container is staged there as it comes, and what comes out of one waits in a file
without a name. A session ends with its agent: its client begins it anew.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from pycrictl.agent.copies.admission import Admission, Copy, SpoolSpace, free_bytes
from pycrictl.agent.copies.engine import Engine, Gone, replaced
from pycrictl.agent.copies.http_errors import (
    Refused,
    encode_refusal,
    lasting,
    refused,
    refusing,
)
from pycrictl.agent.copies.session import (
    LIFETIME_S,
    NAME,
    Audit,
    CopyOwner,
    CopyPhase,
    CopySpec,
    Direction,
    End,
    Place,
    Session,
)
from pycrictl.copy.archive.spool import Spool
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.quotas import Quotas
from pycrictl.copy.transfer.flow import ignore
from pycrictl.copy.transfer.link import SocketLink
from pycrictl.copy.transfer.messages import ResumableProtocol
from pycrictl.copy.transfer.serving import Download, Upload, in_thread
from pycrictl.copy.tree.walk import Watch
from pycrictl.errors import Cancelled, ConnectError, Exhausted, FailedPrecondition
from pycrictl.units import format_moment, quote

PATIENCE_S: Final = 20.0
"""How long an answer waits for what it asks for; the API server gives a request 60 s."""

MAX_SESSIONS: Final = 1000
"""Sessions that are kept; of those that are over, the oldest give way."""

STOP_S: Final = 5.0
"""How long threads may take to end."""

_SWEEP_S: Final = 5.0


class Copies:
    """The copies of this node.

    Args:
        folder: for the archives of copies out of containers.
        spool_limit_bytes: what all copies may take of the disk; 0 for no limit.
        audit: is told how each copy ended, those refused included.
        lifetime_s: how long a session is kept without a sign of its client.
    """

    def __init__(
        self,
        folder: str,
        engine: Engine,
        quotas: Quotas,
        *,
        spool_limit_bytes: int,
        audit: Audit,
        clock: Callable[[], float] = time.monotonic,
        lifetime_s: float = LIFETIME_S,
    ) -> None:
        self._folder = folder
        self._engine = engine
        self._quotas = quotas
        self._space = SpoolSpace(spool_limit_bytes, lambda: free_bytes(folder))
        self._audit = audit
        self._clock = clock
        self._lifetime_s = lifetime_s
        self._copies: dict[str, Copy] = {}
        self._unwanted: dict[tuple[str, CopyOwner], None] = {}
        self.admission = Admission(quotas, self._space, self._copies, clock, self._expire)
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to look after sessions; clear up what killed programs have left in containers."""
        in_thread(self._engine.sweep)
        self._loop = asyncio.get_running_loop()
        self._sweeper = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        """End what is going on; clients begin anew with the next agent."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        copies = list(self._copies.values())
        for copy in copies:
            if copy.session.phase is not CopyPhase.COMMITTING:  # that is left or finished
                self._cancel(copy)
        await asyncio.gather(*(copy.wait(STOP_S) for copy in copies))
        for copy in copies:
            self._end(copy, "the agent was stopped", 503, End.STOPPED)
        self._copies.clear()

    async def begin(
        self, owner: CopyOwner, asked: Place, spec: CopySpec, name: str = ""
    ) -> Session:
        """Begin a copy.

        One out of a container is ready when its archive is made, as KEP-4582 has it; if that takes
        long, the session is returned before, in the phase ``Measuring``. One that is wanted early
        is returned once there is something of its archive.
        """
        if name in self._copies:
            raise Refused(409, "there is a copy of that name")
        phase = CopyPhase.TRANSFERRING if spec.direction is Direction.TO else CopyPhase.MEASURING
        session = Session(
            name or os.urandom(16).hex(), owner, asked, spec, phase, spec.size_bytes, spec.crc32,
            created=format_moment(time.time()), heard_s=self._clock(),
        )  # fmt: skip
        try:
            with refusing():
                await self._begin(session)
        except Refused as exc:
            if not session.is_over:
                session.fail(exc.message, exc.code)
                self._audit(session, End.REFUSED)
            raise
        return session

    async def _begin(self, session: Session) -> None:
        name, owner, asked = session.name, session.owner, session.place
        self._quotas.check_size(session.size_bytes)
        session.place = await asyncio.to_thread(
            self._engine.find, asked.namespace, asked.pod, asked.pod_uid, asked.container
        )
        self._space.check(session.size_bytes)
        await self.admission.take(session)
        try:
            spool = None
            if session.phase is CopyPhase.MEASURING:
                spool = await asyncio.to_thread(Spool, self._folder)
            if name in self._copies or (name, owner) in self._unwanted:
                if spool is not None:
                    spool.close()
                raise Refused(409, "the copy was given up before it began")
        except BaseException:
            self._quotas.give(session.place.sandbox_id)
            raise
        if len(self._copies) >= MAX_SESSIONS:  # fewer than that go on, by the quotas
            self._forget(next(one for one in self._copies.values() if one.session.is_over))
        copy = self._copies[name] = self._started(session, spool)
        if spool is None:
            return
        ready = asyncio.ensure_future(copy.begun.wait()) if session.spec.early else copy.work
        await asyncio.wait([ready], timeout=PATIENCE_S)
        if session.is_over:
            self._forget(copy)
            raise Refused(session.code, session.message)

    def _started(self, session: Session, spool: Spool | None) -> Copy:
        place, spec = session.place, session.spec

        def admit(size_bytes: int) -> None:
            if spool is not None:
                self._quotas.check_size(size_bytes)
            try:
                self.admission.hold_now(copy, size_bytes)
            except Exhausted:
                made = asyncio.run_coroutine_threadsafe(
                    self.admission.hold(copy, size_bytes), self._loop
                )
                made.result(PATIENCE_S)
            if not copy.begun.is_set():
                self._loop.call_soon_threadsafe(copy.begun.set)

        def progressed(offset: int) -> None:
            session.heard_s = self._clock()
            if offset > session.offset:
                copy.moved_s = session.heard_s
            session.offset = offset

        def expect(size_bytes: int) -> None:
            session.expected_bytes = size_bytes

        def last_word(end: Summary | Exception) -> bytes:
            """End a session that has failed before its client learns it."""
            if isinstance(end, Summary):
                return b""  # the client asks
            why = self._reason(copy, end)
            self._loop.call_soon_threadsafe(self._fail, copy, why)
            return encode_refusal(lasting(why))

        def take() -> Summary:
            return upload.run(
                lambda archive: self._engine.place(place, spec, archive, watch), last_word
            )

        def make() -> Summary:
            try:
                self._engine.pack(place, spec, download.write, watch)
                download.finish()
            except Exception as exc:
                download.fail(last_word(exc))
                raise
            return Summary()

        if spool is None:
            protocol = ResumableProtocol(is_client=False, is_sender=False)
            upload = Upload(
                protocol, spec.size_bytes, spec.crc32,
                refusal=encode_refusal, admit=admit, on_progress=progressed,
            )  # fmt: skip
            copy = Copy(session, upload, self._clock())
        else:
            download = Download(spool, admit=admit, on_progress=progressed)
            copy = Copy(session, download, self._clock())
        watch = Watch(ignore, copy.skips.add, on_archive=expect)
        copy.work = asyncio.wrap_future(in_thread(take if spool is None else make))
        copy.work.add_done_callback(partial(self._settle, copy))
        return copy

    def find(self, name: str, owner: CopyOwner, namespace: str, pod: str, pod_uid: str) -> Copy:
        """Return a copy, of which this is a sign; of somebody else's none is known."""
        copy = self._copies.get(name)
        if copy is not None:
            session, place = copy.session, copy.session.place
            if (session.owner, place.namespace, place.pod) == (owner, namespace, pod):
                if place.pod_uid != pod_uid:
                    raise refused(replaced(place))
                session.heard_s = self._clock()
                return copy
        raise Refused(
            404,
            f"copy {quote(name[:32])} is not known on the node of"
            f" pod {quote(f'{namespace}/{pod}')}: the agent was restarted, nothing was heard of"
            " it for 15 minutes, or the pod was replaced; begin again",
        )

    def refuse(self, name: str, owner: CopyOwner) -> None:
        if name not in self._copies and NAME.fullmatch(name):
            self._unwanted[name, owner] = None
            if len(self._unwanted) > MAX_SESSIONS:
                del self._unwanted[next(iter(self._unwanted))]

    def expires(self, session: Session) -> str:
        return format_moment(time.time() + session.heard_s + self._lifetime_s - self._clock())

    async def check(self, copy: Copy) -> None:
        """Require that a copy can go on: its container is still there, and it has not failed."""
        session = copy.session
        if session.phase is CopyPhase.FAILED:
            raise lasting(Refused(session.code, session.message))
        with refusing():
            try:
                await asyncio.to_thread(self._engine.check, session.place)
            except Gone as exc:
                copy.transfer.cancel(exc)
                self._fail(copy, refused(exc))
                raise

    def check_moving(self, copy: Copy, offset: int) -> None:
        session = copy.session
        if session.phase is CopyPhase.FAILED:  # a moment ago
            raise lasting(Refused(session.code, session.message))
        if session.phase not in (CopyPhase.MEASURING, CopyPhase.TRANSFERRING):
            raise Refused(409, f"the copy is {session.phase.value.lower()}: no bytes are wanted")
        if session.phase is CopyPhase.TRANSFERRING and offset > session.size_bytes:
            raise Refused(422, f"the archive has {session.size_bytes} bytes")

    async def connect(self, copy: Copy, link: SocketLink, offset: int) -> None:
        """Continue a copy over a new connection, and close the previous one."""
        transfer, before = copy.transfer, copy.sending
        transfer.attach(link)
        if isinstance(transfer, Download):
            if before is not None:
                await asyncio.wait([before])
            sending = in_thread(partial(transfer.deliver, link, offset))
            copy.sending = asyncio.wrap_future(sending)
            copy.sending.add_done_callback(lambda _: self._free(copy))

    async def commit(self, copy: Copy) -> Session:
        """Put what has arrived into its place, or end a copy that the client has whole.

        If that takes long, the session is returned earlier, in the phase ``Committing``, and a
        second call returns the result.
        """
        session = copy.session
        if session.phase is CopyPhase.MEASURING:
            raise Refused(409, "the archive is still being made")
        if session.phase is CopyPhase.TRANSFERRING:
            if session.spec.direction is Direction.FROM:
                session.phase = CopyPhase.SUCCEEDED
                session.offset = session.size_bytes
                self._audit(session, End.DONE)
                await self._stopped(copy, STOP_S)
                self._free(copy)
                self._forget(copy)
                return session
            if session.offset != session.size_bytes:
                raise Refused(
                    409, f"only {session.offset} of {session.size_bytes} bytes have arrived"
                )
            await self.check(copy)
            if session.phase is CopyPhase.TRANSFERRING:  # else another call was quicker
                session.phase = CopyPhase.COMMITTING
                assert isinstance(copy.transfer, Upload)
                copy.transfer.allow()
        await asyncio.wait([copy.work], timeout=PATIENCE_S)
        return session

    async def abandon(self, copy: Copy) -> Session:
        """Give a copy up: nothing of it is left, unless it is in its place already."""
        await self._stopped(copy, PATIENCE_S)
        self._end(copy, "it was given up", 410, End.ABANDONED)
        self._forget(copy)
        return copy.session

    def snapshot(self) -> dict[str, int]:
        running = sum(not copy.session.is_over for copy in self._copies.values())
        return {"copies": running, "spool_bytes": self._space.held_bytes}

    # What becomes of sessions

    def _settle(self, copy: Copy, done: asyncio.Future[Summary]) -> None:
        session, exc = copy.session, done.exception()
        if exc is None and not session.is_over:
            session.outcome = json.loads(copy.skips.success(done.result()))
            if isinstance(copy.transfer, Download):
                spool = copy.transfer.spool
                session.size_bytes, session.crc32 = spool.size_bytes, spool.crc32
                session.phase = CopyPhase.TRANSFERRING
            else:
                session.phase = CopyPhase.SUCCEEDED
                self._audit(session, End.DONE)
        copy.begun.set()
        self._free(copy)

    def _reason(self, copy: Copy, exc: Exception) -> Refused:
        if isinstance(exc, FailedPrecondition) and not isinstance(exc, Gone):
            exc = replaced(copy.session.place)
        why = refused(exc)
        if isinstance(exc, ConnectError) and isinstance(copy.transfer, Upload):
            # A proxy of this node has gone, or lost its patience while the client was away.
            return Refused(404, f"{why.message}; begin again")
        return why

    def _fail(self, copy: Copy, why: Refused) -> None:
        if not copy.is_unwanted:  # else whoever told its threads to stop ends it
            self._end(copy, why.message, why.code, End.FAILED)

    def _end(self, copy: Copy, message: str, code: int, end: End) -> None:
        if not copy.session.is_over:
            copy.session.fail(message, code)
            self._audit(copy.session, end)
        self._free(copy)

    def _free(self, copy: Copy) -> None:
        """Free what a copy holds once it is over and no thread works for it."""
        threads = (copy.work, copy.sending)
        is_busy = any(one is not None and not one.done() for one in threads)
        if copy.is_freed or is_busy or not copy.session.is_over:
            return
        copy.is_freed = True
        self._quotas.give(copy.session.place.sandbox_id)
        self._space.give(copy.session.name)
        if isinstance(copy.transfer, Download):
            in_thread(copy.transfer.spool.close)  # what is on its way to the disk is waited for

    def _cancel(self, copy: Copy) -> None:
        copy.is_unwanted = True
        copy.transfer.cancel(_cancelled())

    async def _stopped(self, copy: Copy, limit_s: float) -> None:
        self._cancel(copy)
        await copy.wait(limit_s)

    def _forget(self, copy: Copy) -> None:
        self._copies.pop(copy.session.name, None)

    async def _sweep(self) -> None:
        """Remove sessions of which nothing was heard for too long."""
        while True:
            await asyncio.sleep(min(_SWEEP_S, self._lifetime_s / 4))
            now = self._clock()
            for copy in list(self._copies.values()):
                is_old = now - copy.session.heard_s >= self._lifetime_s
                if is_old and copy.session.phase is not CopyPhase.COMMITTING:
                    await self._expire(copy, "nothing was heard of it for too long")

    async def _expire(self, copy: Copy, why: str) -> None:
        await self._stopped(copy, STOP_S)
        self._end(copy, why, 410, End.EXPIRED)
        self._forget(copy)


def _cancelled() -> Cancelled:
    return Cancelled("the copy was given up", code="Canceled")
