"""Makes a record of each finished PullImage call, and appends it to the history.

None of this delays a response: the bytes of a pull are looked up afterwards, and files are written
in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import reason_of
from pycrictl.base.servicelog import Log
from pycrictl.proxy.events import Emit, Event, PullEnded, PullRecorded
from pycrictl.proxy.pulls.layer_poller import LayerPoller
from pycrictl.proxy.pulls.pull_calls import ATTEMPT_GAP_S, PullCall
from pycrictl.proxy.runtime_lookup import CallFailed, RuntimeLookup
from pycrictl.proxy.telemetry import history
from pycrictl.proxy.telemetry.history import CallOutcome, PullRecord
from pycrictl.pulls.reference import canonical
from pycrictl.streams.loop import end_tasks, in_thread

STOP_S: Final = 4.0
"""How long the shutdown of the proxy waits for lookups and writes."""

MAX_WAITING: Final = 1000
"""How many records wait for the disk, or for another attempt; more are not kept."""


class PullRecorder:
    """A consumer of ``PullEnded``: emits ``PullRecorded``, and keeps the last attempt of each pull.

    Without a ``folder`` it keeps nothing. Its work is done in tasks, which the shutdown awaits.
    """

    def __init__(
        self, layers: LayerPoller, lookup: RuntimeLookup, emit: Emit, folder: str, log: Log
    ) -> None:
        self._layers = layers
        self._lookup = lookup
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
        record = PullRecord.of(event.call)
        # Of equal pulls, only the first has downloaded anything.
        if record.outcome is CallOutcome.PULLED and not record.is_joined:
            self._begin(self._complete(event.call, record))
        else:
            self._recorded(event.call, record)

    async def stop(self) -> None:
        self._stopping.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                while self._tasks:  # what is looked up is then written
                    await asyncio.wait(self._tasks)
        await end_tasks(self._tasks)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _complete(self, call: PullCall, record: PullRecord) -> None:
        try:
            record = replace(record, **await self._sizes(call, record.image))
        finally:
            self._recorded(call, record)

    def _recorded(self, call: PullCall, record: PullRecord) -> None:
        self._emit(PullRecorded(call, record))
        if self._folder and len(self._tasks) < MAX_WAITING:
            self._begin(self._keep(call, record))

    async def _sizes(self, call: PullCall, image: str) -> dict[str, Any]:
        elapsed_s = asyncio.get_running_loop().time() - (call.started or call.ended)
        pull = await self._layers.ended(canonical(image), time.time() - elapsed_s)
        if pull is not None:
            size_bytes = sum(layer.total for layer in pull.layers)
            return {
                "digest": pull.digest,
                "got_bytes": pull.got_bytes,
                "reused_bytes": size_bytes - pull.got_bytes,
                "extracted_bytes": pull.extracted_bytes,
                "size_bytes": size_bytes,
            }
        with contextlib.suppress(CallFailed):
            request = cri_pb2.ImageStatusRequest(image=cri_pb2.ImageSpec(image=image))
            answer = await self._lookup.call("ImageStatus", request)
            return {"size_bytes": answer.image.size or None}
        return {}

    async def _keep(self, call: PullCall, record: PullRecord) -> None:
        if not record.outcome.is_good:  # another attempt may follow
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ATTEMPT_GAP_S):
                    await self._stopping.wait()
        if call.is_continued:
            return
        problem = ""
        async with self._disk:
            try:
                await in_thread(partial(history.append, Path(self._folder), record))
            except OSError as exc:
                problem = reason_of(exc)
        if problem and not self._has_complained:
            self._log.warning("no_history", folder=self._folder, error=problem)
        self._has_complained = bool(problem)
