"""The pulls of this node: one source shared by all requests, stopped when there are none.

The source is that of ``image-pull-progress``: the node's proxy, else containerd's own API, else the
files of CRI-O (``node_watch``). It blocks on sockets and files, so it runs in a thread, which ends
after a while without requests. The pods are watched for the same time, or always for Events.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pycrictl.base.errors import PycrictlError
from pycrictl.base.servicelog import Log
from pycrictl.cluster.agent.asyncapi import AsyncApiClient, Reflector, path_of_pods
from pycrictl.cluster.agent.objects import (
    OF_LAYERS,
    Need,
    PullPhase,
    error_of,
    is_waiting,
    phase_of,
    pulls_by_need,
)
from pycrictl.kube.apiclient import ApiClient
from pycrictl.kube.credential import Credential
from pycrictl.kube.events import EVENT_TIMEOUT_S, IDLE_S, EventRecorder, PodPullState
from pycrictl.kube.events import POLL_S as EVENTS_POLL_S
from pycrictl.kube.pods import Pod, parse_pod
from pycrictl.pulls.sources.endings import Pace
from pycrictl.pulls.sources.node_watch import NodeWatch
from pycrictl.pulls.state import Phase, PullState, Sums
from pycrictl.pulls.words import event_text
from pycrictl.streams.loop import Changes

if TYPE_CHECKING:
    from pycrictl.pulls.state import View
    from pycrictl.runtime.cri.calls.client import CriClient

POLL_S: Final = 1.0
"""The time between two polls of the runtime, which take most of the agent's CPU time. Watches have
no more than one round a second."""

ENDED_S: Final = 30.0
"""How long a node reports a pull that has ended."""

MAX_ENDED: Final = 500

_BEGINNINGS: Final = (PullPhase.QUEUED, PullPhase.PULLING, PullPhase.EXTRACTING)
"""The phases that start an Event; failures and back-offs are in the kubelet's own Events."""

RETRY_S: Final = 2.0

_NOT_LOOKED: Final = "the node's pulls are not known yet"

Connect = Callable[[], "AbstractContextManager[tuple[CriClient, CriClient | None]]"]
"""Connects to the runtime, and to the proxy in front of it if there is one."""


class _Unasked(PycrictlError):
    pass


class _Source:
    """One run of the source in its thread, and its latest result (a ``Sink``).

    Only the loop sets ``pulls`` and ``has_looked``, which the thread reports to it.
    """

    def __init__(self, owner: NodePulls) -> None:
        self._owner = owner
        self._seen: list[PullState] = []
        self.pulls: list[PullState] = []
        self.has_looked = False
        self.noted = ""
        self.alive_at = time.monotonic()

    def run(self, connect: Connect) -> None:
        error = PycrictlError("the source has ended")
        try:
            with connect() as (client, proxy):
                pace = Pace(POLL_S, follow=True)
                NodeWatch(client=client, sink=self, pace=pace, proxy=proxy, pods=self._owner).run()
        except _Unasked:
            return
        except PycrictlError as exc:
            error = exc
        except Exception as exc:  # an error in a thread must not go unnoticed
            error = PycrictlError(f"the source failed: {exc!r}")
        self._owner.tell(self._owner.source_ended, self, error)

    def show(self, view: View) -> None:
        owner = self._owner
        self.alive_at = time.monotonic()
        self._seen = pulls_in(view, {pull.image for pull in self._seen if pull.is_running})
        if not owner.is_of(self):
            raise _Unasked("there is no request")
        owner.tell(owner.source_showed, self, self._seen, view.is_known)

    def note(self, text: str) -> None:
        self.noted = text
        self._owner.log.info("source", note=text)

    def end(self, images: Collection[str]) -> None:
        now_s = time.time()
        ended = [
            replace(pull, is_running=False, ended_s=pull.ended_s or now_s)
            for pull in self._seen
            if pull.image in images
        ]
        self._owner.tell(self._owner.keep, ended)


class NodePulls:
    """The image pulls of this node.

    Args:
        first_poll_s: how long a request waits for the first poll of a source.
        unasked_s: how long a source runs without a request; an open watch keeps making requests.
        stuck_s: a source that is silent for longer counts as hung; its own waits all have shorter
            limits.
    """

    def __init__(
        self,
        connect: Connect,
        api: AsyncApiClient,
        node: str,
        *,
        first_poll_s: float = 3.0,
        unasked_s: float = 15.0,
        stuck_s: float = 120.0,
    ) -> None:
        self.node = node
        self.first_poll_s, self.unasked_s, self.stuck_s = first_poll_s, unasked_s, stuck_s
        self.log = Log(__name__)
        self._connect = connect
        self.changes = Changes()
        own, notify = {"fieldSelector": f"spec.nodeName={node}"}, self.changes.notify
        self._reflector = Reflector(api, path_of_pods(), own, parse_pod, notify)
        self._source: _Source | None = None
        self._asked_at = 0.0
        self._failed_at = 0.0
        self._error = ""
        self._ended: dict[str, PullState] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_held = False
        self._timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self._source is not None

    @property
    def is_stuck(self) -> bool:
        """Whether the source hangs; its thread can only be ended with the process."""
        source = self._source
        return source is not None and time.monotonic() - source.alive_at > self.stuck_s

    @property
    def error(self) -> str:
        """Why the pulls are unknown; empty if they are known."""
        source = self._source
        if source is not None and not source.has_looked:
            return source.noted or _NOT_LOOKED
        return self._error

    def pods(self) -> tuple[Pod, ...]:
        return tuple(self._reflector.items.values())  # atomic: the source's thread calls it, too

    def find(self, namespace: str, name: str, uid: str = "") -> Pod | None:
        wanted = namespace, name
        return next(
            (pod for pod in self.pods() if (pod.namespace, pod.name) == wanted or uid == pod.uid),
            None,
        )

    async def ask(self) -> tuple[list[PullState], tuple[Pod, ...]]:
        """Return the node's pulls and pods; the first call waits for the first poll."""
        self._begin()
        until = time.monotonic() + self.first_poll_s
        await self._reflector.ready(self.first_poll_s)
        while (
            (source := self._source) is not None
            and not source.has_looked
            and (left_s := until - time.monotonic()) > 0
        ):
            await self.changes.wait(left_s)
        return self.pulls(), self.pods()

    def pulls(self) -> list[PullState]:
        """Return recently finished pulls, then running ones."""
        now_s = time.time()
        running = self._source.pulls if self._source is not None else []
        names = {pull.image for pull in running}
        ended = self._ended.values()
        lately = [
            pull for pull in ended if now_s - pull.ended_s < ENDED_S and pull.image not in names
        ]
        return lately + running

    def hold(self) -> None:
        """Watch the pods all the time, even without requests."""
        self._is_held = True
        self._reflector.start()

    async def close(self) -> None:
        self._source = None
        if self._timer is not None:
            self._timer.cancel()
        await self._reflector.stop()

    # Called by sources

    def is_of(self, source: _Source) -> bool:
        """Return whether a source is still the current one; others end."""
        return self._source is source

    def tell(self, function: Callable[..., None], *given: object) -> None:
        """Call a function in the loop, from any thread."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, *given)

    def source_showed(self, source: _Source, pulls: list[PullState], is_known: bool) -> None:
        source.pulls, source.has_looked = pulls, is_known
        if self._source is source:
            self._error = ""
        self.changes.notify()

    def source_ended(self, source: _Source, error: PycrictlError) -> None:
        if self._source is source:
            self._source, self._failed_at = None, time.monotonic()
            if self._error != error.message:
                self.log.warning("no_source", error=error.message)
            self._error = error.message
        self.changes.notify()

    def keep(self, ended: Sequence[PullState]) -> None:
        """Remember the last ended pulls; the dictionary is replaced, never changed in place."""
        images = {pull.image for pull in ended}
        kept = [pull for pull in self._ended.values() if pull.image not in images]
        self._ended = {pull.image: pull for pull in [*kept, *ended][-MAX_ENDED:]}

    def _begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._asked_at = now = time.monotonic()
        self._reflector.start()
        if self._timer is None:
            self._stop_unasked()
        if self._source is None and now - self._failed_at >= RETRY_S:
            source = self._source = _Source(self)
            threading.Thread(
                target=source.run, args=(self._connect,), name="pulls", daemon=True
            ).start()

    def _stop_unasked(self) -> None:
        """Stop the source after ``unasked_s`` without a request; else check again later."""
        loop = asyncio.get_running_loop()
        if (left_s := self._asked_at + self.unasked_s - time.monotonic()) > 0:
            self._timer = loop.call_later(left_s, self._stop_unasked)
            return
        self._timer = self._source = None
        if not self._is_held:
            self._ending = loop.create_task(self._reflector.stop())


def pulls_in(view: View, before: Collection[str]) -> list[PullState]:
    """Return the pulls that a view shows.

    Args:
        before: the images whose pulls ran in the previous view. A complete pull that is not among
            them ended earlier: the proxy reports it for a few more seconds.
    """
    pulls = [
        replace(pull, is_running=False, ended_s=pull.began_s)
        if pull.is_complete and pull.image not in before
        else replace(pull, is_running=True)
        for pull in view.pulls.values()
    ]
    return pulls + [pull for pull in view.awaited if pull.image and pull.image not in view.pulls]


# Events, as an option: the proxy can write them instead


def recorder(pulls: NodePulls, load: Callable[[], Credential]) -> EventRecorder:
    """Return the recorder of a node's Events; its pods must be watched (``NodePulls.hold``).

    The runtime is watched only while a pod waits for an image.
    """
    is_busy = False

    async def states(is_writing: bool) -> list[PodPullState]:
        nonlocal is_busy
        is_busy = any(map(is_waiting, pulls.pods()))
        if not (is_busy or is_writing):
            return []
        try:
            running, pods = await pulls.ask()
        except PycrictlError:
            await asyncio.sleep(IDLE_S)
            return []
        # A pull may be forgotten before its end is written; a started container shows that, too.
        needed = pulls_by_need(pods, running, wants_all=is_writing)
        return [state_of(need, pull) for need, pull in needed]

    async def idle() -> None:
        await (asyncio.sleep(EVENTS_POLL_S) if is_busy else pulls.changes.wait(IDLE_S))

    return EventRecorder(ApiClient(load, timeout_s=EVENT_TIMEOUT_S), states, idle, pulls.log)


def state_of(need: Need, pull: PullState | None) -> PodPullState:
    phase = phase_of(need, pull)
    return PodPullState(
        need.pod,
        need.image,
        phase,
        lambda took_s: event_text(
            need.image,
            # If a pod waits again after its pull has begun, that pull was cancelled.
            Phase.FAILED if phase is PullPhase.WAITING else OF_LAYERS[phase],
            took_s,
            pull.sums if pull is not None else Sums(),
            place=pull.place if pull is not None else 0,
            error=error_of(need, pull) if phase.has_failed else "",
        ),
        is_over=phase not in _BEGINNINGS,
        is_warning=phase.has_failed,
    )
