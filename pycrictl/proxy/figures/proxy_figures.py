"""A proxy's records, history, metrics, traces and Events, as its settings enable them.

The metrics library is imported only if metrics are enabled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pycrictl.copy.service.slots import Slots
from pycrictl.kube.events import EventRecorder
from pycrictl.proxy.calls import CallRecord, Handler
from pycrictl.proxy.copies.copy_service import CopyService
from pycrictl.proxy.figures.pod_pulls import recorder
from pycrictl.proxy.figures.pull_tracer import PullTracer
from pycrictl.proxy.figures.recorder import PullRecorder
from pycrictl.proxy.pulls.layer_poller import LayerPoller
from pycrictl.proxy.pulls.progress_streams import Notifier
from pycrictl.proxy.pulls.queue import PullQueue
from pycrictl.proxy.runtime_lookup import RuntimeLookup
from pycrictl.proxy.serve.http_server import PageServer
from pycrictl.proxy.serve.stream_server import StreamServer
from pycrictl.proxy.serve.tokens import Tokens
from pycrictl.proxy.settings import OWN_KUBECONFIG, ProxySettings
from pycrictl.proxy.upstream import Upstream
from pycrictl.servicelog import Log


class ProxyFigures:
    def __init__(
        self,
        settings: ProxySettings,
        *,
        upstream: Upstream,
        lookup: RuntimeLookup,
        layers: LayerPoller,
        log: Log,
    ) -> None:
        self._settings = settings
        self._upstream = upstream
        self._layers = layers
        self._log = log
        self.recorder = PullRecorder(
            layers=layers, lookup=lookup, log=log, history_folder=settings.state_dir
        )
        self.call: Callable[[CallRecord], object] = lambda record: None
        self._pages: PageServer | None = None
        self._events: EventRecorder | None = None
        self._tracer: PullTracer | None = None
        if settings.tracing_endpoint:
            self._tracer = PullTracer(settings.tracing_endpoint, log=log)
            log.watchers.append(self._tracer.event)

    def traced(self, handle: Handler) -> Handler:
        return handle if self._tracer is None else self._tracer.watched(handle)

    def look_at(
        self,
        *,
        queue: PullQueue,
        notifier: Notifier,
        copies: CopyService,
        slots: Slots[Any],
        tokens: Tokens[Any],
        streams: StreamServer[Any],
    ) -> None:
        if self._settings.metrics_address is not None:
            from pycrictl.proxy.figures.metrics import Health, Metrics, MetricSources  # noqa: PLC0415 - an option

            health = Health(self._upstream)
            metrics = Metrics(MetricSources(queue, copies, slots, tokens, streams, health))
            self.recorder.on_record.append(metrics.pull)
            self._log.watchers.append(metrics.event)
            self.call = metrics.call
            self._pages = PageServer(metrics.pages(), log=self._log)
        if wanted := self._settings.events:
            self._events = recorder(
                "" if wanted == OWN_KUBECONFIG else wanted,
                book=queue.book,
                layers=self._layers,
                notifier=notifier,
                log=self._log,
            )

    def start(self) -> None:
        if self._pages is not None and self._settings.metrics_address is not None:
            where = self._pages.start(self._settings.metrics_address)
            self._log.info("metrics", listen=where.authority)
        if self._events is not None:
            self._events.start()

    async def leave(self) -> None:
        """Stop what the new process continues."""
        if self._pages is not None:
            await self._pages.stop()
        if self._events is not None:
            await self._events.stop()

    async def stop(self) -> None:
        await self.leave()
        await self.recorder.stop()
        if self._tracer is not None:
            await self._tracer.stop()
