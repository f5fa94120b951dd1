"""Kubernetes Events ``PullProgress``, so that ``kubectl describe pod`` shows a pull as it goes.

They are written with the kubelet's own credential, in a thread; see ``kube.events``.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from pycrictl.kube.apiclient import ApiClient
from pycrictl.kube.credential import Credential, find_credential
from pycrictl.kube.events import TIMEOUT_S, EventWriter
from pycrictl.kube.kubelet import Kubelet, find_kubelet
from pycrictl.proxy.figures.bulletin import Bulletin
from pycrictl.proxy.pulls.book import Book
from pycrictl.proxy.pulls.layer_poller import LayerPoller
from pycrictl.proxy.pulls.progress import Bell
from pycrictl.servicelog import Log
from pycrictl.streaming.loop import end_tasks, in_thread

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
        self._bulletin = Bulletin(book, layers.totals)
        self._writer = EventWriter(
            ApiClient(self._load, timeout_s=TIMEOUT_S),
            lambda exc: log.info("no_events", error=exc.message),
        )
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
                    await asyncio.sleep(await in_thread(partial(self._writer.write, news)))

    def _load(self) -> Credential:
        kubelet = Kubelet(kubeconfig=self._kubeconfig) if self._kubeconfig else find_kubelet()
        return find_credential(kubelet=kubelet)
