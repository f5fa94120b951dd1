"""Makes a record of each finished PullImage call, and passes it to all consumers.

None of this delays a response: the bytes of a pull are looked up afterwards, and files are written
in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pycrictl._proto import cri_pb2
from pycrictl.progress.reference import canonical
from pycrictl.proxy.figures import history
from pycrictl.proxy.figures.history import CallOutcome, PullRecord
from pycrictl.proxy.pulls.book import ATTEMPT_GAP_S, PullCall
from pycrictl.proxy.pulls.layer_poller import LayerPoller
from pycrictl.proxy.runtime_lookup import CallFailed, RuntimeLookup
from pycrictl.servicelog import Log, Seldom
from pycrictl.streaming.loop import end_tasks

STOP_S: Final = 2.0
"""How long the shutdown of the proxy waits for lookups and for writes, each."""

MAX_WAITING: Final = 1000
"""How many records are queued while the disk hangs; more are dropped."""


@dataclass(eq=False)
class PullRecorder:
    """Takes finished calls; the functions in ``on_record`` are called with each complete record."""

    layers: LayerPoller
    lookup: RuntimeLookup
    log: Log
    history_folder: str
    on_record: list[Callable[[PullRecord], object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Limited, since clients can make any number of calls, of which only real pulls take time.
        write = self.log.info
        self._log_some = {one: Seldom(write, "pull", outcome=one.value) for one in CallOutcome}
        folder = self.history_folder
        self._history = HistoryWriter(folder, log=self.log) if folder else None
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: dict[asyncio.TimerHandle, PullRecord] = {}

    def take(self, call: PullCall) -> None:
        record = PullRecord.of(call, wall_s=time.time())
        # Of equal pulls, only the first has downloaded anything.
        if record.outcome is CallOutcome.PULLED and not record.is_joined:
            task = self._loop.create_task(self._complete(record, call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._hand_out(record, call)

    async def stop(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_S)
        await end_tasks(self._tasks)
        for timer, record in self._held.items():
            timer.cancel()
            self._keep(record)
        self._held.clear()
        if self._history is not None:
            await asyncio.to_thread(self._history.stop)

    async def _complete(self, record: PullRecord, call: PullCall) -> None:
        found: dict[str, Any] = {}
        try:
            found = await self._find_out(record.image, call)
        finally:
            self._hand_out(replace(record, **found), call)

    async def _find_out(self, image: str, call: PullCall) -> dict[str, Any]:
        elapsed_s = self._loop.time() - (call.started or call.ended)
        pull = await self.layers.ended(canonical(image), time.time() - elapsed_s)
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
            answer = await self.lookup.call("ImageStatus", request)
            return {"size_bytes": answer.image.size or None}
        return {}

    def _hand_out(self, record: PullRecord, call: PullCall) -> None:
        fields: dict[str, object] = {
            "image": record.image,
            "pod": record.pod or "-",
            "outcome": record.code or record.outcome.value,
            "error": call.reason,
            "waited_s": record.waited_s,
            "pulled_s": record.pulled_s,
            "bytes": "" if record.got_bytes is None else record.got_bytes,
            "reused": "" if record.reused_bytes is None else record.reused_bytes,
            "attempt": record.attempts if record.attempts > 1 else "",
            "trace": call.trace,
        }
        for take in self.on_record:
            take(record)
        if record.outcome is CallOutcome.PULLED and not record.is_joined:
            self.log.info("pull", **fields)
        elif not self._log_some[record.outcome](**fields):
            self.log.unwritten("pull", **fields)
            if record.outcome is CallOutcome.GONE:
                return
        if record.outcome.is_good:
            self._keep(record)
            return

        def keep_last() -> None:
            del self._held[timer]
            if not call.is_continued:
                self._keep(record)

        timer = self._loop.call_later(ATTEMPT_GAP_S, keep_last)
        self._held[timer] = record

    def _keep(self, record: PullRecord) -> None:
        if self._history is not None:
            self._history.add(record)


class HistoryWriter:
    """Appends records to the history in a thread of its own, so that no disk delays a call."""

    def __init__(self, folder: str, *, log: Log) -> None:
        self._folder = Path(folder)
        self._log = log
        self._records: queue.Queue[PullRecord | None] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._has_complained = False

    def add(self, record: PullRecord) -> None:
        if self._thread is None:
            # Not from a pool: the thread must not keep the process alive if a disk hangs.
            self._thread = threading.Thread(target=self._run, name="history", daemon=True)
            self._thread.start()
        with contextlib.suppress(queue.Full):
            self._records.put_nowait(record)

    def stop(self) -> None:
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._records.put(None, timeout=STOP_S)
            self._thread.join(STOP_S)

    def _run(self) -> None:
        while (record := self._records.get()) is not None:
            try:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                history.append(self._folder, record)
            except OSError as exc:
                if not self._has_complained:
                    reason = (exc.strerror or str(exc)).lower()
                    self._log.warning("no_history", folder=str(self._folder), error=reason)
                self._has_complained = True
            else:
                self._has_complained = False
