"""``PullProgress`` Events about pods: ``kubectl describe pod`` shows the progress of a pull.

Each pair of pod and image has one Event. It is updated when the phase changes, otherwise at most
every ``PACE_S``; all Events together take at most one call per second. After a failed call, none is
made for a while. Pulls never wait for calls.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from pycrictl.base.errors import AlreadyExists, NotFound, PycrictlError
from pycrictl.base.units import format_moment
from pycrictl.streams.loop import end_tasks, in_thread

if TYPE_CHECKING:
    from pycrictl.base.servicelog import Log
    from pycrictl.kube.apiclient import ApiClient

REASON: Final = "PullProgress"
COMPONENT: Final = "pycrictl"

QUIET_S: Final = 2.0
"""A pull that ends within this time gets no Event: the kubelet's own Events report it."""

PACE_S: Final = 10.0  # between two updates of an Event whose phase is the same
POLL_S: Final = 1.0  # between two looks at the pulls of waiting pods
CALL_PAUSE_S: Final = 1.0  # between two calls to the API server
IDLE_S: Final = 60.0
"""The pause before the next Events if no pod waits, or if the runtime does not answer."""

EVENT_TIMEOUT_S: Final = 5.0
FIRST_BACKOFF_S: Final = 10.0
LONGEST_BACKOFF_S: Final = 600.0
"""How long no calls are made after a failure, and after many in a row."""

MAX_ENTRIES: Final = 1000
MAX_MESSAGE: Final = 1024
"""The limit that the API server checks for events.k8s.io."""

_MAX_NAME: Final = 200
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class Subject(Protocol):
    @property
    def namespace(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def uid(self) -> str: ...


class PodPullState(NamedTuple):
    """The progress of a pull for a pod.

    Attributes:
        phase: empty while it is unknown whether a failed pull will be retried.
        message: returns the Event's message for the seconds since the start.
        since: start time on the loop's clock; None for the time at which it is first seen.
        is_over: it has ended; a last Event is written if there was one before.
    """

    pod: Subject
    image: str
    phase: str
    message: Callable[[float], str]
    since: float | None = None
    is_over: bool = False
    is_warning: bool = False


class Event(NamedTuple):
    """The content of an Event to write; ``writing`` counts its writes from 1."""

    name: str
    pod: Subject
    message: str
    is_warning: bool
    writing: int
    since_s: float


@dataclass(slots=True)
class _PullEvent:
    state: PodPullState
    since: float
    written_phase: str = ""
    written_at: float = field(default=-math.inf)
    count: int = 0

    @property
    def due(self) -> float:
        if not self.count:
            return self.since + QUIET_S
        has_changed = self.state.phase != self.written_phase
        return self.written_at + (0.0 if has_changed else PACE_S)


class EventSchedule:
    """Decides which Events are due. Pure; ``now`` is in seconds and monotonic."""

    def __init__(self) -> None:
        self._entries: dict[str, _PullEvent] = {}

    @property
    def is_empty(self) -> bool:
        return not self._entries

    def update(self, states: Iterable[PodPullState], now: float) -> None:
        by_name = {
            event_name(state.pod, state.image): state for state in states if is_valid(state.pod)
        }
        for name, state in by_name.items():
            entry = self._entries.get(name)
            if entry is not None:
                entry.state = state if state.phase else entry.state
            elif state.phase and not state.is_over and len(self._entries) < MAX_ENTRIES:
                since = now if state.since is None else state.since
                self._entries[name] = _PullEvent(state, since)
        for name, entry in list(self._entries.items()):
            if not entry.count if entry.state.is_over else name not in by_name:
                del self._entries[name]

    def next(self, now: float) -> Event | None:
        """Return the Event that has been due for longest, if any, and mark it as written."""
        due = [(entry.due, name) for name, entry in self._entries.items()]
        at, name = min(due, default=(math.inf, ""))
        if at > now:
            return None
        entry = self._entries[name]
        state = entry.state
        entry.written_phase, entry.written_at = state.phase, now
        entry.count += 1
        if state.is_over:
            del self._entries[name]
        since_s = now - entry.since
        message = state.message(since_s)[:MAX_MESSAGE]
        return Event(name, state.pod, message, state.is_warning, entry.count, since_s)


class EventRecorder:
    """Writes the Events of a node.

    Args:
        states: returns the progress of the pulls of the node; empty if there are none. Its
            argument says whether there are Events still to be written or updated.
        idle: waits until there may be pulls, or for a limited time.
    """

    def __init__(
        self,
        api: ApiClient,
        states: Callable[[bool], Awaitable[Iterable[PodPullState]]],
        idle: Callable[[], Awaitable[None]],
        log: Log,
    ) -> None:
        self._api = api
        self._states = states
        self._idle = idle
        self._log = log
        self._schedule = EventSchedule()
        self._backoff_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop at once; existing Events stay as they are."""
        if self._task is not None:
            await end_tasks([self._task])

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            states = await self._states(not self._schedule.is_empty)
            self._schedule.update(states, loop.time())
            event = self._schedule.next(loop.time())
            if event is not None:
                await in_thread(partial(self._write, event))
                await asyncio.sleep(self._backoff_s or CALL_PAUSE_S)
            elif self._schedule.is_empty:
                await self._idle()
            else:
                await asyncio.sleep(POLL_S)

    def _write(self, event: Event) -> None:
        try:
            self._call(event)
        except PycrictlError as exc:
            if not self._backoff_s:
                self._log.info("no_events", error=exc.message)
            self._backoff_s = min(max(2 * self._backoff_s, FIRST_BACKOFF_S), LONGEST_BACKOFF_S)
        else:
            self._backoff_s = 0.0

    def _call(self, event: Event) -> None:
        api, changes = self._api, _changes(event)
        path = f"/api/v1/namespaces/{event.pod.namespace}/events"
        create = partial(api.post, path, {**_identity(event, api.node), **changes})
        change = partial(api.patch, f"{path}/{event.name}", changes)
        try:
            (create if event.writing == 1 else change)()
        except (AlreadyExists, NotFound) as exc:
            # An earlier pull or process made it, or it has expired: Events are kept for an hour.
            time.sleep(CALL_PAUSE_S)
            (change if isinstance(exc, AlreadyExists) else create)()


def is_valid(pod: Subject) -> bool:
    """Return whether a pod's namespace and name are valid, as they become part of a path."""
    return all(_NAME.fullmatch(name) for name in (pod.namespace, pod.name))


def event_name(pod: Subject, image: str) -> str:
    """Return the name of an Event, which stays the same after a hand-over or a restart."""
    digest = hashlib.sha256(f"{pod.uid} {image}".encode()).hexdigest()[:16]
    return f"{pod.name[:_MAX_NAME].rstrip('-.')}.pull-{digest}"


def _changes(event: Event) -> dict[str, Any]:
    now = time.time()
    return {
        "message": event.message,
        "type": "Warning" if event.is_warning else "Normal",
        "count": event.writing,
        "firstTimestamp": format_moment(now - event.since_s),
        "lastTimestamp": format_moment(now),
    }


def _identity(event: Event, node: str) -> dict[str, Any]:
    pod = event.pod
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": event.name, "namespace": pod.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
        },
        "reason": REASON,
        "source": {"component": COMPONENT, "host": node},
        "reportingComponent": COMPONENT,
        "reportingInstance": node,
    }
