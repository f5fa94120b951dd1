"""The proxy as a whole: connects its parts, serves until SIGTERM, and shuts down gracefully."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final

from pycrictl.base.environ import raise_file_limit
from pycrictl.base.servicelog import Log, notify, watchdog_s
from pycrictl.base.signals import ENDING
from pycrictl.kube.events import EventRecorder
from pycrictl.proxy.admin import AdminServer
from pycrictl.proxy.copy_calls import COPY_FROM, COPY_TO, CopyCalls
from pycrictl.proxy.events import Events
from pycrictl.proxy.handover import HandOver
from pycrictl.proxy.operators import Operators
from pycrictl.proxy.pulls.layer_poller import LayerPoller
from pycrictl.proxy.pulls.progress_streams import (
    IMAGE_PULL_PROGRESS,
    Notifier,
    PullProgress,
)
from pycrictl.proxy.pulls.pull_image import PULL_PATH, PullLimiter
from pycrictl.proxy.runtime_lookup import RuntimeLookup, problem
from pycrictl.proxy.serve.http_server import PageServer
from pycrictl.proxy.serve.stream_server import StreamServer, Tokens
from pycrictl.proxy.server import AGE_S, JITTER, CriServer
from pycrictl.proxy.settings import ProxySettings
from pycrictl.proxy.telemetry.event_log import EventLog
from pycrictl.proxy.telemetry.history import PullHistory
from pycrictl.proxy.telemetry.pod_pulls import PodPulls, recorder
from pycrictl.proxy.upstream import Upstream, ends
from pycrictl.streams.loop import end_tasks

LOGGER: Final = "pycrictl.proxy"

LEAVE_S: Final = 3.0
"""How long the last calls of clients may take at shutdown."""

GONE_S: Final = 10.0
"""The maximum time for clients to reconnect once their connection is too old."""

_RUNTIME_S: Final = 1.0
_POLL_S: Final = 0.05


class App:
    """A proxy while it runs; ``environ`` has the variables of systemd and of a hand-over.

    Its parts are made in the order of their dependencies: the connection to the runtime, the calls
    that the proxy answers itself, the servers for clients, the consumers of events. Clients'
    connections are replaced at the age of ``age_s``; after a hand-over, the old process stays
    that long and ``left_s`` more. The shutdown waits up to ``calls_s`` for a moment without open
    streams and without calls other than pulls, so that none is refused or cut off.
    """

    def __init__(
        self,
        settings: ProxySettings,
        environ: Mapping[str, str],
        *,
        age_s: float = AGE_S,
        left_s: float = 1.0,
        calls_s: float = 10.0,
    ) -> None:
        self._age_s, self._left_s, self._calls_s = age_s, left_s, calls_s
        self.settings, self.environ = settings, environ
        self.log = log = Log(LOGGER)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop, self._at_once = asyncio.Event(), asyncio.Event()
        events, notifier = Events([EventLog(log)]), Notifier()
        emit = events.emit

        self.upstream = upstream = Upstream(settings.upstream)
        lookup = RuntimeLookup(upstream)
        self.layers = layers = LayerPoller(settings.upstream, log, notifier.notify)

        self.tokens = tokens = Tokens()
        self.limiter = limiter = PullLimiter(settings, upstream, lookup, layers, emit)
        progress = PullProgress(lookup, limiter.queue, layers, notifier, tokens)
        self.copies = copies = CopyCalls(settings, lookup, tokens, emit)

        self.streams = streams = StreamServer(tokens, progress.follow, emit, log)
        own = {
            PULL_PATH: limiter.handle,
            IMAGE_PULL_PROGRESS: progress.handle,
            COPY_TO: copies.handle,
            COPY_FROM: copies.handle,
        }
        self.server = CriServer(upstream, own=own, emit=emit, age_s=age_s)
        parts = limiter, streams, self.server
        self.hand_over = HandOver(settings, environ, *parts, emit, log, self._stop)
        operators = Operators(settings, limiter, copies, self.hand_over, log)
        take_over = {"take-over": self.hand_over.hand_over}
        self.admin = AdminServer(operators.calls, connections=take_over)

        self.history = PullHistory(layers, emit, settings.state_dir, log)
        events.consumers += (self.hand_over, notifier, self.history)
        self.pages: PageServer | None = None
        if (address := settings.metrics_address) is not None:
            from pycrictl.proxy.telemetry.pages import pages  # noqa: PLC0415 - an option

            states = limiter.queue, copies.service, tokens, streams
            self.pages = PageServer(pages(events, upstream, *states), address, log)
        self.pod_events = _pod_events(settings.events, log, events, limiter, notifier)

    async def run(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            await self._start(stack)
            await self._stop.wait()
            if self.hand_over.successor_pid:
                await self._leave_to_successor()
                await self._finish()
                await self.hand_over.answered()
            else:
                notify("STOPPING=1", self.environ)
                self.limiter.close()
                await self._drain()
            self.hand_over.close_sockets()
            self.limiter.is_stopping = True
            await self.server.stop(drain_s=LEAVE_S, is_awaited=_ends_soon)
        self.log.info("stopped")

    async def _start(self, stack: contextlib.AsyncExitStack) -> None:
        """Start all parts; what is started first is stopped last."""
        stack.push_async_callback(self.upstream.close)
        stack.push_async_callback(self.hand_over.close)
        await self.hand_over.prepare()
        stack.push_async_callback(self.layers.close)
        stack.push_async_callback(self._stop_consumers)
        self._start_consumers()
        stack.push_async_callback(self.copies.service.stop)
        stack.push_async_callback(self.streams.stop)
        stack.push_async_callback(end_tasks, self._tasks)
        self._take_signals()
        cri, admin = (str(own.path) for own in self.hand_over.sockets)
        await self.server.start(cri)
        stack.push_async_callback(self.admin.stop)
        await self.admin.start(admin)
        await self.hand_over.begin()
        self._report_ready()
        self._spawn(self._warn_without_runtime())
        self.copies.service.start()

    def _start_consumers(self) -> None:
        if self.pages is not None:
            self.log.info("metrics", listen=self.pages.start().authority)
        if self.pod_events is not None:
            self.pod_events.start()

    def _report_ready(self) -> None:
        settings = self.settings
        self.log.info(
            "ready",
            listen=settings.listen,
            upstream=settings.upstream,
            streams=self.streams.address.authority,
            limit=settings.limit,
            limit_origin=settings.limit_origin,
            when_full=settings.policy.value,
        )
        notify("READY=1", self.environ)
        if (interval_s := watchdog_s(self.environ)) is not None:
            self._spawn(self._keep_alive(interval_s / 3))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Shutdown

    def _take_signals(self) -> None:
        def stop() -> None:
            (self._at_once if self._stop.is_set() else self._stop).set()

        def hang_up() -> None:
            self._spawn(self.hand_over.hang_up())

        loop = asyncio.get_running_loop()
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup(1) has SIGHUP ignored
                reaction = hang_up if number == signal.SIGHUP else stop
                loop.add_signal_handler(number, reaction)

    async def _leave_to_successor(self) -> None:
        """Stop the pages and the Events, which the new process continues."""
        for part in (self.pages, self.pod_events):
            if part is not None:
                await part.stop()

    async def _stop_consumers(self) -> None:
        await self._leave_to_successor()
        await self.history.stop()

    async def _drain(self) -> None:
        """Wait for work under way, while everything but new pulls is served as before.

        Closing the socket at once would make every call of kubelet fail for as long as a pull
        takes.
        """
        limit_s = self.settings.drain_timeout_s
        self.log.info("stopping", drain="no limit" if limit_s is None else limit_s)
        await self._wait(self._is_pulling_or_copying, limit_s)
        if limit_s != 0:  # streams still report the end of a pull
            await self._wait(
                lambda: bool(self.streams.open_count) or self._is_called(), self._calls_s
            )

    def _is_pulling_or_copying(self) -> bool:
        old = self.hand_over.predecessor
        is_pulling = PULL_PATH in self.server.open_paths() or bool(old and old.pulls)
        return is_pulling or bool(self.copies.service.running)

    def _is_called(self) -> bool:
        return any(map(_ends_soon, self.server.open_paths()))

    async def _finish(self) -> None:
        """Wait for work that the new process does not take over, and for all clients to reconnect.

        By then, all connections here have exceeded gRPC's maximum age.
        """
        now = asyncio.get_running_loop().time
        until = now() + self._age_s * (1 + JITTER) + self._left_s
        await self._wait(
            lambda: bool(
                self.limiter.queue.book.running
                or self.copies.service.running
                or self.streams.open_count
                or self.tokens.outstanding(now())
                or any(map(ends, self.server.open_paths()))
            ),
            self.settings.drain_timeout_s,
        )
        await self._wait(lambda: now() < until, None)
        # A client that was busy when its connection became too old may still use it.
        await self._wait(self._has_clients, GONE_S)

    def _has_clients(self) -> bool:
        """Return whether a connection to this process's own socket is open (proc_net(5))."""
        path = str(self.hand_over.sockets[0].path)
        lines = Path("/proc/net/unix").read_text(errors="replace").splitlines()
        return any(line.endswith(f" {path}") and line.split()[5] == "03" for line in lines)

    async def _wait(self, is_busy: Callable[[], bool], limit_s: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while is_busy() and not self._at_once.is_set():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._at_once.wait(), _POLL_S)

    # While it serves

    async def _warn_without_runtime(self) -> None:
        """Warn if the runtime does not answer: it may be starting, or the path is wrong."""
        if reason := await problem(self.upstream, _RUNTIME_S):
            path = self.settings.upstream
            self.log.warning("no_runtime", upstream=path, reason=reason.rpartition(": ")[2])

    async def _keep_alive(self, interval_s: float) -> None:
        """Notify systemd's watchdog regularly, unless the event loop hangs.

        A runtime that hangs makes no difference: a restart of the proxy would not help.
        """
        while not self.hand_over.successor_pid:
            notify("WATCHDOG=1", self.environ)
            await asyncio.sleep(interval_s)


def _pod_events(
    kubeconfig: str, log: Log, events: Events, limiter: PullLimiter, notifier: Notifier
) -> EventRecorder | None:
    if not kubeconfig:
        return None
    pulls = PodPulls(limiter.queue.book, limiter.layers.seen)
    events.consumers.append(pulls)
    return recorder(kubeconfig, pulls, limiter.layers, notifier, log)


def run(settings: ProxySettings, environ: Mapping[str, str], **times_s: float) -> None:
    """Run a proxy until it is stopped; ``times_s`` are passed to ``App``."""

    async def serve() -> None:
        await App(settings, environ, **times_s).run()

    raise_file_limit()
    with Log(LOGGER).of_library("asyncio"):
        asyncio.run(serve())


def _ends_soon(path: str) -> bool:
    return ends(path) and path != PULL_PATH
