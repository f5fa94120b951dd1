"""The copies of a node: begun, taken up again, put into their place, given up, forgotten.

Everything about sessions is done in the loop; what touches files or the runtime has threads
(``work``). A session ends with its agent: its client begins it anew.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

from pycrictl.agent.copies import work
from pycrictl.agent.copies.audit import Audit, End
from pycrictl.agent.copies.engine import Engine, Gone, replaced
from pycrictl.agent.copies.job import Copy, Putting, make_archive, verify
from pycrictl.agent.copies.refusals import Refused, refused, refusing
from pycrictl.agent.copies.session import (
    LIFETIME_S,
    NAME,
    CopyPhase,
    CopySpec,
    Direction,
    Owner,
    Place,
    Session,
)
from pycrictl.agent.copies.spool import SpoolSpace
from pycrictl.agent.copies.store import Store
from pycrictl.copy.archive.pieces import Arriving
from pycrictl.copy.rules.quotas import MAX_COPIES, Quotas
from pycrictl.copy.rules.summary import Summary
from pycrictl.errors import Cancelled, Exhausted, FailedPrecondition
from pycrictl.units import format_moment, quote

log = logging.getLogger("pycrictl.agent")

PATIENCE_S: Final = 20.0
"""How long an answer waits for what it asks for; the API server gives a request 60 s."""

MAX_SESSIONS: Final = 1000
"""Sessions that are kept; of those that are over, the oldest give way."""

STOP_S: Final = 5.0
"""How long jobs may take to end when the agent does."""

REST_S: Final = 60.0
"""A copy of which no byte has moved for so long gives its place up if another one needs it; so long
it is remembered that somebody was refused for want of one."""

_MAX_ASKING: Final = 1000
_SWEEP_S: Final = 5.0


class Copies:
    """The copies of this node.

    Args:
        store: keeps the sessions.
        engine: does what is to be done on the node.
        quotas: how large a copy may be, and how many of a pod there may be.
        spool_limit_bytes: what all copies may take of the disk; 0 for no limit.
        audit: is told how each copy ended, those refused included.
        clock: monotonic.
        lifetime_s: how long a session is kept without a sign of its client.
    """

    def __init__(
        self,
        store: Store,
        engine: Engine,
        quotas: Quotas,
        *,
        spool_limit_bytes: int,
        audit: Audit,
        clock: Callable[[], float] = time.monotonic,
        lifetime_s: float = LIFETIME_S,
    ) -> None:
        self._store = store
        self._engine = engine
        self._quotas = quotas
        self._space = SpoolSpace(spool_limit_bytes, lambda: store.free_bytes)
        self._audit = audit
        self._clock = clock
        self._lifetime_s = lifetime_s
        self._copies: dict[str, Copy] = {}
        self._unwanted: dict[tuple[str, Owner], None] = {}
        self._asking: dict[Owner, float] = {}  # who was refused for want of a place, and when
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to look after sessions; clear up what killed programs have left in containers."""
        work.start(self._engine.sweep)
        self._sweeper = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        """End what is going on; clients begin anew with the next agent."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        tasks: list[asyncio.Future[Any]] = []
        for copy in self._copies.values():
            copy.is_unwanted = True
            if copy.stream is not None:
                copy.stream.cancel()
                tasks.append(copy.stream)
            if copy.putting is not None:
                tasks.append(copy.putting.done)
                copy.putting.wake()
            if copy.job is not None:
                # What is being put into its place is either left or finished.
                if copy.session.phase is not CopyPhase.COMMITTING:
                    copy.job.cancel()
                tasks.append(copy.job)
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_S)
        for copy in self._copies.values():
            if not copy.session.is_over:
                copy.session.fail("the agent was stopped", 503)
                self._audit(copy.session, End.STOPPED)
            if copy.archive is not None:
                copy.archive.close()
        self._copies.clear()

    async def begin(
        self,
        owner: Owner,
        namespace: str,
        pod: str,
        pod_uid: str,
        container: str,
        spec: CopySpec,
        name: str = "",
    ) -> Session:
        """Begin a copy.

        One out of a container is ready when its archive is made, as KEP-4582 has it; if that takes
        long, the session is returned before, in the phase ``Measuring``. One that is wanted early
        is returned once there is something of its archive.

        Args:
            owner: who asks.
            namespace, pod, pod_uid: the pod.
            container: which one is meant if the copy names none.
            spec: what is asked for.
            name: of the session, if the client has chosen one.

        Raises:
            Refused: it cannot be.
        """
        if name in self._copies:
            raise Refused(409, "there is a copy of that name")
        phase = CopyPhase.TRANSFERRING if spec.direction is Direction.TO else CopyPhase.MEASURING
        place = Place(namespace, pod, pod_uid, spec.container or container)
        session = Session(
            name or os.urandom(16).hex(), owner, place, spec, phase, spec.size_bytes, spec.crc32,
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
        session.place = await work.run(
            lambda: self._engine.find(asked.namespace, asked.pod, asked.pod_uid, asked.container)
        )
        self._space.check(session.size_bytes)
        await self._take(session)
        if name in self._copies or (name, owner) in self._unwanted:
            self._quotas.give(session.place.sandbox_id)
            raise _given_up()
        if len(self._copies) >= MAX_SESSIONS:  # fewer than that go on, by the quotas
            self._forget(next(one for one in self._copies.values() if one.session.is_over))
        copy = self._copies[name] = Copy(session, None, moved_s=self._clock())
        try:
            archive = copy.archive = await work.run(self._store.open_archive)
        except BaseException:
            self._free(copy)
            self._forget(copy)
            raise
        if copy.is_unwanted:  # it was given up meanwhile
            archive.close()
            raise _given_up()
        copy.arriving = Arriving(session.size_bytes)
        if session.phase is CopyPhase.MEASURING:
            copy.job = asyncio.create_task(self._measure(copy))
            if session.spec.early:
                with suppress(TimeoutError):
                    await asyncio.wait_for(copy.news.wait(), PATIENCE_S)
            else:
                await asyncio.wait([copy.job], timeout=PATIENCE_S)
            if session.is_over:
                await asyncio.wait([copy.job])
                self._forget(copy)
                raise Refused(session.code, session.message)

    def find(self, name: str, owner: Owner, namespace: str, pod: str, pod_uid: str) -> Copy:
        """Return a copy, of which this is a sign.

        Raises:
            Refused: there is none of that name, or it is somebody else's, or another pod has that
                name now.
        """
        copy = self._copies.get(name)
        if copy is not None:
            session, place = copy.session, copy.session.place
            asked = (owner, namespace, pod)
            if (session.owner, place.namespace, place.pod) == asked:
                if place.pod_uid != pod_uid:
                    raise refused(replaced(place))
                self.hear(copy)
                return copy
        raise Refused(
            404,
            f"copy {quote(name[:32])} is not known on the node of"
            f" pod {quote(f'{namespace}/{pod}')}: the agent was restarted, nothing was heard of"
            " it for 15 minutes, or the pod was replaced; begin again",
        )

    def refuse(self, name: str, owner: Owner) -> None:
        """Refuse to begin a copy whose client has given it up meanwhile."""
        if name not in self._copies and NAME.fullmatch(name):
            self._unwanted[name, owner] = None
            if len(self._unwanted) > MAX_SESSIONS:
                del self._unwanted[next(iter(self._unwanted))]

    def hear(self, copy: Copy) -> None:
        """Note that there was a sign of a copy's client."""
        copy.session.heard_s = self._clock()

    def expires(self, session: Session) -> str:
        """Return when a session will be removed if there is no sign of its client."""
        return format_moment(time.time() + session.heard_s + self._lifetime_s - self._clock())

    async def check(self, copy: Copy) -> None:
        """Require that a copy can go on: its container is still there, and it has not failed.

        Raises:
            Refused: it cannot.
        """
        session = copy.session
        if session.phase is CopyPhase.FAILED:
            raise Refused(session.lasting_code, session.message)
        with refusing():
            try:
                await work.run(lambda: self._engine.check(session.place))
            except Gone as exc:
                await self._fail(copy, exc)
                raise

    async def commit(self, copy: Copy) -> Session:
        """Put what has arrived into its place, or end a copy that the client has whole.

        If that takes long the session is returned before, in the phase ``Committing``. A second
        call returns what has become of the first.

        Raises:
            Refused: not everything has arrived.
        """
        session = copy.session
        if session.phase is CopyPhase.TRANSFERRING:
            if session.spec.direction is Direction.FROM:
                session.phase = CopyPhase.SUCCEEDED
                session.offset = session.size_bytes
                self._end(copy, End.DONE)
                self._forget(copy)
                return session
            if session.offset != session.size_bytes:
                raise Refused(
                    409, f"only {session.offset} of {session.size_bytes} bytes have arrived"
                )
            await copy.disconnect(is_whole=True)
            with refusing():
                await self.ready(copy)
            if session.phase is CopyPhase.TRANSFERRING:  # else another call was quicker
                session.phase = CopyPhase.COMMITTING
                copy.job = asyncio.create_task(self._place(copy))
        elif session.phase is CopyPhase.MEASURING:
            raise Refused(409, "the archive is still being made")
        if copy.job is not None:
            await asyncio.wait([copy.job], timeout=PATIENCE_S)
        return session

    async def abandon(self, copy: Copy) -> Session:
        """Give a copy up: nothing of it is left, unless it is in its place already."""
        copy.is_unwanted = True
        await copy.disconnect()
        if copy.job is not None and not copy.job.done():
            await asyncio.wait([copy.job], timeout=PATIENCE_S)
        if not copy.session.is_over:
            copy.session.fail("it was given up", 410)
            self._end(copy, End.ABANDONED)
        self._forget(copy)
        return copy.session

    async def ready(self, copy: Copy) -> Arriving:
        """Return what has arrived of a copy to a container; what could not be written is not."""
        if copy.arriving is None:
            archive, session = copy.archive, copy.session
            assert archive is not None
            value = await work.run(archive.checksum)
            copy.arriving = Arriving(session.size_bytes, archive.size_bytes, value)
        return copy.arriving

    def acknowledged(self, copy: Copy, offset: int) -> None:
        """Note how much of an archive is where it shall be."""
        if offset > copy.session.offset:
            copy.moved_s = self._clock()
        copy.session.offset = offset
        self.hear(copy)

    async def hold(self, copy: Copy, size_bytes: int) -> None:
        """Let a copy have so much of the disk, if need be that of others; see ``REST_S``.

        Raises:
            Exhausted: there is no space.
        """
        while True:
            try:
                self._hold(copy, size_bytes)
            except Exhausted:
                if self._is_over_share(copy.session.owner, size_bytes - copy.has_bytes):
                    raise
                self._ask(copy.session.owner)
                if not await self._make_room(copy.session, lambda of: self._is_over_half(of, 0)):
                    raise
            else:
                return

    def put_early(self, copy: Copy) -> Putting:
        """Put what arrives beside its place, so that less is left for the end."""
        copy.putting = Putting(copy, self._engine)
        return copy.putting

    async def attach(self, copy: Copy, stream: asyncio.Task[Any]) -> None:
        """Make a connection the one of a copy: an earlier one ends, as its client has left it."""
        await copy.disconnect()
        copy.stream = stream

    def snapshot(self) -> dict[str, int]:
        """Return how many copies there are, and what they take of the disk."""
        running = sum(not copy.session.is_over for copy in self._copies.values())
        return {"copies": running, "spool_bytes": self._space.held_bytes}

    # Who gives way

    def _hold(self, copy: Copy, size_bytes: int) -> None:
        session = copy.session
        if self._is_over_share(session.owner, size_bytes - copy.has_bytes):
            raise _more_than_half("of what copies may take of the disk", session.owner)
        self._space.hold(session.name, session.owner, size_bytes)
        copy.moved_s = self._clock()

    async def _take(self, session: Session) -> None:
        """Take a place for a copy, if need be that of another one.

        Raises:
            Exhausted: there is none.
        """
        pod = session.place.sandbox_id
        while True:
            if self._others_ask(session.owner) and self._places(session.owner) >= MAX_COPIES // 2:
                raise _more_than_half("of the copies at once", session.owner)
            try:
                self._quotas.take(pod)
            except Exhausted:
                self._ask(session.owner)
                is_full = self._quotas.is_full(pod)
                # One pod has no more than half of all, which one user must not have whole.
                half = (MAX_COPIES if is_full else self._quotas.taken) // 2
                has_too_much = partial(self._has_more_places, half)
                if not await self._make_room(session, has_too_much, pod if is_full else ""):
                    raise
            else:
                return

    async def _make_room(
        self, session: Session, has_too_much: Callable[[Owner], bool], pod: str = ""
    ) -> bool:
        """End a copy for the sake of another one; return whether there was one that gives way.

        Args:
            session: the other one.
            has_too_much: returns whether another user's copies give way although they move.
            pod: the ID of a sandbox: only copies of that pod; empty for all.
        """
        now = self._clock()
        found = [
            copy
            for copy in self._copies.values()
            if not (copy.session is session or copy.session.is_over or copy.is_working)
            and pod in ("", copy.session.place.sandbox_id)
            and (
                now - copy.moved_s >= REST_S
                or (copy.session.owner != session.owner and has_too_much(copy.session.owner))
            )
        ]
        if not found:
            return False
        await self._expire(min(found, key=lambda one: one.moved_s), "another copy needs its place")
        return True

    def _is_over_share(self, owner: Owner, growth_bytes: int) -> bool:
        return self._others_ask(owner) and self._is_over_half(owner, growth_bytes)

    def _is_over_half(self, owner: Owner, growth_bytes: int) -> bool:
        limit_bytes = self._space.limit_bytes
        return 0 < limit_bytes < 2 * (self._space.held_by(owner) + growth_bytes)

    def _places(self, owner: Owner) -> int:
        return sum(
            copy.session.owner == owner and not copy.session.is_over
            for copy in list(self._copies.values())
        )

    def _has_more_places(self, count: int, owner: Owner) -> bool:
        return self._places(owner) > count

    def _ask(self, owner: Owner) -> None:
        """Remember that somebody was refused."""
        self._asking.pop(owner, None)
        self._asking[owner] = self._clock()
        if len(self._asking) > _MAX_ASKING:
            del self._asking[next(iter(self._asking))]

    def _others_ask(self, owner: Owner) -> bool:
        since_s = self._clock() - REST_S
        return any(at > since_s and one != owner for one, at in list(self._asking.items()))

    # What threads do

    async def _measure(self, copy: Copy) -> None:
        session = copy.session
        loop = asyncio.get_running_loop()

        def grew() -> None:
            loop.call_soon_threadsafe(copy.news.set)

        def admit(size_bytes: int) -> None:
            self._quotas.check_size(size_bytes)
            try:
                self._hold(copy, size_bytes)
            except Exhausted:
                made = asyncio.run_coroutine_threadsafe(self.hold(copy, size_bytes), loop)
                made.result(PATIENCE_S)

        async with self._failing(copy):
            crc32 = await work.start(lambda: make_archive(copy, self._engine, admit, grew))
            assert copy.archive is not None
            session.outcome = copy.success(Summary())
            session.size_bytes, session.crc32 = copy.archive.size_bytes, crc32
            session.phase = CopyPhase.TRANSFERRING
        copy.news.set()

    async def _place(self, copy: Copy) -> None:
        session = copy.session
        async with self._failing(copy):
            await work.run(lambda: verify(copy, self._engine))
            session.outcome = copy.success(await self._put(copy))
            session.phase = CopyPhase.SUCCEEDED
            self._end(copy, End.DONE)

    async def _put(self, copy: Copy) -> Summary:
        """Put an archive into its place: what was done early counts, if nothing was wrong."""
        if (early := copy.putting) is not None:
            copy.putting = None
            try:
                return await early.finish()
            except Exception:
                if early.is_final:
                    raise
            copy.forget_skipped()
        return await Putting(copy, self._engine).finish()

    # What becomes of sessions

    @asynccontextmanager
    async def _failing(self, copy: Copy) -> AsyncIterator[None]:
        """Make any error that of a copy."""
        try:
            yield
        except Exception as exc:
            await self._fail(copy, exc)

    async def _fail(self, copy: Copy, exc: Exception) -> None:
        if copy.session.is_over:
            return
        if copy.is_unwanted and isinstance(exc, Cancelled):
            copy.session.fail("it was given up", 410)
            self._end(copy, End.ABANDONED)
            return
        if isinstance(exc, FailedPrecondition) and not isinstance(exc, Gone):
            exc = replaced(copy.session.place)
        reason = refused(exc)
        was_measuring = copy.session.phase is CopyPhase.MEASURING
        copy.session.fail(reason.message, reason.code)
        if was_measuring and copy.stream is not None:
            copy.news.set()  # its connection says so, and ends
            await asyncio.wait([copy.stream], timeout=STOP_S)
        await copy.disconnect()
        self._end(copy, End.FAILED)

    def _end(self, copy: Copy, end: End) -> None:
        """Free what a copy holds, and leave a line about it."""
        self._free(copy)
        self._audit(copy.session, end)

    def _free(self, copy: Copy) -> None:
        self._quotas.give(copy.session.place.sandbox_id)
        self._space.give(copy.session.name)
        if (archive := copy.archive) is not None:
            copy.archive = None
            work.start(archive.close)  # what is on its way to the disk is waited for

    def _forget(self, copy: Copy) -> None:
        self._copies.pop(copy.session.name, None)

    async def _require(self, copy: Copy) -> None:
        """End a session whose container is gone: its client learns it when it connects again."""

        def is_waiting() -> bool:
            # What is being copied out has left the container already.
            is_safe = copy.session.spec.direction is Direction.FROM and copy.stream is not None
            is_moving = copy.session.phase is CopyPhase.TRANSFERRING
            return is_moving and not copy.is_working and not is_safe

        if not is_waiting():
            return
        try:
            await work.run(lambda: self._engine.check(copy.session.place))
        except Gone as exc:
            if is_waiting():
                await copy.disconnect()
            if is_waiting():
                await self._fail(copy, exc)
        except Exception as exc:
            log.debug("cannot see whether a container is still there: %s", exc)

    async def _sweep(self) -> None:
        """Remove sessions of which nothing was heard for too long, or whose container is gone."""
        while True:
            await asyncio.sleep(min(_SWEEP_S, self._lifetime_s / 4))
            now = self._clock()
            for copy in list(self._copies.values()):
                if now - copy.session.heard_s < self._lifetime_s:
                    await self._require(copy)
                    continue
                if copy.is_working and copy.session.phase is CopyPhase.COMMITTING:
                    continue
                await self._expire(copy, "nothing was heard of it for too long")

    async def _expire(self, copy: Copy, why: str) -> None:
        """End and forget a copy; one that is being worked at ends soon, and stays until then."""
        copy.is_unwanted = True
        await copy.disconnect()
        if copy.is_working:
            return
        if not copy.session.is_over:
            copy.session.fail(why, 410)
            self._end(copy, End.EXPIRED)
        self._forget(copy)


def _more_than_half(of_what: str, owner: Owner) -> Exhausted:
    message = (
        f"user {quote(owner.name)} has half {of_what} on this node, and others wait for a place;"
        " try again later"
    )
    return Exhausted(message, code="ResourceExhausted", details=message)


def _given_up() -> Refused:
    return Refused(409, "the copy was given up before it began")
