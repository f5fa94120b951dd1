"""``kubectl image-pull-progress``: follow a cluster's pulls to their end via the agents' API."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
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
from pycrictl.base.units import plural
from pycrictl.cluster.agent.api.names import GROUP_VERSION
from pycrictl.cluster.kubectl import api_errors
from pycrictl.cluster.kubectl.imagepulls import PullObjects, Wanted
from pycrictl.cluster.kubectl.kubectl_proxy import TIMEOUT_S, KubectlProxy, fetch, read
from pycrictl.cluster.kubectl.pod_selection import Asked, PodSelection, find
from pycrictl.cluster.kubectl.program import Kubectl
from pycrictl.kube.apiclient import Expired, events_of
from pycrictl.kube.pods import Pod
from pycrictl.pulls.messages import MessageReader
from pycrictl.pulls.sources.endings import SETTLE_S, Endings, Pace, Sink, conclude
from pycrictl.pulls.sources.stream_watch import Follow, watch_pulls
from pycrictl.pulls.sources.stream_watch import follow as follow_stream
from pycrictl.pulls.state import PullState
from pycrictl.pulls.tracker import Tracker
from pycrictl.streams.loop import end_tasks, in_thread
from pycrictl.streams.target import Target

log = logging.getLogger("pycrictl.kubectl")

AGAIN_S: Final = 2.0
"""The minimum time from one opening of a stream to the next."""

BEGIN_S: Final = 10.0
"""How long to wait for the start of a pull that a pod needs; the agents have the same value."""

MOST_FAILED: Final = 6
_ROOT: Final = f"/apis/{GROUP_VERSION}"
_TICK_S: Final = 0.25

_OnPull = Callable[[PullState], None]
_OnNote = Callable[[str], None]


def watch(
    kubectl: Kubectl, asked: Asked, sink: Sink, pace: Pace, environ: Mapping[str, str]
) -> bool:
    """Watch pulls until all have ended, or without end if ``pace.follow``."""
    try:
        selection = find(kubectl, asked)
        if waiting := selection.wait_for_nodes(forever=pace.follow):
            sink.note(f"{plural(len(waiting), 'pod')} not scheduled yet, such as {waiting[0]}")
        with KubectlProxy(kubectl, environ) as proxy:
            pod, endings = selection.single, Endings(Tracker(), sink)
            follow: Follow
            if pod is not None:
                follow = partial(_follow_pod, proxy, endings, pod, asked.container, pace.follow)
            else:
                follow = _Listing(
                    kubectl, proxy, endings.tracker, selection, asked, pace.follow
                ).follow
            outcome = watch_pulls(partial(_follow, kubectl, follow), endings, pace=pace)
    except KeyboardInterrupt:
        raise Interrupted("stopped watching; the pulls go on") from None
    conclude(outcome, str(pod or ""), sink)
    return outcome is not None


async def _follow(kubectl: Kubectl, follow: Follow, on_pull: _OnPull, on_note: _OnNote) -> None:
    loop = asyncio.get_running_loop()

    def note(text: str) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(on_note, text)

    kubectl.note = note
    try:
        await follow(on_pull, on_note)
    except UpgradeRefused as exc:
        error = api_errors.of_answer(exc)
        if isinstance(error, Unimplemented) and exc.status == 404:
            error = await in_thread(kubectl.why_not_served)
        raise error from exc
    except RemoteProtocolError:
        raise
    except (StreamError, ConnectError) as exc:
        log.debug("%s", exc.message)
        raise StreamError("the connection to the cluster broke off") from exc


async def _follow_pod(
    proxy: KubectlProxy,
    endings: Endings,
    pod: Pod,
    container: str,
    is_endless: bool,
    on_pull: _OnPull,
    on_note: _OnNote,
) -> None:
    began = time.monotonic()
    query = f"?{urlencode({'container': container})}" if container else ""
    # The API server has no time limit for paths below watch/.
    path = f"{_ROOT}/watch/namespaces/{pod.namespace}/pods/{pod.name}/imagepullprogress"
    await follow_stream(
        proxy.target(f"{path}{query}"),
        MessageReader(endings.known),
        on_pull=on_pull,
        on_note=on_note,
        timeout_s=TIMEOUT_S,
        is_plain=True,
    )
    if is_endless:
        await asyncio.sleep(max(began + AGAIN_S - time.monotonic(), 0.0))


class _Listing:
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
        wanted = Wanted(selection.namespace, asked.node, asked.container, selection.has)
        self._pulls = PullObjects(wanted)
        namespace = f"/namespaces/{selection.namespace}" if selection.namespace else ""
        self._path = f"{_ROOT}{namespace}/imagepulls"
        self._query = {"fieldSelector": f"spec.nodeName={asked.node}"} if asked.node else {}
        self._noted: set[str] = set()
        self._failed = 0

    async def follow(self, on_pull: _OnPull, on_note: _OnNote) -> None:
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
