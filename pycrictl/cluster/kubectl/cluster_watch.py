"""``kubectl image-pull-progress``: follow a cluster's pulls to their end via the agents' API."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import urlencode

from pycrictl.base.errors import (
    ConnectError,
    Interrupted,
    RemoteProtocolError,
    RuntimeFault,
    StreamError,
    Unimplemented,
    UpgradeRefused,
)
from pycrictl.cluster.agent.api.names import GROUP_VERSION
from pycrictl.cluster.kubectl import api_errors
from pycrictl.cluster.kubectl.imagepulls import PullObjects, Wanted
from pycrictl.cluster.kubectl.kubectl_proxy import KubectlProxy, fetch, read
from pycrictl.cluster.kubectl.pod_selection import Asked, PodSelection, find
from pycrictl.cluster.kubectl.program import Kubectl
from pycrictl.kube.apiclient import Expired, events_of
from pycrictl.pulls.sources.endings import SETTLE_S, Endings, Pace, Sink, conclude
from pycrictl.pulls.sources.stream_watch import watch_pulls
from pycrictl.pulls.state import PullState
from pycrictl.pulls.tracker import Tracker
from pycrictl.streams.loop import end_tasks, in_thread
from pycrictl.streams.target import Target

log = logging.getLogger("pycrictl.kubectl")

BEGIN_S: Final = 10.0
"""How long to wait for the start of a pull that a pod needs."""

MOST_FAILED: Final = 6
_TICK_S: Final = 0.25

_OnPull = Callable[[PullState], None]
_OnNote = Callable[[str], None]


def watch(kubectl: Kubectl, asked: Asked, sink: Sink, pace: Pace) -> bool:
    """Watch pulls until all have ended, or without end if ``pace.follow``.

    Returns whether there was any.
    """
    try:
        selection = find(kubectl, asked)
        with KubectlProxy(kubectl) as proxy:
            endings = Endings(Tracker(), sink)
            lists = _Lists(kubectl, proxy, endings.tracker, selection, asked, pace.follow)
            outcome = watch_pulls(lists.follow, endings, pace=pace)
    except KeyboardInterrupt:
        raise Interrupted("stopped watching; the pulls go on") from None
    conclude(outcome, str(selection.single or ""), sink)
    return outcome is not None


class _Lists:
    """The ImagePull objects of a selection: listed, then watched, and listed again if need be."""

    def __init__(
        self,
        kubectl: Kubectl,
        proxy: KubectlProxy,
        tracker: Tracker,
        selection: PodSelection,
        asked: Asked,
        is_endless: bool,
    ) -> None:
        self._kubectl = kubectl
        self._proxy = proxy
        self._tracker = tracker
        self._selection = selection
        self._is_endless = is_endless
        pod = selection.single
        wanted = Wanted(selection.namespace, asked.node, asked.container, selection.has, bool(pod))
        self._pulls = PullObjects(wanted)
        namespace = f"/namespaces/{selection.namespace}" if selection.namespace else ""
        self._path = f"/apis/{GROUP_VERSION}{namespace}/imagepulls"
        fields = {"spec.nodeName": asked.node, "spec.podName": pod.name if pod else ""}
        selector = ",".join(f"{key}={value}" for key, value in fields.items() if value)
        self._query = {"fieldSelector": selector} if selector else {}
        self._noted: set[str] = set()
        self._failed = 0

    async def follow(self, on_pull: _OnPull, on_note: _OnNote) -> None:
        """Pass on pulls until none is left; raise StreamError if the connection breaks."""
        loop = asyncio.get_running_loop()

        def note(text: str) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(on_note, text)

        self._kubectl.note = note
        try:
            await self._follow(on_pull, on_note)
        except UpgradeRefused as exc:
            error = api_errors.of_answer(exc)
            if isinstance(error, Unimplemented) and exc.status == 404:
                error = await in_thread(self._kubectl.why_not_served)
            raise error from exc
        except RemoteProtocolError:
            raise
        except (StreamError, ConnectError) as exc:
            log.debug("%s", exc.message)
            raise StreamError("the connection to the cluster broke off") from exc

    async def _follow(self, on_pull: _OnPull, on_note: _OnNote) -> None:
        while True:
            await self._list(on_pull, on_note)
            watching = asyncio.create_task(self._watch(on_pull))
            try:
                if await self._wait(watching, on_note):
                    return
            finally:
                await end_tasks([watching])
            await asyncio.sleep(_TICK_S)

    async def _list(self, on_pull: _OnPull, on_note: _OnNote) -> None:
        body = await fetch(self._target({}))
        try:
            pulls = self._pulls.receive_list(body)
        except ValueError:
            raise RemoteProtocolError("the agent did not return a list of pulls") from None
        for pull in pulls:
            on_pull(pull)
        for node, why in self._pulls.silent.items():
            if node not in self._noted:
                self._noted.add(node)
                on_note(f"node {node} does not answer: {why or 'no reason given'}")

    async def _watch(self, on_pull: _OnPull) -> None:
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._pulls.version,
        }
        begun_at = self._pulls.version
        try:
            async for event in events_of(read(self._target(query))):
                for pull in self._pulls.receive_event(event):
                    on_pull(pull)
        except (Expired, RuntimeFault):
            pass  # listing again tells why
        except (StreamError, ConnectError) as exc:
            # Each list counts as progress for the caller, so failed watches are counted here.
            self._failed = self._failed + 1 if self._pulls.version == begun_at else 0
            if self._failed > MOST_FAILED:
                raise RemoteProtocolError(
                    f"the watch of pulls broke off {self._failed} times"
                ) from exc
            raise

    async def _wait(self, watching: asyncio.Task[None], on_note: _OnNote) -> bool:
        """Wait until a new list is due; return True if there is nothing left to wait for."""
        idle_since: float | None = None
        while not watching.done():
            await asyncio.wait([watching], timeout=_TICK_S)
            self._forget_lost(on_note)
            if self._is_endless or self._pulls.has_begun:
                idle_since = None
            elif idle_since is None:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since >= (SETTLE_S if self._pulls.is_idle else BEGIN_S):
                return True
            if await in_thread(self._selection.find_new):
                return False
        watching.result()
        return False

    def _forget_lost(self, on_note: _OnNote) -> None:
        """Drop the pulls that are no longer listed: their pods or their agent are gone."""
        lost, self._pulls.lost = self._pulls.lost, []
        for pull in lost:
            self._tracker.forget(pull.pull.name)
            if pull.has_begun:
                on_note(f"the pull of {pull.pull.name} is not reported any more")

    def _target(self, query: Mapping[str, str]) -> Target:
        words = urlencode({**self._query, **query})
        return self._proxy.target(f"{self._path}?{words}" if words else self._path)
