"""The proxy as a whole: puts its parts together, serves until SIGTERM, and ends in good order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import resource
import signal
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pycrictl.copy.rules.quotas import Quotas
from pycrictl.cri.calls.transport import look, unix
from pycrictl.errors import UsageError
from pycrictl.proxy.admin import AdminServer
from pycrictl.proxy.copies.job import CopyJob
from pycrictl.proxy.copies.service import COPY_FROM, COPY_TO, Copies
from pycrictl.proxy.ending import Ending, ends, ends_soon
from pycrictl.proxy.figures.service import Figures
from pycrictl.proxy.handover import Predecessor
from pycrictl.proxy.lookup import Lookup, PullTarget, answers
from pycrictl.proxy.operators import Operators
from pycrictl.proxy.program import ENVIRON
from pycrictl.proxy.pulls.decisions import Policy
from pycrictl.proxy.pulls.layer_poller import LayerPoller
from pycrictl.proxy.pulls.limiter import PULL_PATHS, PullLimiter
from pycrictl.proxy.pulls.progress import IMAGE_PULL_PROGRESS, Bell, PullProgress
from pycrictl.proxy.pulls.queue import PullQueue
from pycrictl.proxy.relay.calls import Answer, CallRecord, Peer
from pycrictl.proxy.relay.server import RelayServer
from pycrictl.proxy.relay.upstream import Upstream
from pycrictl.proxy.serve.listen import Inherited, UnixListener
from pycrictl.proxy.serve.stream_server import COPY_PATH, StreamServer
from pycrictl.proxy.serve.systemd import notify, passed_sockets, watchdog_s
from pycrictl.proxy.serve.tokens import Tokens
from pycrictl.proxy.settings import ProxySettings
from pycrictl.proxy.succession import Succession
from pycrictl.servicelog import Log, Seldom
from pycrictl.signals import ENDING
from pycrictl.streaming.loop import end_tasks
from pycrictl.wire.codes import UNIMPLEMENTED

LOGGER: Final = "pycrictl.proxy"

HOLD_S: Final = 2.0
"""How long slots are held for the calls that a predecessor had in line."""

COUNT_S: Final = 5.0
"""How long calls may wait because earlier pulls are counted."""

LEAVE_S: Final = 3.0
"""How long clients may take at the end to finish a last call, and to leave."""

_LOOK_S: Final = 1.0

_LATER: Final = (
    *("pycrictl.progress.sources", "pycrictl.cri.calls.channel", "pycrictl.progress.weight"),
    *("pycrictl.proxy.copies.incoming", "pycrictl.proxy.copies.outgoing"),
    *("pycrictl.copy.node.on_node", "websockets.protocol", "pycrictl.yamltree"),
)
"""What the first pull, copy or stream needs. It is half of what there is to load, and is loaded as
soon as the proxy serves: a successor must serve at once, and a program must not load modules of a
newer one that has been installed since."""


class App:
    """A running proxy.

    Args:
        settings: of the proxy.
        environ: for systemd's ``NOTIFY_SOCKET``, and ``handover.ENVIRON``.
        take_over: from the proxy that runs with the same admin socket, if there is one.
    """

    def __init__(
        self, settings: ProxySettings, environ: Mapping[str, str], *, take_over: bool = False
    ) -> None:
        self._settings = settings
        self._admin_of_old = environ.get(ENVIRON) or (settings.admin_socket if take_over else "")
        self._predecessor: Predecessor | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._environ = environ
        self._log = Log(LOGGER)
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._queue = PullQueue[Answer](
            settings.limit,
            settings.policy,
            retry_interval_s=settings.retry_interval_s,
            retries=settings.retries,
        )
        bell = Bell()
        tokens = Tokens[PullTarget | CopyJob]()
        upstream = Upstream(settings.upstream)
        lookup = Lookup(upstream)
        self._layers = LayerPoller(
            settings.upstream,
            log=self._log,
            on_look=bell.ring,
            wants_manifests=settings.wants_manifests,
        )
        self._figures = Figures(
            settings, upstream=upstream, lookup=lookup, layers=self._layers, log=self._log
        )
        self._limiter = PullLimiter(
            self._queue,
            upstream=upstream,
            lookup=lookup,
            layers=self._layers,
            log=self._log,
            on_change=bell.ring,
            on_end=self._figures.recorder.take,
        )
        self._progress = PullProgress(
            lookup,
            self._queue.book,
            self._layers,
            bell=bell,
            tokens=tokens,
            url=lambda token: self._streams.url(token),
        )
        quotas = Quotas(
            size_limit_bytes=settings.copy_size_limit_bytes,
            copies_per_pod=settings.copies_per_pod,
        )
        self._copies = Copies(
            lookup,
            quotas,
            entry_limit=settings.copy_entry_limit,
            runtime_path=settings.upstream,
            spool_folder=settings.spool_dir,
            tokens=tokens,
            url=lambda token: self._streams.url(token, COPY_PATH),
            log=self._log,
        )
        self._streams = StreamServer[PullTarget](
            redeem=self._progress.redeem,
            follow=self._progress.follow,
            log=self._log,
            redeem_copy=self._copies.redeem,
        )
        operators = Operators(
            settings,
            queue=self._queue,
            limiter=self._limiter,
            layers=self._layers,
            upstream=upstream,
            log=self._log,
            peers=lambda: self._relay.peers(),
            copies=self._all_copies,
            predecessor=lambda: self._predecessor,
        )
        self._admin = AdminServer(
            {
                **operators.calls,
                "reload": lambda request: self._succession.reload(request),
            },
            takes={"take-over": lambda sock: self._succession.hand_over(sock)},
        )
        traced = self._figures.traced
        self._relay = RelayServer(
            settings.upstream,
            own={
                **dict.fromkeys(PULL_PATHS, traced(self._limiter.handle)),
                IMAGE_PULL_PROGRESS: self._progress.handle,
                COPY_TO: traced(self._copies.handle_to),
                COPY_FROM: traced(self._copies.handle_from),
            },
            on_call=self._ended,
        )
        self._figures.look_at(
            queue=self._queue,
            bell=bell,
            copies=self._copies,
            quotas=quotas,
            tokens=tokens,
            streams=self._streams,
            relay=self._relay,
        )
        self._log_stream = Seldom(self._log.info, "stream")
        self._succession = Succession(
            self._relay,
            self._admin,
            self._limiter,
            self._streams,
            book=self._queue.book,
            environ=environ,
            log=self._log,
            accept=self._accept,
            stop=self._stop,
        )
        self._ending = Ending(
            self._relay,
            self._limiter,
            self._copies,
            self._streams,
            tokens,
            book=self._queue.book,
            limit_s=settings.drain_timeout_s,
            log=self._log,
        )

    async def run(self) -> None:
        """Serve until a signal ends it.

        Raises:
            UsageError: a socket is in use or cannot be made.
            ConnectError, RemoteProtocolError: a running proxy does not hand over.
            ConfigError: the streaming server's address cannot be used.
        """
        settings = self._settings
        _raise_file_limit()
        async with contextlib.AsyncExitStack() as stack:
            if self._admin_of_old:
                self._predecessor = Predecessor.reach(self._admin_of_old)
            for listener in self._listen():
                self._succession.listeners.append(listener)
                stack.callback(listener.close)
            if not self._has_old_port:
                await self._streams.start(settings.stream_address)
            stack.push_async_callback(self._layers.close)
            stack.push_async_callback(self._figures.stop)
            self._figures.start()
            stack.push_async_callback(self._copies.stop)
            stack.push_async_callback(self._streams.stop)
            stack.push_async_callback(self._admin.stop)
            stack.push_async_callback(self._limiter.stop)
            stack.push_async_callback(lambda: end_tasks(self._tasks))
            self._take_signals()
            await self._begin()
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
                self._spawn(self._keep_alive(interval_s / 3))
            await asyncio.to_thread(lambda: [importlib.import_module(name) for name in _LATER])
            await self._look_at_runtime()
            # What is there now stays: to search it for garbage again and again takes 30 ms each.
            gc.freeze()
            gc.set_threshold(700, 10, 10)  # Python's own: garbage of many clients must not pile up
            await self._stop.wait()
            if self._succession.successor is None:
                notify("STOPPING=1", self._environ)
                self._limiter.close()
                await self._ending.drain()
            else:
                stack.callback(self._succession.successor.close)
                self._spawn(self._succession.successor.answer(self._all_copies))
                await self._figures.leave()
                await self._ending.finish()
                await self._succession.answered()
            await self._relay.stop(drain_s=LEAVE_S, is_awaited=ends_soon)
        self._log.info("stopped")

    def _listen(self) -> Iterator[UnixListener]:
        """Iterate over the listeners for clients and for operators, inherited or new.

        Raises:
            UsageError: a socket is in use, cannot be made, or is not known here.
        """
        wanted = {"listen": self._settings.listen, "admin-socket": self._settings.admin_socket}
        inherited = {} if self._predecessor is None else dict(self._predecessor.sockets)
        for passed in passed_sockets(self._environ):
            name = next((name for name in wanted if passed.path == wanted[name]), passed.name)
            if name not in wanted:
                raise UsageError(f"systemd passes a socket that is not known: {passed.path}")
            wanted[name] = passed.path
            inherited[passed.path] = Inherited(passed.socket, None)
        for path in wanted.values():
            yield UnixListener(Path(path), inherited.get(path))

    @property
    def _has_old_port(self) -> bool:
        """Whether streams are served at the predecessor's port, which is a fixed one."""
        old = self._predecessor
        return old is not None and old.streams[0] == self._settings.stream_address.authority

    async def _begin(self) -> None:
        """Serve, from the first moment with all that another program leaves."""
        old = self._predecessor
        if old is not None:
            paths = [str(listener.path) for listener in self._succession.listeners]
            port = [self._settings.stream_address.authority] if self._has_old_port else []
            state = await old.take(paths[0], [*paths, *port])
            if port:
                await self._streams.start(self._settings.stream_address, old.streams[1])
                self._streams.pass_unknown_to(old.channel)
            self._limiter.salt = old.salt
            self._limiter.adopt(state)
            if state["waiting"]:
                self._limiter.hold(state["waiting"])
                self._loop.call_later(HOLD_S, self._limiter.release)
        elif self._settings.limit:
            self._limiter.hold()
            self._spawn(self._count_earlier())
        await self._accept()
        if old is not None:
            await old.serving()
            self._log.info("took_over", pid=old.pid)
            for listener in self._succession.listeners:
                listener.claim()
            self._spawn(self._follow(old))

    async def _accept(self) -> None:
        """Accept clients on sockets that stay open when no more are accepted."""
        listener, admin = self._succession.listeners
        await self._relay.start(listener.socket.dup())
        await self._admin.start(admin.socket.dup())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _follow(self, old: Predecessor) -> None:
        """Count the pulls of the program before this one until it has ended."""
        await old.follow(self._limiter.end_adopted)
        self._streams.pass_unknown_to(None)
        self._limiter.end_all_adopted()
        self._predecessor = None
        self._log.info("predecessor_ended", pid=old.pid)

    # The end

    def _take_signals(self) -> None:
        """Stop at a signal, in good order at the first and at once at the second.

        SIGHUP starts a new program.
        """

        def stop() -> None:
            (self._ending.at_once if self._stop.is_set() else self._stop).set()

        def hang_up() -> None:
            self._spawn(self._succession.hang_up())

        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup(1) has it for SIGHUP
                reaction = hang_up if number == signal.SIGHUP else stop
                self._loop.add_signal_handler(number, reaction)

    # While it serves

    def _ended(self, record: CallRecord, peer: Peer) -> None:
        """Log a stream that passed through; unary calls would drown everything else."""
        # Clients try streams of lists in vain where the runtime has none.
        if not ends(record.path) and record.code != UNIMPLEMENTED:
            self._log_stream(
                method=record.path.rpartition("/")[2],
                code="" if record.code is None else record.code,
                bytes=record.response_bytes,
                duration_s=round(record.duration_s, 3),
                pid=peer.pid,
                uid=peer.uid,
            )

    async def _look_at_runtime(self) -> None:
        """Warn of a runtime that does not answer: it may be starting, or the path is wrong."""
        upstream = self._settings.upstream
        found = await asyncio.to_thread(look, unix(upstream), timeout_s=_LOOK_S)
        if found is not None:
            self._log.warning("no_runtime", upstream=upstream, reason=found.reason)

    async def _keep_alive(self, interval_s: float) -> None:
        """Prove to systemd, again and again, that calls pass.

        If they do not because the runtime hangs, another program would not do better.
        """
        here, there = str(self._succession.listeners[0].path), self._settings.upstream
        while self._succession.successor is None:
            timeout_s = interval_s / 2
            if await answers(here, timeout_s) or not await answers(there, timeout_s):
                notify("WATCHDOG=1", self._environ)
            await asyncio.sleep(interval_s)

    async def _count_earlier(self) -> None:
        """Let pulls that an earlier proxy left at the runtime count until they are gone.

        Calls that come meanwhile wait until it is known how many there are. Those that would be
        refused for want of a slot wait for their end too: most end with the earlier proxy.
        """

        async def count() -> None:
            pulls = [
                self._limiter.count_earlier(f"earlier pull {lease_id}", self._layers.gone(lease_id))
                for lease_id in await self._layers.running() or ()
            ]
            if pulls and self._queue.policy is Policy.RETRY:
                await asyncio.wait(pulls)

        await asyncio.wait({self._spawn(count())}, timeout=COUNT_S)
        self._limiter.release()

    async def _all_copies(self) -> list[dict[str, Any]]:
        """Return the copies that are made, also by the program before this one."""
        old = [] if self._predecessor is None else await self._predecessor.copies()
        return [*old, *self._copies.snapshot()]


def run(settings: ProxySettings, environ: Mapping[str, str], *, take_over: bool = False) -> None:
    """Serve until a signal ends it; arguments as ``App``, errors as ``App.run``."""

    async def serve() -> None:
        await App(settings, environ, take_over=take_over).run()

    with Log(LOGGER).of_asyncio():
        asyncio.run(serve())


def _raise_file_limit() -> None:
    """Take as many descriptors as the system allows: every client and pull is a connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
