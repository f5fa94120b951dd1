"""Begins, attaches, commits, abandons and expires the copies of a node.

Copies are managed in the event loop; each has a thread of its own for work on files and the
runtime, and one more while an archive is sent. Their states are those of ``life``. Files are
accessed through the root of the container's first process; none of its programs is run. Two
servers have such a service: the proxy behind the runtime's calls, the agent behind its API. Who may
ask, and what requests and answers look like, is up to the server. A copy ends with its server.
"""

from __future__ import annotations

import asyncio  # noqa: TID253 (only servers load this module)
import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from pycrictl.base.environ import raise_file_limit
from pycrictl.base.errors import (
    AlreadyExists,
    Cancelled,
    CopyError,
    Exhausted,
    NoSpace,
    PycrictlError,
)
from pycrictl.base.servicelog import Log
from pycrictl.copy import on_node
from pycrictl.copy.rules.outcome import MAX_SKIPPED, Summary, encode_failure, encode_success
from pycrictl.copy.rules.policy import Rules, Skipped
from pycrictl.copy.service.life import Event, State, after
from pycrictl.copy.service.slots import Slot, Slots
from pycrictl.copy.service.transfer import Download, Upload
from pycrictl.copy.transfer.messages import Link, ignore
from pycrictl.copy.tree.walk import Watch
from pycrictl.streams.loop import in_thread

if TYPE_CHECKING:
    from pycrictl.runtime.cri.calls.client import CriClient

log = Log("pycrictl.copy")

MAX_KEPT: Final = 1000
"""The most copies that are remembered; beyond that, the oldest finished one is forgotten."""

STOP_S: Final = 5.0
"""How long threads may take to end."""


class GivenUp(Cancelled):
    """A copy was given up; ``event`` is the cause, and the message describes it."""

    def __init__(self, event: Event, message: str) -> None:
        super().__init__(message, code="Canceled")
        self.event = event


@dataclass(eq=False)
class Copy:
    """A copy from its request to its end. Its service alone sets ``state`` and ``slot``."""

    container_id: str  # Distinguishes the container from its replacement
    path: bytes  # In the container, absolute
    transfer: Upload | Download  # Its archive and connections
    sandbox_id: str = ""  # The pod sandbox whose quota it counts for
    user: object = None  # The user whose share of the slots it takes; None if unknown
    rules: Rules = field(default_factory=Rules)
    name: str = field(default_factory=lambda: os.urandom(16).hex())  # Unique on the node
    state: State = field(init=False)
    slot: Slot = field(init=False)
    error: PycrictlError | None = None  # Why it ended; None before, and if everything is in place
    summary: Summary = field(default_factory=Summary)  # What it did
    expected_bytes: int = 0  # The size of its archive as far as it is known in advance
    offset: int = 0  # How much of the archive has been delivered
    skipped: list[Skipped] = field(default_factory=list)  # The first entries that are left out
    skipped_count: int = 0  # How many are left out in all
    note: str = ""  # What else the user should know
    began_s: float = 0.0
    heard_s: float = math.inf  # When its client was last active; infinite while a request waits
    begun: asyncio.Event = field(default_factory=asyncio.Event)  # Its request can be answered
    over: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None  # Follows it until all that it holds is released
    making: asyncio.Task[None] | None = None  # The thread that reads or writes the files
    sending: asyncio.Task[None] | None = None  # The thread that sends the archive

    def __post_init__(self) -> None:
        self.state = State.WAITING if self.is_to else State.MEASURING

    @property
    def size_bytes(self) -> int:
        """The size of its archive as announced, or as made so far."""
        return self.transfer.size_bytes

    @property
    def is_to(self) -> bool:
        """Whether it goes into the container."""
        return isinstance(self.transfer, Upload)

    def skip(self, skipped: Skipped) -> None:
        self.skipped_count += 1
        if len(self.skipped) < MAX_SKIPPED:
            self.skipped.append(skipped)

    def watch(self) -> Watch:
        """Return callbacks for its thread."""

        def add_note(note: str) -> None:
            self.note = note

        def expect(size_bytes: int) -> None:
            self.expected_bytes = size_bytes

        # A prior walk through the tree helps only clients that follow the archive's growth.
        on_archive = expect if self.transfer.protocol.resumes else None
        return Watch(ignore, self.skip, note=add_note, on_archive=on_archive)

    def success(self) -> bytes:
        """Return the outcome of a successful copy (a ``Status``)."""
        self.summary.skipped = self.skipped_count
        return encode_success(self.summary, self.skipped, self.note)

    async def settled(self, limit_s: float | None = None) -> None:
        """Wait until its threads have ended, or for a time limit in seconds."""
        if threads := [thread for thread in (self.making, self.sending) if thread is not None]:
            await asyncio.wait(threads, timeout=limit_s)


C = TypeVar("C", bound=Copy)


@dataclass(eq=False)
class Copies(Generic[C]):
    """The copies of a node. ``clock`` is the loop's, monotonic, in seconds."""

    slots: Slots
    connect: Callable[[], AbstractContextManager[CriClient]]  # To the runtime; used in threads
    folder: str  # Where archives of copies out of containers are spooled
    on_end: Callable[[C], object]  # Called with each copy that had begun and is over
    encode: Callable[[PycrictlError], bytes] = encode_failure  # The status for a client
    _: KW_ONLY
    lifetime_s: float  # How long a copy is kept without any activity of its client
    keeps_ended: bool = False  # Whether ended ones stay, so that clients can learn their outcome
    sweep_s: float = 5.0  # How often expired copies are looked for, if lifetime_s is long
    current: dict[str, C] = field(init=False, default_factory=dict)  # Not yet forgotten, by name

    def __post_init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.clock: Callable[[], float] = self.loop.time
        self._tasks: list[asyncio.Task[None]] = []

    # What happens to copies

    def start(self) -> None:
        """Remove what copies of killed programs have left in containers; expire silent copies."""
        raise_file_limit()  # a copy needs a descriptor for each level of a deep tree
        self._tasks = [asyncio.create_task(work()) for work in (self._clean_up, self._sweep)]

    @property
    def running(self) -> list[C]:
        """The copies that are not over, the oldest first."""
        return [copy for copy in self.current.values() if not copy.state.is_over]

    async def begin(self, copy: C, limit_s: float | None = None) -> None:
        """Reserve a slot for a copy, and start its thread.

        Return when the request can be answered, or after a time limit: for a copy out of a
        container, when its archive is complete or, with a resumable protocol, has begun.

        Raises:
            PycrictlError: the copy is refused, or has failed by then.
        """
        if copy.name in self.current:
            raise AlreadyExists("a copy of that name already exists", code="AlreadyExists")
        copy.slot = self.slots.acquire(copy.sandbox_id, copy.size_bytes, copy.user)
        if len(self.current) >= MAX_KEPT:  # there are fewer slots than that
            self._forget(next(old for old in self.current.values() if old.state.is_over))
        self.current[copy.name] = copy
        copy.began_s = self.clock()
        transfer = copy.transfer
        transfer.admit = partial(self._admit, copy)
        transfer.on_progress = partial(self._progressed, copy)
        if isinstance(transfer, Upload):
            transfer.on_arrived = partial(self._report, copy, Event.ARRIVED)
            copy.begun.set()
        copy.making = asyncio.create_task(in_thread(partial(self._run, copy)))
        copy.task = asyncio.create_task(self._follow(copy))
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(copy.begun.wait(), limit_s)
        except asyncio.CancelledError:
            await self.give_up(copy, Event.ABANDONED, "its request was cancelled")
            raise
        copy.heard_s = self.clock()
        if copy.error is not None:
            self._forget(copy)
            raise copy.error

    def check_open(self, copy: C) -> None:
        """Raise the error of a copy that has failed, or an error if it accepts no more bytes."""
        if copy.error is not None:
            raise copy.error
        if copy.state not in (State.MEASURING, State.WAITING, State.COPYING):
            raise CopyError(f"the copy is {copy.state}: it accepts no more bytes")

    async def attach(self, copy: C, link: Link, offset: int = 0) -> None:
        """Continue a copy over a new connection, and close the previous one."""
        self._happened(copy, Event.ATTACHED)
        copy.heard_s = self.clock()
        before = copy.sending
        copy.transfer.attach(link)
        if isinstance(copy.transfer, Download) and not copy.state.is_over:
            if before is not None:
                await asyncio.wait([before])
            deliver = partial(self._deliver, copy, copy.transfer, link, offset)
            copy.sending = asyncio.create_task(in_thread(deliver))

    async def commit(self, copy: C, limit_s: float) -> None:
        """Move an archive that has arrived into place, or end a copy that its client has received.

        If that takes longer than the limit, a second call waits again.

        Raises:
            CopyError: the archive is not complete yet.
        """
        if copy.state.is_over:
            return
        if copy.state is State.MEASURING:
            raise CopyError("the archive is still being made")
        if isinstance(copy.transfer, Upload):
            if copy.state is not State.COMMITTING and copy.offset != copy.size_bytes:
                raise CopyError(f"only {copy.offset} of {copy.size_bytes} bytes have arrived")
            self._happened(copy, Event.ARRIVED)
            copy.transfer.allow()
            with suppress(TimeoutError):
                await asyncio.wait_for(copy.over.wait(), limit_s)
        else:
            copy.offset = copy.size_bytes
            self._happened(copy, Event.SUCCEEDED)
            await self.give_up(copy, Event.ABANDONED, "it is over")

    async def give_up(
        self, copy: C, event: Event, message: str, *, limit_s: float = STOP_S
    ) -> None:
        """End the threads of a copy, then the copy if it is not over by then, and forget it.

        Nothing of it is left, unless it was already in place or a thread hangs.
        """
        self._happened(copy, event)
        why = GivenUp(event, message)
        if copy.state is not State.COMMITTING:
            copy.transfer.cancel(why)
        await copy.settled(limit_s)
        self._happened(copy, Event.FAILED, why)
        if copy.task is not None:
            await asyncio.wait([copy.task], timeout=STOP_S)
        self._forget(copy)

    async def stop(self) -> None:
        """End all copies, except those that are being moved into place and finish soon."""
        for task in self._tasks:
            task.cancel()
        give_up = partial(self.give_up, event=Event.STOPPED, message="the server was stopped")
        await asyncio.gather(*(give_up(copy) for copy in list(self.current.values())))

    def _happened(self, copy: C, event: Event, error: PycrictlError | None = None) -> None:
        was_over, copy.state = copy.state.is_over, after(copy.state, event)
        if event is Event.MADE:
            copy.begun.set()
        if copy.state.is_over and not was_over:
            copy.error = None if copy.state is State.DONE else error
            copy.begun.set()
            copy.over.set()
            self.on_end(copy)

    async def _follow(self, copy: C) -> None:
        """Follow a copy until its threads have ended and all that it holds is released."""
        await copy.settled()
        await copy.over.wait()
        await copy.settled()
        self.slots.release(copy.slot)
        await in_thread(copy.transfer.close)  # this waits for writes to the disk
        if not self.keeps_ended:
            self._forget(copy)

    def _forget(self, copy: C) -> None:
        if self.current.get(copy.name) is copy:
            del self.current[copy.name]

    async def _clean_up(self) -> None:
        with suppress(PycrictlError, OSError):  # left to the next program
            await in_thread(partial(on_node.sweep, self.locate))

    async def _sweep(self) -> None:
        """Expire copies whose client was silent for too long."""
        while True:
            await asyncio.sleep(min(self.sweep_s, self.lifetime_s / 4))
            now = self.clock()
            for copy in list(self.current.values()):
                is_old = now - copy.heard_s >= self.lifetime_s
                if is_old and copy.state is not State.COMMITTING:
                    why = "its client made no request for too long"
                    await self.give_up(copy, Event.EXPIRED, why)

    # In threads

    def locate(self, container_id: str) -> on_node.FirstProcess:
        """Return the first process of a container; raises as ``on_node.locate_here``."""
        with self.connect() as client:
            return on_node.locate_here(client, container_id)

    def work(self, copy: C, watch: Watch) -> Summary:
        """Read or write the container's files, through ``copy.transfer``."""
        method = on_node.OnNode(partial(self.locate, copy.container_id))
        if isinstance(copy.transfer, Upload):
            return method.write(copy.transfer, copy.path, copy.rules, watch)
        return copy.transfer.make(method, copy.path, copy.rules, watch)

    def _run(self, copy: C) -> None:
        transfer, status = copy.transfer, b""
        try:
            copy.summary = self.work(copy, copy.watch())
            if isinstance(transfer, Download):
                transfer.finish()
                self._report(copy, Event.MADE)
            else:
                status = self._report(copy, Event.SUCCEEDED)
        except Exception as exc:
            status = self._report(copy, Event.FAILED, exc)
            if isinstance(transfer, Download):
                transfer.finish(status)
        if isinstance(transfer, Upload):
            transfer.conclude(status)

    def _deliver(self, copy: C, transfer: Download, link: Link, offset: int) -> None:
        event, problem = Event.SUCCEEDED, None
        try:
            transfer.deliver(link, offset)
        except Exception as exc:
            event, problem = Event.FAILED, exc
        if transfer.protocol.resumes:  # the client has everything, has reconnected or given up
            transfer.lose(link)
        else:
            transfer.conclude(self._report(copy, event, problem))

    def _report(self, copy: C, event: Event, exc: Exception | None = None) -> bytes:
        """Report an event to the loop; return the status for the client.

        A slot is freed before the last message to the client, which may then begin another copy.
        """
        error = None if exc is None else _reported(copy, exc)

        def happened() -> None:
            self._happened(copy, event, error)
            if copy.state.is_over:
                self.slots.release(copy.slot)

        with suppress(RuntimeError):  # the loop is closed: the program ends
            self.loop.call_soon_threadsafe(happened)
        if error is not None:
            return self.encode(error)
        return b"" if copy.transfer.protocol.resumes else copy.success()

    def _admit(self, copy: C, size_bytes: int) -> None:
        self.slots.hold(copy.slot, size_bytes)
        if copy.transfer.protocol.resumes and not copy.begun.is_set():
            self.loop.call_soon_threadsafe(copy.begun.set)

    def _progressed(self, copy: C, offset: int) -> None:
        copy.heard_s, copy.offset = self.clock(), offset


def _reported(copy: Copy, exc: Exception) -> PycrictlError:
    """Return the error that a client is told; even a bug ends only one copy."""
    if not isinstance(exc, PycrictlError):
        log.failure("copy_failed", exc)
        return PycrictlError(f"internal error of the proxy or agent: {type(exc).__name__}: {exc}")
    if copy.transfer.protocol.resumes and isinstance(exc, Exhausted | NoSpace):
        return CopyError(exc.message, hint=exc.hint)  # its client would resume it in vain
    return exc
