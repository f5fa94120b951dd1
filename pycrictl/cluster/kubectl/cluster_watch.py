"""``kubectl image-pull-progress``: follow a cluster's pulls to their end via the agents' API."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from pycrictl.base.errors import (
    ConnectError,
    RemoteProtocolError,
    RuntimeFault,
    StreamError,
    Unimplemented,
    UpgradeRefused,
)
from pycrictl.base.foreign import count, mapping, mappings, parsed, text
from pycrictl.cluster.agent.api.names import GROUP_VERSION
from pycrictl.cluster.agent.objects import OF_LAYERS
from pycrictl.cluster.kubectl import api_errors
from pycrictl.cluster.kubectl.pod_selection import Asked, PodSelection, find
from pycrictl.cluster.kubectl.program import Kubectl, KubectlProxy, fetch, read
from pycrictl.kube.apiclient import Expired, events_of
from pycrictl.pulls.messages import pull_in_status
from pycrictl.pulls.sources.endings import SETTLE_S, Endings, Pace, Sink, conclude, stopped
from pycrictl.pulls.sources.stream_watch import watch_pulls
from pycrictl.pulls.state import Phase, PullState
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

    Returns whether there was any pull.
    """
    try:
        selection = find(kubectl, asked)
        with KubectlProxy(kubectl) as proxy:
            endings = Endings(Tracker(), sink)
            lists = _Lists(kubectl, proxy, endings.tracker, selection, asked, pace.follow)
            outcome = watch_pulls(lists.follow, endings, pace=pace)
    except KeyboardInterrupt:
        raise stopped() from None
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
        self._pulls = PullObjects(
            selection.has, is_of_one_node=bool(asked.node), is_of_one_pod=bool(pod)
        )
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

        def note(message: str) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(on_note, message)

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
                on_note(f"the pull of {pull.pull.name} is no longer reported")

    def _target(self, query: Mapping[str, str]) -> Target:
        words = urlencode({**self._query, **query})
        return self._proxy.target(f"{self._path}?{words}" if words else self._path)


class PullObject(NamedTuple):
    """The parts of an ImagePull object that are used here.

    Attributes:
        pull: the pull without its status; its pod is the first of the pods that share it.
        node: the node that pulls, empty before the pod has one.
        namespace, name: those of the object's pod.
        has_begun: whether there is a pull, not only a pod that waits for one.
    """

    pull: PullState
    node: str
    namespace: str
    name: str
    phase: Phase
    has_begun: bool

    @property
    def is_over(self) -> bool:
        return self.phase in (Phase.DONE, Phase.FAILED)

    def shares(self, other: PullObject) -> bool:
        return (self.pull.image, self.node) == (other.pull.image, other.node)


class PullObjects:
    """The pulls in lists and watches of ImagePull objects, and which are under way. Pure.

    If pulls of several nodes are shown, each pull names its node, since each node pulls an image
    for itself. On one node, several pods that need one image share its pull, which is named after
    the first of them.

    Args:
        has_pod: whether the pod of this namespace and name is selected.
        is_of_one_node: pulls need not name their node.
        is_of_one_pod: pulls need not name their pod, and images that are present are shown, too.
    """

    def __init__(
        self,
        has_pod: Callable[[str, str], bool] = lambda namespace, name: True,
        *,
        is_of_one_node: bool = False,
        is_of_one_pod: bool = False,
    ) -> None:
        self.version = ""
        self.silent: dict[str, str] = {}
        self.lost: list[PullObject] = []
        self._has_pod = has_pod
        self._is_of_one_node = is_of_one_node or is_of_one_pod
        self._is_of_one_pod = is_of_one_pod
        self._objects: dict[str, PullObject] = {}

    @property
    def is_idle(self) -> bool:
        return all(pull.is_over for pull in self._objects.values())

    @property
    def has_begun(self) -> bool:
        """Whether a wanted pull is under way; pulls that pods still wait for may never begin."""
        return any(pull.has_begun and not pull.is_over for pull in self._objects.values())

    def receive_list(self, body: bytes) -> list[PullState]:
        """Process a list; objects that are missing from it no longer exist."""
        document = parsed(body)
        if document.get("kind") != "ImagePullList":
            raise ValueError("not an ImagePullList")
        before, self._objects = self._objects, {}
        self.silent.clear()
        pulls: list[PullState] = []
        for item in mappings(document.get("items")):
            pulls += self._apply(item, before)
        for uid in before.keys() - self._objects.keys():
            self._lose(before[uid])
        self._take_version(document)
        return pulls

    def receive_event(self, event: Mapping[str, Any]) -> list[PullState]:
        """Process an event of a watch; unknown kinds are ignored."""
        kind, document = event.get("type"), mapping(event.get("object"))
        self._take_version(document)
        if kind in ("ADDED", "MODIFIED"):
            return list(self._apply(document, self._objects))
        uid = text(mapping(document.get("metadata")).get("uid"))
        if kind == "DELETED" and (pull := self._objects.pop(uid, None)) is not None:
            self._lose(pull)
        return []

    def _take_version(self, document: dict[str, Any]) -> None:
        self.version = text(mapping(document.get("metadata")).get("resourceVersion"))

    def _apply(
        self, document: dict[str, Any], before: dict[str, PullObject]
    ) -> Iterator[PullState]:
        metadata, spec, status = (
            mapping(document.get(key)) for key in ("metadata", "spec", "status")
        )
        namespace, node = text(metadata.get("namespace")), text(spec.get("nodeName"))
        pod, image = text(spec.get("podName")), text(spec.get("image"))
        if not self._has_pod(namespace, pod):
            return
        uid, error = text(metadata.get("uid")), text(status.get("error"))
        old = before.get(uid)
        if status.get("unknown") is True:
            self.silent[node] = error
            if old is not None:  # its agent may come back
                self._objects[uid] = old
            return
        stands = text(status.get("phase"))
        phase = OF_LAYERS.get(stands, Phase.WAITING)
        shown_node = "" if self._is_of_one_node else node
        pods = () if self._is_of_one_pod else (f"{namespace}/{pod}",)
        pull = PullState(image=image, node=shown_node, pods=pods)
        shown = PullObject(pull, node, namespace, pod, phase, stands != "Waiting")
        others = [old, *self._objects.values()]
        if first := next((other for other in others if other and other.shares(shown)), None):
            pull = replace(pull, pods=first.pull.pods)
            shown = shown._replace(pull=pull)
        self._objects[uid] = shown
        if phase is Phase.DONE and old is not None and old.phase is phase:
            return  # already reported; a list repeats it
        if stands == "Succeeded":
            is_old = not self.version  # it ended before the watch began
            if is_old and not self._is_of_one_pod:
                return
            if is_old or not (count(status.get("totalBytes")) or status.get("startTime")):
                phase, status = Phase.PRESENT, {}
        if phase is Phase.FAILED:
            error = error or text(status.get("kubeletReason")) or "the pull failed"
        yield pull_in_status(status, replace(pull, error=error), phase)

    def _lose(self, pull: PullObject) -> None:
        if not pull.is_over and not any(other.shares(pull) for other in self._objects.values()):
            self.lost.append(pull)
