"""The proxy as a whole: connects its parts, serves until SIGTERM, and shuts down gracefully."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final

from pycrictl.copy.service.copies import Copy
from pycrictl.copy.service.slots import Slots
from pycrictl.proxy import server as clients
from pycrictl.proxy.admin import AdminServer
from pycrictl.proxy.calls import CallRecord, ends
from pycrictl.proxy.copies.copy_service import COPY_FROM, COPY_TO, CallCopy, CopyService
from pycrictl.proxy.figures.proxy_figures import ProxyFigures
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
from pycrictl.proxy.serve.stream_server import COPY_PATH, StreamServer
from pycrictl.proxy.serve.tokens import Tokens
from pycrictl.proxy.settings import ProxySettings
from pycrictl.proxy.upstream import Upstream
from pycrictl.servicelog import Log, Seldom, notify, watchdog_s
from pycrictl.signals import ENDING
from pycrictl.streaming.loop import end_tasks, raise_file_limit
from pycrictl.wire.codes import UNIMPLEMENTED

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


class App:
    """A running proxy; ``environ`` has systemd's variables and ``handover.ENVIRON``."""

    def __init__(self, settings: ProxySettings, environ: Mapping[str, str]) -> None:
        self._settings = settings
        self._tasks: set[asyncio.Task[None]] = set()
        self._environ = environ
        self._log = Log(LOGGER)
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._at_once = asyncio.Event()
        self._queue = PullQueue(
            settings.limit,
            settings.policy,
            retry_interval_s=settings.retry_interval_s,
            retries=settings.retries,
        )
        notifier = Notifier()
        tokens = Tokens[PullTarget | Copy[CallCopy]]()
        upstream = self._upstream = Upstream(settings.upstream)
        lookup = RuntimeLookup(upstream)
        self._layers = LayerPoller(
            settings.upstream,
            log=self._log,
            on_look=notifier.notify,
            wants_manifests=settings.wants_manifests,
        )
        self._figures = ProxyFigures(
            settings, upstream=upstream, lookup=lookup, layers=self._layers, log=self._log
        )
        self._limiter = PullLimiter(
            self._queue,
            upstream=upstream,
            lookup=lookup,
            layers=self._layers,
            on_change=notifier.notify,
            on_end=self._figures.recorder.take,
            on_over=lambda pull, error: self._hand_over.pull_ended(pull, error),
        )
        self._streams = StreamServer[PullTarget](self._log)
        self._progress = PullProgress(
            lookup,
            self._queue.book,
            self._layers,
            notifier=notifier,
            tokens=tokens,
            url=self._streams.url,
        )
        slots: Slots[Copy[CallCopy]] = Slots(
            size_limit_bytes=settings.copy_size_limit_bytes, copies_per_pod=settings.copies_per_pod
        )
        self._copies = CopyService(
            lookup,
            slots,
            entry_limit=settings.copy_entry_limit,
            runtime_path=settings.upstream,
            spool_folder=settings.spool_dir,
            tokens=tokens,
            url=partial(self._streams.url, path=COPY_PATH),
            log=self._log,
        )
        self._streams.offer(self._progress.redeem, self._progress.follow, self._copies.redeem)
        self._hand_over = HandOver(
            settings,
            environ,
            limiter=self._limiter,
            streams=self._streams,
            book=self._queue.book,
            log=self._log,
            stop=self._stop,
        )
        operators = Operators(
            settings,
            queue=self._queue,
            limiter=self._limiter,
            layers=self._layers,
            upstream=upstream,
            log=self._log,
            copies=self._copies.snapshot,
            predecessor=self._hand_over.status,
        )
        self._admin = AdminServer(
            {**operators.calls, "reload": self._hand_over.reload},
            takes={"take-over": self._hand_over.hand_over},
        )
        self._figures.look_at(
            queue=self._queue,
            notifier=notifier,
            copies=self._copies,
            slots=slots,
            tokens=tokens,
            streams=self._streams,
        )
        self._tokens = tokens
        self._log_stream = Seldom(self._log.info, "stream")
        traced, handled = self._figures.traced, self._hand_over.handled
        self._server = clients.CriServer(
            upstream,
            own={
                **dict.fromkeys(PULL_PATHS, traced(self._hand_over.pull)),
                IMAGE_PULL_PROGRESS: handled(self._progress.handle),
                COPY_TO: handled(traced(self._copies.handle_to)),
                COPY_FROM: handled(traced(self._copies.handle_from)),
            },
            on_call=self._ended,
        )

    async def run(self) -> None:
        settings = self._settings
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._upstream.close)
            stack.push_async_callback(self._hand_over.close)
            await self._hand_over.prepare()
            stack.push_async_callback(self._layers.close)
            stack.push_async_callback(self._figures.stop)
            self._figures.start()
            stack.push_async_callback(self._copies.stop)
            stack.push_async_callback(self._streams.stop)
            stack.push_async_callback(self._limiter.stop)
            stack.push_async_callback(lambda: end_tasks(self._tasks))
            self._take_signals()
            cri, admin = (str(own.path) for own in self._hand_over.sockets)
            await self._server.start(cri)
            stack.push_async_callback(self._admin.stop)
            await self._admin.start(admin)
            await self._hand_over.begin()
            self._log.info(
                "ready",
                listen=settings.listen,
                upstream=settings.upstream,
                streams=self._streams.address.authority,
                limit=settings.limit,
                limit_origin=settings.limit_origin,
                when_full=settings.policy.value,
            )
            notify("READY=1", self._environ)
            if (interval_s := watchdog_s(self._environ)) is not None:
                self._spawn(self._keep_alive(cri, interval_s / 3))
            self._spawn(self._look_at_runtime())
            self._spawn(self._copies.sweep())
            await self._stop.wait()
            if not self._hand_over.successor_pid:
                notify("STOPPING=1", self._environ)
                self._limiter.close()
                await self._drain()
            else:
                await self._figures.leave()
                await self._finish()
                await self._hand_over.answered()
            self._hand_over.close_sockets()
            self._limiter.is_stopping = True
            await self._server.stop(drain_s=LEAVE_S, is_awaited=_ends_soon)
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
            self._spawn(self._hand_over.hang_up())

        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup(1) has SIGHUP ignored
                reaction = hang_up if number == signal.SIGHUP else stop
                self._loop.add_signal_handler(number, reaction)

    async def _drain(self) -> None:
        """Wait for work under way, while everything but new pulls is served as before.

        Closing the socket at once would make every call of kubelet fail for as long as a pull
        takes.
        """
        limit_s, book = self._settings.drain_timeout_s, self._queue.book
        self._log.info("stopping", drain="no limit" if limit_s is None else limit_s)
        await self._wait(self._is_pulling_or_copying, limit_s)
        if limit_s == 0:
            return
        # Streams still report the end of a pull.
        if book.ended:
            left_s = book.ended[-1].ended + WATCHED_S - self._loop.time()
            await self._wait(lambda: bool(self._streams.open_count), max(left_s, 0.0))
        await self._wait(lambda: any(map(_ends_soon, self._server.open_paths())), CALLS_S)

    def _is_pulling_or_copying(self) -> bool:
        is_pulling = any(path in PULL_PATHS for path in self._server.open_paths())
        old = self._hand_over.predecessor
        return is_pulling or bool(old and old.pulls) or bool(self._copies.snapshot())

    async def _finish(self) -> None:
        """Wait for work that the new process does not take over, and for all clients to reconnect.

        By then, all connections here have exceeded gRPC's maximum age.
        """
        until = self._loop.time() + clients.AGE_S * (1 + clients.JITTER) + LEFT_S
        await self._wait(
            lambda: bool(
                self._queue.book.running
                or self._copies.snapshot()
                or self._streams.open_count
                or self._tokens.outstanding(self._loop.time())
                or any(map(ends, self._server.open_paths()))
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

    def _ended(self, record: CallRecord) -> None:
        """Count a call, and log it if it was a stream; unary calls would drown everything else."""
        self._figures.call(record)
        # Clients also try streaming lists on runtimes without them.
        if not ends(record.path) and record.code != UNIMPLEMENTED:
            self._log_stream(
                method=record.path.rpartition("/")[2],
                code=record.code,
                bytes=record.response_bytes,
                duration_s=round(record.duration_s, 3),
            )

    async def _look_at_runtime(self) -> None:
        """Warn if the runtime does not answer: it may be starting, or the path is wrong."""
        if not await self._upstream.is_reached(_LOOK_S):
            answer = await version(self._upstream, _LOOK_S)
            reason = answer.message.rpartition(": ")[2]
            self._log.warning("no_runtime", upstream=self._settings.upstream, reason=reason)

    async def _keep_alive(self, socket: str, interval_s: float) -> None:
        """Notify systemd's watchdog regularly while calls get through.

        It is also notified while the runtime hangs, since a restart of the proxy would not help.
        """
        timeout_s = interval_s / 2
        while not self._hand_over.successor_pid:
            here = Upstream(socket)
            if await answers(here, timeout_s) or not await answers(self._upstream, timeout_s):
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
