"""Events ``PullProgress`` about the pulls of this node, an option: the proxy can write them, too.

The pods of the node are watched for it all the time, its runtime only while one of them waits for
an image.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from pycrictl.agent.api.names import Document
from pycrictl.agent.api.table import progress
from pycrictl.agent.objects import PullPhase, is_waiting, objects_of
from pycrictl.errors import PycrictlError
from pycrictl.kube.events import (
    MAX_MESSAGE,
    PACE_S,
    QUIET_S,
    EventWriter,
    News,
    event_name,
    is_valid,
)
from pycrictl.servicelog import Log
from pycrictl.streaming.loop import end_tasks, in_thread
from pycrictl.units import format_duration, ordinal

if TYPE_CHECKING:
    from pycrictl.agent.node import NodePulls
    from pycrictl.kube.apiclient import ApiClient

MAX_ENTRIES: Final = 1000
IDLE_S: Final = 60.0
LOOK_S: Final = 1.0

_TOLD: Final = frozenset({PullPhase.QUEUED, PullPhase.PULLING, PullPhase.EXTRACTING})
"""What an Event begins with. That a pull has failed or is put off, the kubelet's own say."""


class _Pod(NamedTuple):
    namespace: str
    name: str
    uid: str


@dataclass(slots=True)
class _Entry:
    document: Document
    seen_at: float
    told_phase: str = ""
    told_at: float = field(default=-math.inf)
    count: int = 0


class Bulletin:
    """What Events say, and when. Pure: ``now`` is in seconds and never goes back."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def look(self, objects: Iterable[Document], now: float) -> None:
        """Take in the objects of the node."""
        found = {one["metadata"]["uid"]: one for one in objects}
        for uid, document in found.items():
            entry = self._entries.get(uid)
            if entry is not None:
                entry.document = document
            elif document["status"]["phase"] in _TOLD and len(self._entries) < MAX_ENTRIES:
                self._entries[uid] = _Entry(document, now)
        for uid, entry in [*self._entries.items()]:
            is_over = entry.document["status"]["phase"] not in _TOLD
            if uid not in found or (is_over and not entry.count):
                del self._entries[uid]

    def next(self, now: float) -> News | None:
        """Return the Event that has been due for longest, which counts as written then."""
        due, uid = min(
            ((self._due(entry), uid) for uid, entry in self._entries.items()),
            default=(math.inf, ""),
        )
        if due > now:
            return None
        entry = self._entries[uid]
        spec, status = entry.document["spec"], entry.document["status"]
        pod = _Pod(entry.document["metadata"]["namespace"], spec["podName"], spec["podUID"])
        if status["phase"] not in _TOLD or not is_valid(pod):
            del self._entries[uid]
            if not is_valid(pod):
                return None
        entry.told_phase, entry.told_at = status["phase"], now
        entry.count += 1
        return News(
            name=event_name(pod, spec["image"]),
            pod=pod,
            message=_message(spec["image"], status, now - entry.seen_at)[:MAX_MESSAGE],
            is_warning=status["phase"] in (PullPhase.FAILED, PullPhase.BACK_OFF),
            writing=entry.count,
            since_s=now - entry.seen_at,
            is_new=entry.count == 1,
        )

    def _due(self, entry: _Entry) -> float:
        if not entry.count:
            return entry.seen_at + QUIET_S
        is_news = entry.document["status"]["phase"] != entry.told_phase
        return entry.told_at + (0.0 if is_news else PACE_S)


class Events:
    """Writes the Events of this node.

    Args:
        pulls: of the node.
        api: the API server.
    """

    def __init__(self, pulls: NodePulls, api: ApiClient) -> None:
        log = Log(__name__)
        self._pulls = pulls
        self._bulletin = Bulletin()
        self._writer = EventWriter(api, lambda exc: log.info("no_events", error=exc.message))
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._pulls.hold()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End at once; the last Events stay as they are."""
        if self._task is not None:
            await end_tasks([self._task])

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        was_busy = False
        while True:
            is_busy = any(map(is_waiting, self._pulls.pods()))
            if not is_busy and not was_busy:
                await self._pulls.changed(IDLE_S)
                continue
            was_busy = is_busy
            try:
                pulls, pods = await self._pulls.ask()
            except PycrictlError:
                await asyncio.sleep(IDLE_S)
                continue
            objects = objects_of(pods, pulls, self._pulls.node)
            self._bulletin.look(objects, loop.time())
            news = self._bulletin.next(loop.time())
            if news is None:
                await asyncio.sleep(LOOK_S)
            else:
                await asyncio.sleep(await in_thread(partial(self._writer.write, news)))


def _message(image: str, status: Document, took_s: float) -> str:
    phase = status["phase"]
    took = format_duration(round(took_s))
    if phase == PullPhase.QUEUED:
        place = status.get("queuePosition", 0)
        where = f"{ordinal(place)} in line" if place else "none is free"
        return f"Image {image} waits for a slot: {where}"
    if phase == PullPhase.SUCCEEDED:
        return f"Image {image} was pulled in {took}"
    if phase not in _TOLD:
        return f"Image {image} was not pulled: {status.get('error', 'it was given up')}"
    if not (done := progress(status)):
        return f"Pulling image {image} for {took}"
    if phase == PullPhase.EXTRACTING:
        return f"Pulling image {image}: everything is there and is unpacked"
    percent, eta_s = status.get("percent"), status.get("etaSeconds")
    share = f"{done}" if percent is None else f"{percent} % ({done})"
    eta = "" if eta_s is None else f", ETA {format_duration(eta_s)}"
    return f"Pulling image {image}: {share}{eta}"
