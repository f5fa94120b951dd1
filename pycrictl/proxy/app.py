"""The proxy as a whole: connects its parts, serves until SIGTERM, and shuts down gracefully."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, NamedTuple

from pycrictl.copy.service.copies import Copy
from pycrictl.copy.service.slots import Slots
from pycrictl.kube.events import EventRecorder
from pycrictl.proxy import server as clients
from pycrictl.proxy.admin import AdminServer
from pycrictl.proxy.calls import ends
from pycrictl.proxy.copies.copy_service import COPY_FROM, COPY_TO, CallCopy, CopyService
from pycrictl.proxy.events import Events
from pycrictl.proxy.figures.event_log import EventLog
from pycrictl.proxy.figures.pod_pulls import PodPulls
from pycrictl.proxy.figures.pod_pulls import recorder as pod_recorder
from pycrictl.proxy.figures.pull_tracer import PullTracer
from pycrictl.proxy.figures.recorder import HistoryWriter, PullRecorder
from pycrictl.proxy.handover import HandOver
from pycrictl.proxy.operators import Operators
from pycrictl.proxy.pulls.layer_poller import LayerPoller
from pycrictl.proxy.pulls.limiter import PULL_PATHS, PullLimiter
from pycrictl.proxy.pulls.progress_streams import (
    IMAGE_PULL_PROGRESS,
    LINGER_S,
    Notifier,
    PullProgress,
)
from pycrictl.proxy.pulls.queue import PullQueue
from pycrictl.proxy.runtime_lookup import PullTarget, RuntimeLookup, answers, version
from pycrictl.proxy.serve.http_server import PageServer
from pycrictl.proxy.serve.stream_server import StreamServer
from pycrictl.proxy.serve.tokens import Tokens
from pycrictl.proxy.server import JITTER, CriServer
from pycrictl.proxy.settings import OWN_KUBECONFIG, ProxySettings
from pycrictl.proxy.upstream import Upstream
from pycrictl.servicelog import Log, notify, watchdog_s
from pycrictl.signals import ENDING
from pycrictl.streaming.loop import end_tasks, raise_file_limit

LOGGER: Final = "pycrictl.proxy"

LEAVE_S: Final = 3.0
"""How long the last calls of clients may take at shutdown."""

CALLS_S: Final = 10.0
"""How long calls other than pulls may delay the shutdown, which waits for a moment without calls
so that none is refused."""

WATCHED_S: Final = LINGER_S + 1.0
"""How long after the last pull open streams may delay the shutdown."""

LEFT_S: Final = 1.0
"""How long clients may take to reconnect once their connection is too old."""

_LOOK_S: Final = 1.0
_POLL_S: Final = 0.05


class _Parts(NamedTuple):
    """What serves, from the runtime's side to the clients'. ``consumers`` end after the others."""

    upstream: Upstream
    layers: LayerPoller
    limiter: PullLimiter
    copies: CopyService
    tokens: Tokens
    streams: StreamServer[PullTarget]
    server: CriServer
    hand_over: HandOver
    admin: AdminServer
    pages: PageServer | None
    recorder: PullRecorder
    history: HistoryWriter | None
    tracer: PullTracer | None
    pod_events: EventRecorder | None


def _assembled(
    settings: ProxySettings, environ: Mapping[str, str], log: Log, stop: asyncio.Event
) -> _Parts:
    """Make the parts in the order in which they need each other."""
    events, notifier, tokens = Events([EventLog(log)]), Notifier(), Tokens()
    upstream = Upstream(settings.upstream)
    lookup = RuntimeLookup(upstream)
    layers = LayerPoller(
        settings.upstream,
        log=log,
        on_look=notifier.notify,
        wants_manifests=settings.wants_manifests,
    )
    queue = PullQueue(
        settings.limit,
        settings.policy,
        retry_interval_s=settings.retry_interval_s,
        retries=settings.retries,
        emit=events.emit,
    )
    limiter = PullLimiter(queue, upstream, lookup, layers)
    progress = PullProgress(lookup, queue, layers, notifier, tokens)
    slots: Slots[Copy[CallCopy]] = Slots(
        size_limit_bytes=settings.copy_size_limit_bytes, copies_per_pod=settings.copies_per_pod
    )
    copies = CopyService(
        lookup,
        slots,
        entry_limit=settings.copy_entry_limit,
        runtime_path=settings.upstream,
        spool_folder=settings.spool_dir,
        tokens=tokens,
        emit=events.emit,
        log=log,
    )
    streams: StreamServer[PullTarget] = StreamServer(tokens, progress.follow, events.emit, log)
    tracer = PullTracer(settings.tracing_endpoint, log=log) if settings.tracing_endpoint else None
    traced = (lambda handle: handle) if tracer is None else tracer.watched
    server = CriServer(
        upstream,
        own={
            **dict.fromkeys(PULL_PATHS, traced(limiter.handle)),
            IMAGE_PULL_PROGRESS: progress.handle,
            COPY_TO: traced(copies.handle_to),
            COPY_FROM: traced(copies.handle_from),
        },
        emit=events.emit,
    )
    hand_over = HandOver(
        settings,
        environ,
        limiter=limiter,
        streams=streams,
        server=server,
        events=events,
        log=log,
        stop=stop,
    )
    operators = Operators(
        settings,
        queue=queue,
        limiter=limiter,
        layers=layers,
        upstream=upstream,
        log=log,
        copies=copies.snapshot,
        predecessor=hand_over.status,
    )
    admin = AdminServer(
        {**operators.calls, "reload": hand_over.reload}, takes={"take-over": hand_over.hand_over}
    )
    recorder = PullRecorder(layers, lookup, events.emit)
    history = HistoryWriter(settings.state_dir, log=log) if settings.state_dir else None
    pages = pod_events = None
    if settings.metrics_address is not None:
        from pycrictl.proxy.figures.metrics import Health, Metrics, MetricSources  # noqa: PLC0415 - an option

        sources = MetricSources(queue, copies, slots, tokens, streams, Health(upstream))
        metrics = Metrics(sources)
        events.consumers.append(metrics)
        pages = PageServer(metrics.pages(), log=log)
    if wanted := settings.events:
        kubeconfig = "" if wanted == OWN_KUBECONFIG else wanted
        pulls = PodPulls(queue.book, layers.seen)
        events.consumers.append(pulls)
        pod_events = pod_recorder(kubeconfig, pulls, layers=layers, notifier=notifier, log=log)
    events.consumers += filter(None, (notifier, recorder, history, tracer))
    return _Parts(
        upstream=upstream,
        layers=layers,
        limiter=limiter,
        copies=copies,
        tokens=tokens,
        streams=streams,
        server=server,
        hand_over=hand_over,
        admin=admin,
        pages=pages,
        recorder=recorder,
        history=history,
        tracer=tracer,
        pod_events=pod_events,
    )


class App:
    """A proxy while it runs; ``environ`` has systemd's variables and ``handover.ENVIRON``."""

    def __init__(self, settings: ProxySettings, environ: Mapping[str, str]) -> None:
        self._settings = settings
        self._environ = environ
        self._log = Log(LOGGER)
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._at_once = asyncio.Event()
        self._parts = _assembled(settings, environ, self._log, self._stop)

    async def run(self) -> None:
        settings, parts = self._settings, self._parts
        hand_over, streams = parts.hand_over, parts.streams
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(parts.upstream.close)
            stack.push_async_callback(hand_over.close)
            await hand_over.prepare()
            stack.push_async_callback(parts.layers.close)
            stack.push_async_callback(self._stop_consumers)
            if parts.pages is not None and settings.metrics_address is not None:
                where = parts.pages.start(settings.metrics_address)
                self._log.info("metrics", listen=where.authority)
            if parts.pod_events is not None:
                parts.pod_events.start()
            stack.push_async_callback(parts.copies.stop)
            stack.push_async_callback(streams.stop)
            stack.push_async_callback(lambda: end_tasks(self._tasks))
            self._take_signals()
            cri, admin = (str(own.path) for own in hand_over.sockets)
            await parts.server.start(cri)
            stack.push_async_callback(parts.admin.stop)
            await parts.admin.start(admin)
            await hand_over.begin()
            self._log.info(
                "ready",
                listen=settings.listen,
                upstream=settings.upstream,
                streams=streams.address.authority,
                limit=settings.limit,
                limit_origin=settings.limit_origin,
                when_full=settings.policy.value,
            )
            notify("READY=1", self._environ)
            if (interval_s := watchdog_s(self._environ)) is not None:
                self._spawn(self._keep_alive(cri, interval_s / 3))
            self._spawn(self._look_at_runtime())
            self._spawn(parts.copies.sweep())
            await self._stop.wait()
            if not hand_over.successor_pid:
                notify("STOPPING=1", self._environ)
                parts.limiter.close()
                await self._drain()
            else:
                await self._leave_to_successor()
                await self._finish()
                await hand_over.answered()
            hand_over.close_sockets()
            parts.limiter.is_stopping = True
            await parts.server.stop(drain_s=LEAVE_S, is_awaited=_ends_soon)
        self._log.info("stopped")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Shutdown

    def _take_signals(self) -> None:
        def stop() -> None:
            (self._at_once if self._stop.is_set() else self._stop).set()

        def hang_up() -> None:
            self._spawn(self._parts.hand_over.hang_up())

        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup(1) has SIGHUP ignored
                reaction = hang_up if number == signal.SIGHUP else stop
                self._loop.add_signal_handler(number, reaction)

    async def _leave_to_successor(self) -> None:
        """Stop what the new process continues."""
        for part in (self._parts.pages, self._parts.pod_events):
            if part is not None:
                await part.stop()

    async def _stop_consumers(self) -> None:
        await self._leave_to_successor()
        for part in (self._parts.recorder, self._parts.history, self._parts.tracer):
            if part is not None:
                await part.stop()

    async def _drain(self) -> None:
        """Wait for work under way, while everything but new pulls is served as before.

        Closing the socket at once would make every call of kubelet fail for as long as a pull
        takes.
        """
        limit_s, parts = self._settings.drain_timeout_s, self._parts
        ended = parts.limiter.queue.book.ended
        self._log.info("stopping", drain="no limit" if limit_s is None else limit_s)
        await self._wait(self._is_pulling_or_copying, limit_s)
        if limit_s == 0:
            return
        # Streams still report the end of a pull.
        if ended:
            left_s = ended[-1].ended + WATCHED_S - self._loop.time()
            await self._wait(lambda: bool(parts.streams.open_count), max(left_s, 0.0))
        await self._wait(lambda: any(map(_ends_soon, parts.server.open_paths())), CALLS_S)

    def _is_pulling_or_copying(self) -> bool:
        parts = self._parts
        is_pulling = any(path in PULL_PATHS for path in parts.server.open_paths())
        old = parts.hand_over.predecessor
        return is_pulling or bool(old and old.pulls) or bool(parts.copies.snapshot())

    async def _finish(self) -> None:
        """Wait for work that the new process does not take over, and for all clients to reconnect.

        By then, all connections here have exceeded gRPC's maximum age.
        """
        parts, until = self._parts, self._loop.time() + clients.AGE_S * (1 + JITTER) + LEFT_S
        await self._wait(
            lambda: bool(
                parts.limiter.queue.book.running
                or parts.copies.snapshot()
                or parts.streams.open_count
                or parts.tokens.outstanding(self._loop.time())
                or any(map(ends, parts.server.open_paths()))
            ),
            self._settings.drain_timeout_s,
        )
        await self._wait(lambda: self._loop.time() < until, None)

    async def _wait(self, is_busy: Callable[[], bool], limit_s: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while is_busy() and not self._at_once.is_set():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._at_once.wait(), _POLL_S)

    # While it serves

    async def _look_at_runtime(self) -> None:
        """Warn if the runtime does not answer: it may be starting, or the path is wrong."""
        upstream = self._parts.upstream
        if not await upstream.is_reached(_LOOK_S):
            answer = await version(upstream, _LOOK_S)
            reason = answer.message.rpartition(": ")[2]
            self._log.warning("no_runtime", upstream=self._settings.upstream, reason=reason)

    async def _keep_alive(self, socket: str, interval_s: float) -> None:
        """Notify systemd's watchdog regularly while calls get through.

        It is also notified while the runtime hangs, since a restart of the proxy would not help.
        """
        timeout_s, parts = interval_s / 2, self._parts
        while not parts.hand_over.successor_pid:
            here = Upstream(socket)
            if await answers(here, timeout_s) or not await answers(parts.upstream, timeout_s):
                notify("WATCHDOG=1", self._environ)
            await here.close()
            await asyncio.sleep(interval_s)


def run(settings: ProxySettings, environ: Mapping[str, str]) -> None:
    async def serve() -> None:
        await App(settings, environ).run()

    raise_file_limit()
    with Log(LOGGER).of_library("asyncio"):
        asyncio.run(serve())


def _ends_soon(path: str) -> bool:
    return ends(path) and path not in PULL_PATHS
