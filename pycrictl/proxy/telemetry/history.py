"""The history of pulls: emits and stores a record of each pull once it is over."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pycrictl.base.errors import reason_of
from pycrictl.base.servicelog import Log
from pycrictl.proxy.events import Emit, Event, PullEnded, PullRecorded
from pycrictl.proxy.pulls.pull_calls import ATTEMPT_GAP_S, CallOutcome, PullCall
from pycrictl.proxy.telemetry.history_file import append, record_of
from pycrictl.streams.loop import end_tasks, in_thread

if TYPE_CHECKING:
    from pycrictl.proxy.pulls.layer_poller import LayerPoller

STOP_S: Final = 4.0
"""How long the shutdown of the proxy waits for lookups and writes."""

MAX_WAITING: Final = 1000
"""How many records may wait for the disk or for another attempt; further ones are not stored."""


class PullHistory:
    """A consumer of ``PullEnded``: emits ``PullRecorded``, and keeps the last attempt of each pull.

    Without a ``folder`` it stores nothing. None of this delays a response: the layers of a pull are
    looked up afterwards, files are written in a thread, and the shutdown awaits both.
    """

    def __init__(self, layers: LayerPoller, emit: Emit, folder: str, log: Log) -> None:
        self._layers = layers
        self._emit = emit
        self._folder = folder
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()
        self._disk = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._has_complained = False

    def __call__(self, event: Event) -> None:
        if not isinstance(event, PullEnded) or event.call.is_elsewhere:
            return
        if len(self._tasks) >= MAX_WAITING:
            self._emit(PullRecorded(event.call))
            return
        task = asyncio.get_running_loop().create_task(self._record(event.call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        self._stopping.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_S)
        await end_tasks(self._tasks)

    async def _record(self, call: PullCall) -> None:
        layers = None
        # Of equal pulls, only the first has downloaded anything.
        if call.outcome is CallOutcome.PULLED and not call.is_joined:
            elapsed_s = asyncio.get_running_loop().time() - (call.started or call.ended)
            layers = await self._layers.ended(call.image, time.time() - elapsed_s)
        self._emit(PullRecorded(call, layers))
        if not self._folder:
            return
        record = record_of(call, layers, ended_s=time.time())
        if call.outcome not in (CallOutcome.PULLED, CallOutcome.PRESENT):
            with suppress(TimeoutError):  # another attempt may follow
                async with asyncio.timeout(ATTEMPT_GAP_S):
                    await self._stopping.wait()
            if call.is_continued:
                return
        problem = ""
        async with self._disk:
            try:
                await in_thread(partial(append, Path(self._folder), record))
            except OSError as exc:
                problem = reason_of(exc)
        if problem and not self._has_complained:
            self._log.warning("no_history", folder=self._folder, error=problem)
        self._has_complained = bool(problem)
