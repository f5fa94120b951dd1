"""The history of pulls, in files that survive restarts and crashes of the proxy.

Each finished PullImage call is one line of JSON, appended by one write. A line that a crash cut
short is skipped. A full file becomes the older one of two, so at least ``KEPT`` pulls are kept.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pycrictl.base.errors import reason_of
from pycrictl.base.foreign import mapping, parse
from pycrictl.base.servicelog import Log
from pycrictl.base.units import format_moment
from pycrictl.proxy.events import Emit, Event, PullEnded, PullRecorded
from pycrictl.proxy.pulls.pull_calls import ATTEMPT_GAP_S, CallOutcome, PullCall
from pycrictl.streams.loop import end_tasks, in_thread

if TYPE_CHECKING:
    from pycrictl.proxy.pulls.layer_poller import LayerPoller
    from pycrictl.pulls.state import PullState

STATE_FOLDER: Final = "/var/lib/pycrictl"
KEPT: Final = 10_000

NAME: Final = "pulls.jsonl"
_OLDER: Final = "pulls.1.jsonl"
FILE_BYTES: Final = KEPT * 1024
"""The size at which a file is full: a record takes 300 to 500 bytes, and rarely more than 1 KiB."""

STOP_S: Final = 4.0
"""How long the shutdown of the proxy waits for lookups and writes."""

MAX_WAITING: Final = 1000
"""How many records wait for the disk, or for another attempt; more are not kept."""

_KEYS: Final = frozenset(
    "ended image pod outcome cause waitedSeconds pulledSeconds gotBytes reusedBytes attempts joined"
    " bytesPerSecond".split()
)
"""What a line must have to be shown."""


class PullHistory:
    """A consumer of ``PullEnded``: emits ``PullRecorded``, and keeps the last attempt of each pull.

    Without a ``folder`` it keeps nothing. None of this delays a response: the layers of a pull are
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
        document = document_of(call, layers, ended_s=time.time())
        if not self._folder:
            return
        if call.outcome not in (CallOutcome.PULLED, CallOutcome.PRESENT):
            with suppress(TimeoutError):  # another attempt may follow
                async with asyncio.timeout(ATTEMPT_GAP_S):
                    await self._stopping.wait()
            if call.is_continued:
                return
        problem = ""
        async with self._disk:
            try:
                await in_thread(partial(append, Path(self._folder), document))
            except OSError as exc:
                problem = reason_of(exc)
        if problem and not self._has_complained:
            self._log.warning("no_history", folder=self._folder, error=problem)
        self._has_complained = bool(problem)


def document_of(call: PullCall, layers: PullState | None, *, ended_s: float) -> dict[str, Any]:
    """Return the record of a call: times in RFC 3339, null if unknown, without secrets.

    ``cause`` is the last error, maybe of an earlier attempt. ``digest`` is what the tag named, or
    else the image's ID. ``gotBytes`` are compressed, ``extractedBytes`` on disk.
    """
    got = None if layers is None else layers.got_bytes
    return {
        "ended": format_moment(ended_s, "milliseconds"),
        "image": call.reference[:512],
        "digest": (layers.digest if layers else call.image_id) or None,
        "pod": None if call.pod is None else str(call.pod)[:512],
        "outcome": call.outcome.value,
        "code": call.code or None,
        "cause": (call.reason or call.cause)[:300] or None,
        "waitedSeconds": call.waited_s,
        "pulledSeconds": call.pulled_s,
        "gotBytes": got,
        "reusedBytes": None if layers is None else layers.reused_bytes,
        "extractedBytes": None if layers is None else layers.extracted_bytes,
        "attempts": call.attempt,
        "joined": call.is_joined,
        "bytesPerSecond": round(got / call.pulled_s) if got and call.pulled_s else None,
    }


def append(folder: Path, document: dict[str, Any], *, file_bytes: int = FILE_BYTES) -> None:
    """Append a record to the history in a folder, which is created if need be."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / NAME
    with suppress(FileNotFoundError):
        if path.lstat().st_size >= file_bytes:
            path.rename(folder / _OLDER)
    # A line begins with its separator, so that one that was cut short costs nothing else.
    line = b"\n" + json.dumps(document, separators=(",", ":")).encode()
    with open(path, "ab", opener=_open) as file:
        file.write(line)


def newest(folder: Path, *, kept: int = KEPT) -> list[dict[str, Any]]:
    """Return the documents of the last records, the oldest first; none if there is no history."""
    return list(deque(_read(folder), maxlen=kept))


def _read(folder: Path) -> Iterator[dict[str, Any]]:
    for name in (_OLDER, NAME):
        with suppress(FileNotFoundError), open(folder / name, "rb", opener=_open) as file:
            for line in file.read(2 * FILE_BYTES).splitlines():
                with suppress(ValueError):
                    if _KEYS <= (document := mapping(parse(line))).keys():
                        yield document


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
