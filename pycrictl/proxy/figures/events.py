"""Kubernetes Events ``PullProgress``, so that ``kubectl describe pod`` shows a pull as it goes.

They are written with the kubelet's own credential, by one call a second at most, in a thread. When
the API server does not take one, it is left alone for a while; nobody waits for it, and the log has
one line.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pycrictl.errors import AlreadyExists, NotFound, PycrictlError
from pycrictl.proxy.figures.bulletin import Bulletin, News
from pycrictl.proxy.pulls.book import Book
from pycrictl.proxy.pulls.layer_poller import LayerPoller
from pycrictl.proxy.pulls.progress import Bell
from pycrictl.servicelog import Log
from pycrictl.streaming.loop import end_tasks, in_thread

if TYPE_CHECKING:
    from pycrictl.kube.client import KubeClient

REASON: Final = "PullProgress"
COMPONENT: Final = "pycrictl"

CALL_PAUSE_S: Final = 1.0
"""The shortest time between two calls."""

TIMEOUT_S: Final = 5.0
FIRST_REST_S: Final = 10.0
LONGEST_REST_S: Final = 600.0
"""How long the API server is left alone after a failure, and after many in a row."""

_LOOK_S: Final = 0.5
_IDLE_S: Final = 60.0


class Events:
    """Writes the Events of a node.

    Args:
        kubeconfig: whose credential is used; empty for the kubelet's, wherever that is.
        book: the pulls.
        layers: knows how far they are.
        bell: rings when a pull begins or ends.
        log: gets a line when the API server takes none, once until it does.
    """

    def __init__(
        self, kubeconfig: str, *, book: Book, layers: LayerPoller, bell: Bell, log: Log
    ) -> None:
        self._kubeconfig = kubeconfig
        self._layers = layers
        self._bell = bell
        self._log = log
        self._bulletin = Bulletin(book, layers.progress)
        self._client: KubeClient | None = None
        self._rest_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End at once; the last Events stay as they are."""
        if self._task is not None:
            await end_tasks([self._task])

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = self._bulletin.look(loop.time())
            if due is None:
                await self._bell.wait(_IDLE_S)
            elif due > loop.time():
                # Whoever begins or gives up many pulls at once makes no more work for it.
                await asyncio.sleep(_LOOK_S)
            else:
                await self._layers.refresh()
                news = self._bulletin.next(loop.time())
                if news is not None:
                    await self._publish(news)

    async def _publish(self, news: News) -> None:
        try:
            await in_thread(partial(self._write, news))
        except PycrictlError as exc:
            self._client = None  # the credential may have been renewed
            if not self._rest_s:
                self._log.info("no_events", error=exc.message)
            self._rest_s = min(max(2 * self._rest_s, FIRST_REST_S), LONGEST_REST_S)
            await asyncio.sleep(self._rest_s)
        else:
            self._rest_s = 0.0
            await asyncio.sleep(CALL_PAUSE_S)

    def _write(self, news: News) -> None:
        """Create or change the Event, by two calls if it is not there as expected."""
        if self._client is None:
            from pycrictl.kube.client import KubeClient  # not before there is an Event to write
            from pycrictl.kube.credential import find_credential
            from pycrictl.kube.kubelet import Kubelet, find_kubelet

            kubelet = Kubelet(kubeconfig=self._kubeconfig) if self._kubeconfig else find_kubelet()
            self._client = KubeClient(find_credential(kubelet=kubelet), timeout_s=TIMEOUT_S)
        path = f"/api/v1/namespaces/{news.pod.namespace}/events"
        changes = self._changes(news)
        try:
            if news.is_new:
                self._client.post(path, {**_identity(news, self._client.node), **changes})
            else:
                self._client.patch(f"{path}/{news.name}", changes)
        except AlreadyExists:  # of an earlier pull, or of an earlier proxy
            time.sleep(CALL_PAUSE_S)
            self._client.patch(f"{path}/{news.name}", changes)
        except NotFound:  # Events are kept for an hour
            time.sleep(CALL_PAUSE_S)
            self._client.post(path, {**_identity(news, self._client.node), **changes})

    def _changes(self, news: News) -> dict[str, Any]:
        now = time.time()
        return {
            "message": news.message,
            "type": "Warning" if news.is_warning else "Normal",
            "count": news.writing,
            "firstTimestamp": _moment(now - news.since_s),
            "lastTimestamp": _moment(now),
        }


def _identity(news: News, node: str) -> dict[str, Any]:
    """Return what of an Event (core/v1) never changes."""
    pod = news.pod
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": news.name, "namespace": pod.namespace},
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


def _moment(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
