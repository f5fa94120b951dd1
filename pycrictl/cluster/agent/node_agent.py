"""Assembles the agent: its listeners, its clients, and its shutdown."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web

from pycrictl.base.address import Address
from pycrictl.base.errors import ConfigError
from pycrictl.base.metricspage import CONTENT_TYPE
from pycrictl.base.servicelog import Log
from pycrictl.cluster.agent.access import (
    CONFIG_NAME,
    CONFIG_NAMESPACE,
    Access,
    Trust,
    parse_trust,
)
from pycrictl.cluster.agent.asyncapi import AsyncApiClient, Reflector
from pycrictl.cluster.agent.cluster import Cluster
from pycrictl.cluster.agent.copies.documents import CopyEnded, NodeCopy, encode
from pycrictl.cluster.agent.copies.routes import CopyRoutes
from pycrictl.cluster.agent.copies.sessions import Sessions
from pycrictl.cluster.agent.feed import Feeds
from pycrictl.cluster.agent.listener import Certificates, Listener, limit_tls_buffers
from pycrictl.cluster.agent.node_pulls import Connect, NodePulls, recorder
from pycrictl.cluster.agent.peers import Peers
from pycrictl.cluster.agent.router import AgentMetrics, Router
from pycrictl.copy.service.copies import Copies
from pycrictl.copy.service.slots import Slots, check_folder, free_bytes
from pycrictl.kube.credential import Credential
from pycrictl.streams.loop import end_tasks, new_loop

if TYPE_CHECKING:
    from pycrictl.runtime.cri.calls.client import CriClient


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """The settings of an agent; 0 is no limit, and an empty text means that there is none.

    ``debugs`` is the kubelet's ``enableDebuggingHandlers``: without it there are no copies. A copy
    without any activity of its client for ``copy_lifetime_s`` is removed.
    """

    listen: Address
    node: str
    namespace: str
    certificate_file: str
    key_file: str
    peer_ca_file: str
    peer_token_file: str
    debugs: bool = True
    writes_events: bool = False
    spool_dir: str = ""
    spool_limit_bytes: int = 0
    copy_size_limit_bytes: int = 0
    copies_per_pod: int = 0
    copy_lifetime_s: float = 15 * 60.0


class Agent:
    """An agent, made in a running loop; ``ready`` is set when it is ready for the first time.

    Args:
        load: reads the credential for the API server.
        check_s: the time between two readings of the certificate files.
        unreached_s: how long the API server may be unreachable before the agent is unready.

    Raises:
        ConfigError: a file of a certificate cannot be used, or an address is not free.
    """

    def __init__(
        self,
        settings: AgentSettings,
        load: Callable[[], Credential],
        connect: Connect,
        check_s: float = 60.0,
        unreached_s: float = 60.0,
    ) -> None:
        self._settings = settings
        self._check_s, self.unreached_s = check_s, unreached_s
        self._log = Log(__name__)
        files = settings.certificate_file, settings.key_file, settings.peer_ca_file
        self._certificates = Certificates(*files)
        self.api = AsyncApiClient(load)
        self.pulls = NodePulls(connect, self.api, settings.node)
        self.peers = Peers(
            self.api,
            namespace=settings.namespace,
            token_file=settings.peer_token_file,
            ca=self._certificates.ca,
        )
        self._events = recorder(self.pulls, load) if settings.writes_events else None
        self.access = Access(self.api, self.peers.own_user)
        cluster = Cluster(self.api, self.pulls, self.peers)
        self.feeds = Feeds(cluster)
        self.metrics = AgentMetrics()
        self.copies = self._own_copies(connect) if settings.spool_dir else None
        copies = CopyRoutes(
            self.access,
            cluster,
            self.peers,
            settings.node,
            Sessions(self.copies, self._audit) if self.copies is not None else None,
            self._audit,
            is_off=not settings.debugs,
        )
        self.routes = Router(self.access, cluster, self.feeds, copies, self.metrics, self._page)
        self.listener = Listener(self.routes.handle, settings.listen, self.access.is_front_proxy)
        self.access.on_authenticated = self.listener.authenticated
        self._reflector: Reflector[Trust] = Reflector(
            self.api,
            f"/api/v1/namespaces/{CONFIG_NAMESPACE}/configmaps",
            {"fieldSelector": f"metadata.name={CONFIG_NAME}"},
            parse_trust,
            self._trust_changed,
        )
        self.ready = asyncio.Event()
        self._add_metrics()
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start serving; the API server need not be reachable yet."""
        if self.copies is not None:
            self.copies.start()
        self.listener.open(self._certificates.context(None))
        self._reflector.start()
        if self._events is not None:
            self.pulls.hold()
            self._events.start()
        self._task = asyncio.create_task(self._keep_open())

    async def stop(self) -> None:
        await end_tasks([self._task] if self._task is not None else [])
        if self._events is not None:
            await self._events.stop()
        await self._reflector.stop()
        if self.copies is not None:
            await self.copies.stop()
        await self.listener.close()
        await self.feeds.close()
        await self.pulls.close()
        await self.peers.close()
        await self.api.close()

    def _own_copies(self, connect: Connect) -> Copies[NodeCopy]:
        settings = self._settings

        @contextmanager
        def open_client() -> Iterator[CriClient]:
            with connect() as (runtime, _):
                yield runtime

        check_folder(settings.spool_dir)
        slots = Slots(
            size_limit_bytes=settings.copy_size_limit_bytes,
            copies_per_pod=settings.copies_per_pod,
            disk_limit_bytes=settings.spool_limit_bytes,
            free_bytes=partial(free_bytes, settings.spool_dir),
        )
        return Copies(
            slots,
            open_client,
            settings.spool_dir,
            lambda copy: self._audit(copy.ended),
            encode,
            lifetime_s=settings.copy_lifetime_s,
            keeps_ended=True,
        )

    def _audit(self, ended: CopyEnded) -> None:
        self._log.info("copy", **ended.fields)
        direction = ended.spec.direction.lower()
        self.metrics.copied(direction, ended.end.value, ended.moved_bytes)

    def _trust_changed(self) -> None:
        # A list that cannot be refreshed is kept: the front proxy is still the same.
        trust = next(iter(self._reflector.items.values()), None)
        if trust != self.access.trust:
            self.access.trust = trust
            self._log.info("trust", proxy=bool(trust and trust.proxy_ca))
            self._news.set()

    async def _keep_open(self) -> None:
        """Keep serving with the current certificates, from the files and the API server."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._check_s):
                    await self._news.wait()
            is_due = self._news.is_set()
            self._news.clear()
            try:
                is_due |= self._certificates.renew()
            except ConfigError as exc:
                self._log.warning("certificate_kept", error=exc.message)
            if is_due:
                self.peers.trust(self._certificates.ca)
                self.listener.open(self._certificates.context(self.access.trust))
                if not self._unready_reason():
                    self.ready.set()

    def _unhealthy_reason(self) -> str:
        """Return why only a restart helps, else nothing. A hung loop answers no probe at all."""
        if self.pulls.is_stuck:
            return "the source of the node's pulls hangs"
        has_ended = any(task and task.done() for task in (self._task, self._reflector.task))
        return "a background task has ended" if has_ended else ""

    def _unready_reason(self) -> str:
        trust = self.access.trust
        if trust is None:
            return "the CA of the front proxy is not known yet"
        if not trust.proxy_ca:
            return "the API server names no front proxy to trust"
        if self._reflector.failing_s > self.unreached_s:
            return f"queries to the API server fail: {self._reflector.error}"
        return ""

    async def _page(self, name: str) -> web.Response:
        if name == "metrics":
            page = self.metrics.page.text()
            return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE})
        why = self._unready_reason() if name == "readyz" else self._unhealthy_reason()
        return web.Response(text=why or "ok", status=503 if why else 200)

    def _add_metrics(self) -> None:
        gauge, counted = self.metrics.page.gauge, self.metrics.page.counted
        copies, pulls, listener = self.copies, self.pulls, self.listener
        gauge("connections", "Open connections.", lambda: len(listener.server.connections))
        gauge("watches", "Open watches.", lambda: self.routes.watches)
        gauge(
            "source_running",
            "Whether this node's pulls are being followed.",
            lambda: pulls.is_running,
        )
        gauge("ready", "Whether the agent is ready.", lambda: not self._unready_reason())
        gauge(
            "certificate_expiry_timestamp_seconds",
            "When the agent's certificate expires.",
            lambda: self._certificates.expiry_s,
        )
        running = gauge("copies_running", "Copies under way.")
        spooled = gauge("copy_spool_bytes", "Disk space that copies use or have reserved.")
        limit = gauge(
            "copy_spool_limit_bytes", "Disk space for copies (--spool-size); 0 for no limit."
        )
        limit.set(self._settings.spool_limit_bytes)
        if copies is not None:
            running.set_function(lambda: len(copies.running))
            spooled.set_function(lambda: copies.slots.held_bytes)
        counted("turned_away", "Connections closed due to a limit.", lambda: listener.turned_away)


def run(
    settings: AgentSettings,
    load: Callable[[], Credential],
    connect: Connect,
    on_ready: Callable[[], object] = lambda: None,
) -> None:
    """Serve until SIGTERM or SIGINT; ``on_ready`` is called once it listens."""
    limit_tls_buffers()

    async def main() -> None:
        log = Log(__name__)
        loop = asyncio.get_running_loop()
        ends = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ends.set)
        with log.of_library("asyncio"), log.of_library("aiohttp"):
            agent = Agent(settings, load, connect)
            await agent.start()
            host, port = agent.listener.address
            log.info("serving", address=f"{host}:{port}", node=settings.node)
            on_ready()
            await ends.wait()
            log.info("stopping")
            await agent.stop()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
